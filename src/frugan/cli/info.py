"""`frugan info`."""


def info(recipe: str) -> None:
    """Costs."""
