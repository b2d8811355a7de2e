"""`--init`: what a new run takes over from weights that were trained before, and what of it begins anew."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from frugan.api.progress import Say
from frugan.api.train.class_tables import ClassStart, parse_class_start
from frugan.api.train.made_to_fit import numbered_as_here, with_classes
from frugan.api.train.starting_file import StartingWeights, read_starting_weights
from frugan.api.weights import Weights
from frugan.contract.family import Family, Piece
from frugan.data.wording import first_names
from frugan.engine.checkpoint import OPTIMIZERS_FILE, load_networks, restore_optimizers
from frugan.engine.state import TrainingState
from frugan.errors import BadInput
from frugan.recipe.differences import Difference, differences
from frugan.recipe.recipe import Recipe

LEAST_SHARE = 0.05
"""Of all numbers must agree; with less a training would as good as start from nothing."""
PICKLES = frozenset({".pkl", ".pt", ".pth"})


@dataclass(frozen=True)
class Start:
    """What a new run starts from.

    Attributes:
        path: as it was named.
        weights: opened, verified; read when the run begins.
        classes: what tables of classes start from; None: from the weights' own, which must be of as many.
        damage: what is to be told of checkpoints that were passed over.
    """

    path: Path
    weights: Weights
    classes: ClassStart | None = None
    damage: Sequence[str] = ()

    @classmethod
    def of(cls, init: str | Path | None, classes: str | None) -> "Start | None":
        """Open what `--init` names, and read `--init-classes`, before anything else is done.

        Raises:
            BadInput: nothing is there, or a pickle; or the word or the file that it names is none.
        """
        if init is None:
            if classes is not None:
                raise BadInput(f"--init-classes {classes}: goes with --init, whose classes it is about")
            return None
        path, damage = Path(init), list[str]()
        _refuse_pickle(path)
        weights = Weights.open(path, damage.append)
        return cls(path, weights, None if classes is None else parse_class_start(classes), damage)

    def weights_now(self, say: Say) -> Weights:
        """The weights; where their run went on since and has deleted that checkpoint, those of its newest one."""
        if not self.weights.path.is_file():
            return Weights.open(self.path, say)
        for line in self.damage:
            say(line)
        return self.weights


def _refuse_pickle(path: Path) -> None:
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
    before = trained.recipe if trained.ours else None
    if before is not None and before.family != recipe.family:
        raise BadInput(f"--init {start.path}: weights of a {before.family} model; the recipe is {recipe.family}")
    if before is not None and start.classes is None:
        _tell_other_classes(f"--init {start.path}", trained.class_names, class_names, say)

    # Which networks begin anew, whatever the weights hold.
    anew = () if before is None else recipe.kind.fresh_after(before.objective, recipe.objective)
    changed = {} if before is None else differences(before, recipe)
    other = {*anew, *(name for change in changed.values() for name in change.restarts)}

    fit = _Fit(start, recipe, class_names, _differing(recipe, changed), other, say)
    taken, fresh = fit.take("networks", state.networks, read_starting_weights(trained, averages=False))
    refuse_untaught(state.networks, taken, f"--init {start.path}")
    if fresh:
        say(f"init: fresh: {', '.join(fresh)}")
    if anew and (trained.path.parent / OPTIMIZERS_FILE).is_file():
        for note in restore_optimizers(trained.path.parent, state, fresh):
            say(note)
        say("init: the pretrained networks' optimizer state is taken over as well")
    if state.ema.networks:
        _, fresh = fit.take("averages", state.ema.networks, read_starting_weights(averaged, averages=True))
        if fresh:
            say(f"init: fresh: {', '.join(fresh)}")


def _tell_other_classes(where: str, theirs: Sequence[str], ours: Sequence[str], say: Say) -> None:
    """Say which classes these begin with, where there are as many; else nothing has a place yet."""
    if ours and len(theirs) == len(ours) and tuple(theirs) != tuple(ours):
        say(
            f"{where}: its classes are {first_names(theirs)}; this run's are {first_names(ours)}, which begin with the "
            "embeddings of those in their places"
        )


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


@dataclass(frozen=True)
class _Fit:
    """Takes over what agrees of weights.

    Attributes:
        start, recipe, class_names, say: as of `start_from`.
        differing: in what the networks differ, in words.
        other: networks that begin anew.
    """

    start: Start
    recipe: Recipe
    class_names: Sequence[str]
    differing: Sequence[str]
    other: Collection[str]
    say: Say

    def take(
        self, kind: str, networks: Mapping[str, nn.Module], weights: StartingWeights
    ) -> tuple[list[str], list[str]]:
        """Load networks, wholly or in part: names of the tensors that were taken, and of networks that are fresh.

        Args:
            kind: "networks" or "averages".
        """
        present = {name: n for name, n in networks.items() if name in weights.networks and name not in self.other}
        weights, told = numbered_as_here(weights, self.recipe), self.say if kind == "networks" else None
        weights = with_classes(present, weights, self.recipe, self.start.classes, self.class_names, told)
        tensors = {key: value for key, value in weights.tensors.items() if key.partition(".")[0] in present}
        own = {f"{name}.{key}": value for name, n in present.items() for key, value in n.state_dict().items()}
        family = self.recipe.kind
        same = own.keys() == tensors.keys() and all(tensors[key].shape == value.shape for key, value in own.items())
        mine = _by_piece(family, own)
        if same or not mine:
            taken = load_networks(present, tensors, f"--init {weights.path}")
            self.say(f"init: {kind} {', '.join(present) or 'none'}: {len(taken)} tensors from {weights.path}")
            more = "all of it"
        else:
            agreeing, new = _agreement(mine, _by_piece(family, tensors), own, tensors)
            taken = [key for keys in agreeing.values() for key in keys]
            self._refuse_too_little(taken, own, weights.path)
            with torch.no_grad():
                for key in taken:
                    own[key].copy_(tensors[key])
            for name in present:
                self.say(f"init: {kind} {name}: {_in_words(name, agreeing, new)}; from {weights.path}")
            more = "more"
        if self.differing and kind == "networks":
            self.say(f"init: {'; '.join(self.differing)}: to take {more} over, override networks.KEY=VALUE")
        return taken, sorted(set(networks) - set(present))

    def _refuse_too_little(self, taken: Sequence[str], own: Mapping[str, Tensor], path: Path) -> None:
        if sum(own[key].numel() for key in taken) < LEAST_SHARE * sum(value.numel() for value in own.values()):
            why = f": {'; '.join(self.differing)}" if self.differing else ""
            agree = "hardly a layer agrees" if taken else "no layer agrees"
            raise BadInput(f"--init {path}: these weights are of other networks; {agree}{why}")


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
