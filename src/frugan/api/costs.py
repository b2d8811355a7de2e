"""`info`: what a recipe's networks cost."""

from frugan.recipe import Recipe


def parameter_counts(recipe: Recipe) -> dict[str, int]:
    """Parameters of each network, counted on networks without data."""
    built = recipe.kind.build(recipe.networks, "meta")
    return {name: sum(p.numel() for p in network.parameters()) for name, network in built.items()}
