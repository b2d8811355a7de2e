"""Weights of other networks are made to fit those of a run: blocks numbered as here, tables of as many classes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from frugan.api.progress import Say
from frugan.api.train.class_tables import (
    ClassStart,
    KnownClasses,
    read_class_map,
    refuse_other_classes,
    with_class_tables,
)
from frugan.api.train.starting_file import StartingWeights
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe


def numbered_as_here(weights: StartingWeights, recipe: Recipe) -> StartingWeights:
    """The weights with the names that their tensors have in networks of this resolution."""
    if weights.recipe is None:
        return weights
    theirs, ours = weights.recipe.networks, recipe.networks
    named = {key: recipe.kind.counterpart(key, theirs, ours) for key in weights.tensors}
    return replace(weights, tensors={here: weights.tensors[key] for key, here in named.items() if here is not None})


def with_classes(
    networks: Mapping[str, nn.Module],
    weights: StartingWeights,
    recipe: Recipe,
    classes: ClassStart | None,
    class_names: Sequence[str],
    say: Say | None,
) -> StartingWeights:
    """The weights with tables of as many classes as there are here.

    Raises:
        BadInput: they know another number of classes, and nobody said what to do; or a map of classes is wrong.
    """
    if not recipe.kind.class_tables:
        return weights
    own = {f"{name}.{key}": value for name, n in networks.items() for key, value in n.state_dict().items()}
    every = {key: recipe.kind.class_dimension(key, recipe.networks) for key in own}
    dimensions = {key: at for key, at in every.items() if at is not None and key in weights.tensors}
    sizes = {
        (weights.tensors[key].shape[at], own[key].shape[at])
        for key, at in dimensions.items()
        if weights.tensors[key].ndim == own[key].ndim
    }
    if not sizes:
        if classes is not None:
            raise BadInput(
                f"--init-classes: no table of classes is both in {weights.path} and in this run's networks; "
                "leave it out"
            )
        return weights
    (theirs, ours), *others = sorted(sizes)
    where = f"--init {weights.path}"
    if others:
        raise BadInput(f"{where}: its tables are of several numbers of classes: {sorted(a for a, _ in sizes)}")
    if classes is None:
        if theirs != ours:
            refuse_other_classes(where, ours, theirs)
        return weights
    chosen: list[int] = []
    if classes.map is not None:
        chosen = read_class_map(classes.map, KnownClasses(ours, class_names), KnownClasses(theirs, weights.class_names))
    if say is not None:
        how = {"copy": f"each from its own, as {classes.map} says", "mean": "all from their mean", "fresh": "fresh"}
        say(f"init: {ours:,} classes from the weights' {theirs:,}: {how[classes.how]}")
    tensors = with_class_tables(weights.tensors, own, dimensions, classes.how, chosen)
    return replace(weights, tensors=tensors)
