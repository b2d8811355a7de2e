"""Networks by recipe or from files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from frugan.api.weights import Weights, weights_metadata
from frugan.engine.checkpoint import load_networks, refuse_others
from frugan.engine.normalisation_groups import set_normalisation_batch
from frugan.engine.prepared import make_callable
from frugan.engine.streams import derive_seed
from frugan.engine.tensor_files import write_tensors
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe


def build_networks(recipe: Recipe, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
    """Networks of a recipe with their first weights, for the engine."""
    kind = recipe.kind
    networks = kind.build(recipe.networks, device)
    if torch.device(device).type != "meta":
        kind.initialise(recipe.networks, networks, lambda name: derive_seed(recipe.training.seed, "weights", name))
    return networks


def networks_from(weights: Weights, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
    """The networks that a weights file holds, for the engine.

    Raises:
        BadInput: its tensors are not those of its recipe; no memory was taken for networks then.
    """
    kind, config = weights.recipe.kind, weights.recipe.networks
    described = kind.build(config, "meta")
    if unknown := set(weights.networks) - set(described):
        raise BadInput(f"{weights.path}: holds {sorted(unknown)}, unknown to family {weights.recipe.family}")
    tensors = weights.read()
    refuse_others({name: described[name] for name in weights.networks}, tensors, str(weights.path))
    built = kind.build(config, device)
    present = {name: network for name, network in built.items() if name in weights.networks}
    load_networks(present, tensors, str(weights.path))
    return present


def _callable(networks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    return {name: make_callable(network.eval()) for name, network in networks.items()}


def build(recipe: str, overrides: Sequence[str] = (), device: torch.device | str = "cpu") -> dict[str, nn.Module]:
    """Build a recipe's networks with their first weights.

    They are in evaluation mode and safe to call as they are: each call prepares its weights (spectral norm) and nothing
    moves.

    Args:
        recipe: built-in name, or path of a TOML file.
        overrides: `key.sub=value` words.
        device: where to build; "meta" gives shapes only.

    Returns:
        Networks by name ("G", "D").

    Raises:
        BadInput: unknown recipe, key or value.
    """
    loaded = load_recipe(recipe, overrides)
    networks = build_networks(loaded, device)
    for network in networks.values():
        set_normalisation_batch(network, loaded.training.normalisation_batch)
    return _callable(networks)


def load(path: str | Path, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
    """Load networks from a weights file, a checkpoint or a run; family and config are in the file.

    A checkpoint or a run gives its averaged networks (EMA), from which samples are drawn; name the file
    `networks.safetensors` in a checkpoint for the others. Safe to call as they are, as from `build`.

    Raises:
        BadInput: not there, damaged, or not frugan's.
    """
    return _callable(networks_from(Weights.open(path), device))


def save(
    networks: Mapping[str, nn.Module],
    recipe: Recipe,
    path: str | Path,
    class_names: Sequence[str] = (),
    *,
    step: int | None = None,
    licence: str = "",
) -> None:
    """Write networks as a weights file that `load` reads: one safetensors file with family, recipe and its digest.

    Args:
        class_names: what labels mean, in their order; kept in the file.
        step: steps that they were trained for; None: not kept.
        licence: what others may do with them, such as "cc-by-4.0"; kept in the file, unless it is empty.
    """
    tensors = {f"{name}.{key}": value for name, n in networks.items() for key, value in n.state_dict().items()}
    write_tensors(Path(path), tensors, weights_metadata(recipe, class_names, step=step, licence=licence))
