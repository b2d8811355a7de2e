"""`--init`: what a new run takes over from weights that were trained before, and what of it begins anew."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from frugan.api.progress import Say, quiet
from frugan.api.train.class_tables import ClassStart
from frugan.api.train.made_to_fit import numbered_as_here, with_classes
from frugan.api.train.starting_file import StartingWeights, read_starting_weights
from frugan.api.weights import weights_file
from frugan.contract.family import Family, Piece
from frugan.data.wording import first_names
from frugan.engine.checkpoint import EMA_FILE, NETWORKS_FILE, OPTIMIZERS_FILE, load_networks, restore_optimizers
from frugan.engine.state import TrainingState
from frugan.errors import BadInput
from frugan.recipe.differences import Difference, differences
from frugan.recipe.recipe import Recipe

LEAST_SHARE = 0.05
"""Of all numbers must agree; with less a training would as good as start from nothing."""
PICKLES = frozenset({".pkl", ".pt", ".pth"})


def find_starting_weights(path: Path) -> None:
    """Refuse a path that no training can start from, before anything else is done.

    Raises:
        BadInput: nothing is there, or a pickle.
    """
    if path.suffix in PICKLES and path.is_file():
        out = path.with_suffix(".safetensors").name
        if path.suffix == ".pkl":
            cure = f"a snapshot of StyleGAN2 becomes weights with `frugan convert {path} {out} --from stylegan-pickle`"
        else:
            cure = (
                "the folder of a BigGAN-PyTorch checkpoint becomes weights with "
                f"`frugan convert {path.parent} {out} --from biggan-pytorch`"
            )
        raise BadInput(f"--init {path}: a pickle, which is not read here; {cure}")
    weights_file(path, say=quiet)


def start_from(
    path: Path,
    recipe: Recipe,
    state: TrainingState,
    class_names: Sequence[str],
    say: Say,
    classes: ClassStart | None = None,
) -> None:
    """Start networks from a run's networks, and averages from its averages.

    All of a network must be there, in its shape; of a family that starts in part, at least some pieces.

    Args:
        path: run, checkpoint or weights file; or a safetensors file of another program with the same names.
        class_names: of the run, in their order; empty: nobody knows.
        classes: what tables of classes start from; None: from the weights' own, which must be of as many.
        say: is given a line for what was taken, and what is new.

    Raises:
        BadInput: weights of another family, of other networks or of other classes.
    """
    if classes is not None and not recipe.kind.class_tables:
        raise BadInput(f"--init-classes: family {recipe.family} has no tables of classes that could start from others")
    contents = [(NETWORKS_FILE, state.networks)] + ([(EMA_FILE, state.ema.networks)] if state.ema.networks else [])
    for content, networks in contents:
        weights = read_starting_weights(path, content, say)
        averages = content == EMA_FILE
        if weights.recipe is not None and weights.recipe.family != recipe.family:
            raise BadInput(f"--init {path}: weights of a {weights.recipe.family} model; the recipe is {recipe.family}")
        as_many = len(weights.class_names) == len(class_names)  # of others, nothing has a place yet
        other_classes = class_names and as_many and weights.class_names != tuple(class_names)
        if not averages and classes is None and other_classes:
            say(
                f"--init {path}: its classes are {first_names(weights.class_names)}; this run's are "
                f"{first_names(class_names)}, which begin with the embeddings of those in their places"
            )
        anew = () if weights.recipe is None else recipe.kind.fresh_after(weights.recipe.objective, recipe.objective)
        changed = {} if weights.recipe is None else differences(weights.recipe, recipe)
        other = {*anew, *(name for change in changed.values() for name in change.restarts)}
        present = {name: n for name, n in networks.items() if name in weights.networks and name not in other}
        weights = numbered_as_here(weights, recipe)
        weights = with_classes(present, weights, recipe, classes, class_names, None if averages else say)
        taken = _take(present, weights, recipe, changed, "averages" if averages else "networks", say)
        if not averages:
            refuse_untaught(networks, taken, f"--init {path}")
        if fresh := sorted(set(networks) - set(present)):
            say(f"init: fresh: {', '.join(fresh)}")
        if anew and (weights.path.parent / OPTIMIZERS_FILE).is_file():
            for note in restore_optimizers(weights.path.parent, state, fresh):
                say(note)
            say("init: the pretrained networks' optimizer state is taken over as well")


def refuse_untaught(networks: Mapping[str, nn.Module], taken: Iterable[str] = (), where: str = "no --init") -> None:
    """Refuse to train on frozen layers that have learned nothing.

    Args:
        taken: "network.parameter" of what starts from other weights.

    Raises:
        BadInput: there are some.
    """
    known = set(taken)
    frozen = [
        key
        for name, network in networks.items()
        for key, parameter in ((f"{name}.{k}", p) for k, p in network.named_parameters())
        if not parameter.requires_grad and key not in known
    ]
    if frozen:
        raise BadInput(
            f"{where}: layers that the recipe freezes would stay as they were drawn at random: "
            f"{first_names(frozen)}; start from weights that have them (--init), or freeze none (the recipe's networks)"
        )


def _take(
    networks: Mapping[str, nn.Module],
    weights: StartingWeights,
    recipe: Recipe,
    changed: Mapping[str, Difference],
    kind: str,
    say: Say,
) -> list[str]:
    """Load networks, wholly or in part; names of the tensors that were taken."""
    tensors = {key: value for key, value in weights.tensors.items() if key.partition(".")[0] in networks}
    own = {f"{name}.{key}": value for name, n in networks.items() for key, value in n.state_dict().items()}
    differing = _differing(recipe, changed)
    same = own.keys() == tensors.keys() and all(tensors[key].shape == value.shape for key, value in own.items())
    mine = _by_piece(recipe.kind, own)
    if same or not mine:
        found = load_networks(networks, tensors, f"--init {weights.path}")
        say(f"init: {kind} {', '.join(networks) or 'none'}: {len(found)} tensors from {weights.path}")
        if differing and kind == "networks":
            say(f"init: {'; '.join(differing)}: to take all of it over, override networks.KEY=VALUE")
        return found
    agreeing, new = _agreement(mine, _by_piece(recipe.kind, tensors), own, tensors)
    taken = [key for keys in agreeing.values() for key in keys]
    if sum(own[key].numel() for key in taken) < LEAST_SHARE * sum(value.numel() for value in own.values()):
        why = f": {'; '.join(differing)}" if differing else ""
        agree = "hardly a layer agrees" if taken else "no layer agrees"
        raise BadInput(f"--init {weights.path}: these weights are of other networks; {agree}{why}")
    with torch.no_grad():
        for key in taken:
            own[key].copy_(tensors[key])
    for name in networks:
        say(f"init: {kind} {name}: {_in_words(name, agreeing, new)}; from {weights.path}")
    if differing and kind == "networks":
        say(f"init: {'; '.join(differing)}: to take more over, override networks.KEY=VALUE")
    return taken


def _differing(recipe: Recipe, changed: Mapping[str, Difference]) -> list[str]:
    """In what networks differ, as far as weights may not fit or would run otherwise."""
    passed_over = {"networks.classes"} if recipe.kind.class_tables else set()
    return [
        f"{key} is {change.before} there and {change.after} here"
        for key, change in changed.items()
        if key.startswith("networks.")
        and not key.startswith("networks.frozen_")
        and not key.endswith("_initialisation")
        and key not in passed_over
    ]


def _agreement(
    mine: Mapping[Piece, list[str]],
    theirs: Mapping[Piece, list[str]],
    own: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
) -> tuple[dict[Piece, list[str]], dict[Piece, list[str]]]:
    """Pieces of these networks with the names of their tensors: those that the given ones fit, and those new here."""
    fits = {
        piece
        for piece, keys in mine.items()
        if sorted(keys) == sorted(theirs.get(piece, ())) and all(own[k].shape == given[k].shape for k in keys)
    }
    return {p: keys for p, keys in mine.items() if p in fits}, {p: k for p, k in mine.items() if p not in fits}


def _by_piece(family: Family, keys: Iterable[str]) -> dict[Piece, list[str]]:
    found: defaultdict[Piece, list[str]] = defaultdict(list)
    for key in keys:
        if (piece := family.piece_of(key)) is not None:
            found[piece].append(key)
    return found


def _in_words(network: str, agreeing: Iterable[Piece], new: Iterable[Piece]) -> str:
    """Blocks of a network that were taken, those taken in part, and those that are new."""
    taken, fresh = (_layers(network, pieces) for pieces in (agreeing, new))
    whole = [block for block in taken if block not in fresh]
    words = [f"{', '.join(whole)} taken"] if whole else []
    words += [
        f"{block}: {', '.join(taken[block])} taken, {', '.join(fresh[block])} new" for block in taken if block in fresh
    ]
    none = [block for block in fresh if block not in taken]
    return "; ".join([*words, *([f"{', '.join(none)} new"] if none else [])])


def _layers(network: str, pieces: Iterable[Piece]) -> dict[str, list[str]]:
    """Block -> its layers among the pieces, in order."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for piece in pieces:
        if piece.network == network:
            found[piece.block].append(piece.layer)
    return dict(found)
