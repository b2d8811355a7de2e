"""Weights that a new run starts from (`--init`): matched to its networks, adapted, or refused."""

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from frugan.contract.family import Family, Piece
from frugan.data.parts import whole
from frugan.engine.run.checkpoint import OPTIMIZERS_FILE, load_networks, network_tensors, restore_optimizers
from frugan.engine.state.state import TrainingState
from frugan.errors import BadInput
from frugan.progress import Say
from frugan.recipe.overrides import Difference, differences
from frugan.recipe.recipe import Recipe
from frugan.recipes import shipped_weights
from frugan.setup.networks import Weights
from frugan.setup.recipe_setup import frozen_parameters
from frugan.training.class_start import CHOICES, ClassStart, How, KnownClasses, parse_class_start, read_class_map
from frugan.wording import count, first_names

AVERAGED = "_ema"
"""Ends a network's name in files of other programs that hold its average beside it."""


@dataclass(frozen=True)
class StartingWeights:
    """Contents of a file that a training can start from."""

    path: Path  # the file
    tensors: dict[str, Tensor]  # "network.parameter" -> tensor
    recipe: Recipe | None  # recipe that they were trained by; None: another program trained them
    class_names: tuple[str, ...] = ()  # meaning of the labels; empty: unknown

    @property
    def networks(self) -> set[str]:
        """Networks that it holds."""
        return {key.partition(".")[0] for key in self.tensors}


def read_starting_weights(weights: Weights, *, averages: bool) -> StartingWeights:
    """Read a file; averages of another program's file are those that it names so.

    Raises:
        BadInput: a damaged file.
    """
    if weights.ours:
        return StartingWeights(weights.path, weights.read(), weights.recipe, weights.class_names)
    tensors = weights.read()
    averaged = {
        f"{name.removesuffix(AVERAGED)}.{rest}": value
        for (name, _, rest), value in ((key.partition("."), value) for key, value in tensors.items())
        if name.endswith(AVERAGED)
    }
    kept = {key: value for key, value in tensors.items() if not key.partition(".")[0].endswith(AVERAGED)}
    return StartingWeights(weights.path, kept | averaged if averages else averaged | kept, None)


@torch.no_grad()
def with_class_tables(
    tensors: Mapping[str, Tensor],
    current: Mapping[str, Tensor],
    dimensions: Mapping[str, int],
    how: How,
    chosen: Sequence[int],
) -> dict[str, Tensor]:
    """Return the weights' tensors with class tables resized to this run's classes.

    Args:
        tensors: "network.parameter" of the weights.
        current: tensors of this run's networks, as initialised.
        dimensions: of each table the dimension that runs over classes.
        how: what they start from.
        chosen: of copy: the weights' class for each class of the run.
    """
    result = dict(tensors)
    for key, dimension in dimensions.items():
        if key not in tensors or key not in current:
            continue
        count = current[key].shape[dimension]
        if how == "fresh":
            result[key] = current[key].detach().clone()
        elif how == "mean":
            mean = tensors[key].mean(dimension, keepdim=True)
            result[key] = mean.repeat_interleave(count, dimension)
        else:
            result[key] = tensors[key].index_select(dimension, torch.tensor(list(chosen)))
    return result


def numbered_as_here(weights: StartingWeights, recipe: Recipe) -> StartingWeights:
    """The weights with the names that their tensors have in networks of this resolution."""
    if weights.recipe is None:
        return weights
    theirs, ours = weights.recipe.networks, recipe.networks
    named = {key: recipe.kind.counterpart(key, theirs, ours) for key in weights.tensors}
    return replace(weights, tensors={here: weights.tensors[key] for key, here in named.items() if here is not None})


def with_channels(weights: StartingWeights, current: Mapping[str, Tensor], recipe: Recipe) -> StartingWeights:
    """The weights with layers at the pictures for as many colour channels as this run has, grey or three.

    A grey picture is one with three equal channels: layers that take pictures become sums over them, or shares; layers
    that make pictures become their mean, or make the same in each.
    """
    if weights.recipe is None:
        return weights
    tensors = dict(weights.tensors)
    for key, value in weights.tensors.items():
        at = recipe.kind.picture_dimension(key, recipe.networks) if key in current else None
        if at is None or value.shape[at] == (ours := current[key].shape[at]):
            continue
        mean = value.mean(at, keepdim=True)
        tensors[key] = (mean * (value.shape[at] / ours if at else 1)).repeat_interleave(ours, at)
    return replace(weights, tensors=tensors)


def unknown_classes(where: str, theirs: int, ours: int) -> BadInput:
    """Return the error for weights with another number of classes and no --init-classes."""
    return BadInput(
        f"{where}: these weights know {count(theirs, 'class')}, and this run has {ours:,}; say what their tables start "
        f"from: {CHOICES}"
    )


def with_classes(
    networks: Mapping[str, nn.Module],
    weights: StartingWeights,
    recipe: Recipe,
    classes: ClassStart | None,
    class_names: Sequence[str],
    say: Say | None,
) -> StartingWeights:
    """Return the weights with class tables resized to this run's classes.

    Raises:
        BadInput: they know another number of classes, and nobody said what to do; or a map of classes is wrong.
    """
    if not recipe.kind.class_tables:
        return weights
    current = network_tensors(networks)
    every = {key: recipe.kind.class_dimension(key, recipe.networks) for key in current}
    dimensions = {key: at for key, at in every.items() if at is not None and key in weights.tensors}
    sizes = _table_sizes(weights, current, dimensions)
    if classes is None:
        if sizes is not None and sizes[0] != sizes[1]:
            raise unknown_classes(f"--init {weights.path}", *sizes)
        return weights
    if sizes is None:
        raise BadInput(
            f"--init-classes: no table of classes is both in {weights.path} and in this run's networks; leave it out"
        )
    theirs, ours = sizes
    chosen: list[int] = []
    if classes.map is not None:
        chosen = read_class_map(classes.map, KnownClasses(ours, class_names), KnownClasses(theirs, weights.class_names))
    if say is not None:
        how = {
            "copy": f"from those of the weights' {theirs:,} that {classes.map} names",
            "mean": f"alike, in the middle of the {theirs:,} that the weights know",
            "fresh": f"from noise, as the weights know {theirs:,} others",
        }
        say(f"init: {count(ours, 'class')} {'begins' if ours == 1 else 'begin'} {how[classes.how]}")
    tensors = with_class_tables(weights.tensors, current, dimensions, classes.how, chosen)
    return replace(weights, tensors=tensors)


def _table_sizes(
    weights: StartingWeights, current: Mapping[str, Tensor], dimensions: Mapping[str, int]
) -> tuple[int, int] | None:
    """Return the class counts of the weights' tables and of this run's; None: they share no table.

    Raises:
        BadInput: they are of several numbers of classes.
    """
    sizes = {
        (weights.tensors[key].shape[at], current[key].shape[at])
        for key, at in dimensions.items()
        if weights.tensors[key].ndim == current[key].ndim
    }
    if len(sizes) > 1:
        several = sorted(theirs for theirs, _ in sizes)
        raise BadInput(f"--init {weights.path}: its tables are of several numbers of classes: {several}")
    return next(iter(sizes), None)


LEAST_SHARE = 0.05
"""Smallest share of all numbers that must be taken over; with less, a training would nearly start from scratch."""
CLASSES_OF_SHIPPED = "mean"
"""--init-classes of weights that ship, where nobody says another."""
FROM_NOISE = "none"
"""--init's word for random first weights, where others would be chosen."""
PICKLES = frozenset({".pkl", ".pt", ".pth"})


def init_name(init: str | Path) -> str:
    """Return what `--init` names in a way that holds in any folder: a whole path, or one of frugan's own names."""
    is_own = not Path(init).exists() and shipped_weights(str(init)) is not None
    return str(init) if is_own or str(init) == FROM_NOISE else str(Path(init).resolve())


@dataclass(frozen=True)
class Start:
    """Source of a new run's weights."""

    path: Path  # as it was named; of weights that ship with a recipe, its name
    weights: Weights  # opened, verified; read when the run begins
    # what tables of classes start from; None: from the weights' own, which must be of as many
    classes: ClassStart | None = None
    damage: Sequence[str] = ()  # lines on damaged checkpoints that were skipped
    shipped: bool = False  # with the recipe that `path` names
    told: bool = False  # a line on the choice of these weights has said that they are taken

    @classmethod
    def of(cls, init: str | Path | None, classes: str | None, *, ships: bool = False) -> "Start | None":
        """Open what `--init` names, and read `--init-classes`, before anything else is done.

        Args:
            init: a path; or a recipe with weights that ship, where there is no such path.
            classes: the value of `--init-classes`.
            ships: it is a recipe, whatever paths there are.

        Raises:
            BadInput: nothing is there, or a pickle; or the word or the file that it names is none.
        """
        if init is None or str(init) == FROM_NOISE:
            if classes is not None:
                raise BadInput(f"--init-classes {classes}: goes with --init, whose classes it is about")
            return None
        path, damage = Path(init), list[str]()
        _refuse_pickle(path)
        shipped = shipped_weights(str(init)) if ships or not path.exists() else None
        weights = Weights.open(shipped or path, damage.append)
        how = None if classes is None else parse_class_start(classes)
        return cls(path, weights, how, damage, shipped=shipped is not None)

    def weights_now(self, say: Say) -> Weights:
        """The weights; where their run went on since and has deleted that checkpoint, those of its newest one."""
        if not self.weights.path.is_file():
            return Weights.open(self.path, say)
        for line in self.damage:
            say(line)
        return self.weights


def recipe_to_start_from(init: str | Path | None) -> Recipe | None:
    """The recipe of the weights that `--init` names; None: none are named.

    Raises:
        BadInput: as `Start.of`; they are another program's; or they are not trained on a set of pictures, for which a
            recipe could be chosen.
    """
    start = Start.of(init, None)
    recipe = None if start is None else start.weights.recipe
    if recipe is not None and recipe.shows_given:
        raise BadInput(
            f"--init {init}: weights of {recipe.family}, which are not trained on a set of pictures; name a recipe"
        )
    if recipe is None:
        return None
    return recipe.model_copy(update={"data": whole(recipe.data)})  # it has parts of other pictures


def _refuse_pickle(path: Path) -> None:
    if path.suffix in PICKLES and path.is_file():
        source, out = shlex.quote(str(path)), shlex.quote(path.with_suffix(".safetensors").name)
        if path.suffix == ".pkl":
            cure = (
                f"a snapshot of StyleGAN2 becomes weights with `frugan convert {source} {out} --from stylegan-pickle`, "
                "one of R3GAN with --from r3gan-pickle"
            )
        else:
            cure = (
                "the folder of a BigGAN-PyTorch checkpoint becomes weights with "
                f"`frugan convert {shlex.quote(str(path.parent))} {out} --from biggan-pytorch`"
            )
        raise BadInput(f"--init {path}: a pickle, which is not read here; {cure}")


def start_from(start: Start, recipe: Recipe, state: TrainingState, class_names: Sequence[str], say: Say) -> None:
    """Start networks from a run's networks, and averages from its averages.

    All of a network must be there, in its shape; of a family that starts in part, at least some pieces.

    Args:
        start: from a run, checkpoint or weights file; or a safetensors file of another program with the same names.
        class_names: of the run, in their order; empty: nobody knows.
        say: is given a line for what was taken, and what is new.

    Raises:
        BadInput: weights of another family, of other networks or of other classes.
    """
    if start.classes is not None and not recipe.kind.class_tables:
        raise BadInput(f"--init-classes: family {recipe.family} has no tables of classes that could start from others")
    averaged = start.weights_now(say)
    trained = averaged.trained

    # Which networks begin anew, whatever the weights hold.
    anew: Sequence[str] = ()
    over = False  # a preliminary training is
    changed: Mapping[str, Difference] = {}
    if trained.ours:
        before = trained.recipe
        if before.family != recipe.family:
            raise BadInput(f"--init {start.path}: weights of a {before.family} model; the recipe is {recipe.family}")
        if start.classes is None:
            _tell_other_classes(f"--init {start.path}", trained.class_names, class_names, say)
        anew = recipe.kind.fresh_after(before.objective, recipe.objective)
        over = bool(anew) or (before.preliminary is not None and recipe.preliminary is None)
        changed = differences(before, recipe)
    other = {*anew, *(name for change in changed.values() for name in change.restarts)}

    fit = _Fit(start, recipe, class_names, _differing(recipe, changed), other, say)
    taken, fresh = fit.take("networks", state.networks, read_starting_weights(trained, averages=False))
    known = set(taken)
    refuse_untrained([key for key in frozen_parameters(state.networks) if key not in known], f"--init {start.path}")
    _tell_fresh(fresh, say)
    if over and (trained.path.parent / OPTIMIZERS_FILE).is_file():
        for note in restore_optimizers(trained.path.parent, state, set(fresh) - set(anew)):
            say(note)
        say("init: the pretrained networks' optimizer state is taken over as well")
    if state.ema.networks:
        _, fresh_averages = fit.take("averages", state.ema.networks, read_starting_weights(averaged, averages=True))
        _tell_fresh([name for name in fresh_averages if name not in fresh], say)


def _tell_fresh(names: Sequence[str], say: Say) -> None:
    if names:
        say(f"init: fresh: {', '.join(names)}")


def _tell_other_classes(where: str, theirs: Sequence[str], ours: Sequence[str], say: Say) -> None:
    """Say which classes these begin with, where there are as many; else nothing has a place yet."""
    if ours and len(theirs) == len(ours) and tuple(theirs) != tuple(ours):
        say(
            f"{where}: its classes are {first_names(theirs)}; this run's are {first_names(ours)}, which begin with the "
            "embeddings of those in their places"
        )


def refuse_untrained(frozen: Sequence[str], where: str = "no --init") -> None:
    """Refuse frozen layers with random weights.

    Args:
        frozen: "network.parameter" of those that no other weights give.

    Raises:
        BadInput: there are some.
    """
    if frozen:
        raise BadInput(
            f"{where}: layers that the recipe freezes would stay as they were drawn at random: {first_names(frozen)}; "
            "start from weights that have them (--init; docs/public-weights.md says where some are to be had), or "
            "freeze none (the recipe's networks)"
        )


@dataclass(frozen=True)
class _Fit:
    """Copies the matching part of some weights into networks."""

    start: Start
    recipe: Recipe
    class_names: Sequence[str]
    differing: Sequence[str]  # differences of the networks, in words
    other: Collection[str]  # networks that begin anew
    say: Say

    def take(
        self, kind: str, networks: Mapping[str, nn.Module], weights: StartingWeights
    ) -> tuple[list[str], list[str]]:
        """Load networks, wholly or in part: names of the tensors that were taken, and of networks that are fresh.

        Args:
            kind: "networks" or "averages".
        """
        present = {name: n for name, n in networks.items() if name in weights.networks and name not in self.other}
        if not present and kind == "averages":
            return [], sorted(networks)
        told = self.say if kind == "networks" and not self.start.told else None
        weights = numbered_as_here(weights, self.recipe)
        weights = with_classes(present, weights, self.recipe, self.start.classes, self.class_names, told)
        current = network_tensors(present)
        weights = with_channels(weights, current, self.recipe)
        tensors = {key: tensor for key, tensor in weights.tensors.items() if key.partition(".")[0] in present}
        same = current.keys() == tensors.keys() and all(
            tensors[key].shape == value.shape for key, value in current.items()
        )
        mine = _by_piece(self.recipe.kind, current)
        if same or not mine:
            taken = load_networks(present, tensors, f"--init {weights.path}")
            if told is not None:
                source = f"those that ship with {self.start.path}" if self.start.shipped else str(weights.path)
                told(f"init: all weights of {', '.join(present) or 'no network'} from {source}")
            more = "all of it"
        else:
            agreeing, new = _agreement(mine, _by_piece(self.recipe.kind, tensors), current, tensors)
            taken = self._take_agreeing(agreeing, current, tensors, weights.path)
            for name in present:
                self.say(f"init: {kind} {name}: {_in_words(name, agreeing, new)}; from {weights.path}")
            more = "more"
        if self.differing and told is not None:
            self.say(f"init: {'; '.join(self.differing)}: to take {more} over, override networks.KEY=VALUE")
        return taken, sorted(set(networks) - set(present))

    @torch.no_grad()
    def _take_agreeing(
        self,
        agreeing: Mapping[Piece, list[str]],
        current: Mapping[str, Tensor],
        tensors: Mapping[str, Tensor],
        path: Path,
    ) -> list[str]:
        """Copy pieces that agree, if they are enough: names of their tensors."""
        taken = [key for keys in agreeing.values() for key in keys]
        if sum(current[key].numel() for key in taken) < LEAST_SHARE * sum(value.numel() for value in current.values()):
            why = f": {'; '.join(self.differing)}" if self.differing else ""
            agree = "hardly a layer agrees" if taken else "no layer agrees"
            raise BadInput(f"--init {path}: these weights are of other networks; {agree}{why}")
        for key in taken:
            current[key].copy_(tensors[key])
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
    current: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> tuple[dict[Piece, list[str]], dict[Piece, list[str]]]:
    """Pieces of these networks with the names of their tensors: those that the given ones fit, and those new here."""
    fits = {
        piece
        for piece, keys in mine.items()
        if sorted(keys) == sorted(theirs.get(piece, ())) and all(current[k].shape == tensors[k].shape for k in keys)
    }
    return {p: keys for p, keys in mine.items() if p in fits}, {p: k for p, k in mine.items() if p not in fits}


def _by_piece(family: Family, keys: Iterable[str]) -> dict[Piece, list[str]]:
    keys_of: defaultdict[Piece, list[str]] = defaultdict(list)
    for key in keys:
        if (piece := family.piece_of(key)) is not None:
            keys_of[piece].append(key)
    return keys_of


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
    layers: defaultdict[str, list[str]] = defaultdict(list)
    for piece in pieces:
        if piece.network == network:
            layers[piece.block].append(piece.layer)
    return dict(layers)
