"""The reference of an evaluation: real pictures, or their moments from a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from frugan.contract.data import RunData
from frugan.data.digits import SPLIT_SEED, digits_set, split_digits
from frugan.data.formats.picture_set import PictureSet, relabelled
from frugan.data.formats.source import local_path
from frugan.data.run_data import other_classes, spoilt_by_change
from frugan.errors import BadInput
from frugan.evaluation.feature_scores import features_of
from frugan.evaluation.scorer import EvaluationOptions
from frugan.metrics.feature_network import FeatureNetwork
from frugan.metrics.inception import TORCHVISION
from frugan.metrics.moments_file import FileMoments, read_moments
from frugan.metrics.provenance import NONE
from frugan.progress import Progress, Say
from frugan.recipe.recipe import Recipe
from frugan.sampling.requests import known_classes
from frugan.setup.networks import Weights
from frugan.setup.run_data_sources import RealPictures, checkpoint_data, open_real

DIGITS = "digits"
"""Names the demo's unseen half where real pictures are asked for."""


@dataclass(frozen=True)
class Compared:
    """Real pictures and moments that scores compare with; empty on all ranks but the first."""

    pictures: PictureSet | None = None
    file_moments: FileMoments | None = None  # moments from a file, for the Fréchet distance
    doubt: str | None = None  # reason to doubt scores by these pictures; None: there is none
    # which pictures these are to the training: TRAINED_ON, HELD_OUT, or "all" of those given, where nobody knows
    split: str = "all"
    trained_on: PictureSet | None = None  # the training's other pictures, where these are those that it held out


def compared_with(
    weights: Weights,
    data: str | Path | PictureSet | None,
    options: EvaluationOptions,
    network: FeatureNetwork,
    say: Say,
    progress: Progress | None,
) -> Compared:
    """Open the real pictures, and read the moments, that scores of weights are asked against.

    Raises:
        BadInput: no such pictures, or of another size; no such moments, or of another feature network.
    """
    moments = _given(options.reference, network, weights.recipe, say) if options.reference is not None else None
    if data is None:
        return Compared(None, moments)
    known = checkpoint_data(weights.checkpoint)
    real = real_pictures(weights.recipe, data, say, progress, known)
    test = None if real.of_run is None else real.of_run.held_out
    pictures, part = real.given, weights.recipe.data.holdout
    if test is not None:
        spoilt = spoilt_by_change(part, known.values())
        if spoilt is not None:
            say(f"warning: {spoilt}")
        return Compared(test, moments, spoilt, HELD_OUT, real.of_run)
    if any(run_data.held_out == pictures.digest for run_data in known.values()):
        return Compared(pictures, moments, split=HELD_OUT)
    if any(run_data.held_out is None and run_data.digest == pictures.digest for run_data in known.values()):
        return Compared(pictures, moments, split=TRAINED_ON)
    if isinstance(part, int | float):
        say(
            f"data: the training held out data.holdout={part} of its pictures; whether these are they cannot be told, "
            f"or they are others: all {len(pictures):,} are taken"
        )
    doubt = other_classes(weights.class_names, pictures)
    if doubt is not None:
        say(f"warning: {doubt}")
        if len(names := weights.class_names) == len(pictures.class_names):  # scores of classes are kept by the run's
            pictures = relabelled(pictures, names, dict(zip(pictures.class_names, names, strict=True)))
    return Compared(pictures, moments, doubt)


def test_folder(recipe: Recipe, say: Say) -> Path:
    """The folder of test pictures that a recipe names, for scores where no other real pictures are named.

    Raises:
        BadInput: the recipe names none, or it is not there.
    """
    folder = recipe.data.holdout
    if not isinstance(folder, str):
        held = "" if folder is None else f", of which data.holdout={folder} are test pictures"
        raise BadInput(
            "no real pictures to compare with: add --data PICTURES (those of the training"
            f"{held}, or others), or --reference FILE.npz of their moments"
        )
    if not local_path(folder).exists():
        raise BadInput(f"data.holdout={folder}: the run's test pictures are not there; say where with --data FOLDER")
    say(f"data: {folder}, the test pictures that the recipe names (data.holdout)")
    return local_path(folder)


HELD_OUT = "held out"
"""Split of the pictures that a training never saw."""
TRAINED_ON = "trained on"
"""Split of the pictures that it saw, all of them."""
TRAINING_SET = "the training set"
"""Names the pictures of a training where it is known that they are these, whatever path they have."""
OF_THE_RUN = "the run's pictures"
"""Names those of which a part was held out, so that they are no training set."""


def are_unseen_digits(data: str | Path | PictureSet | None) -> bool:
    """Return whether the demo's unseen half is meant: its name, where no folder has that name."""
    return str(data) == DIGITS and not Path(DIGITS).exists()


def _given(path: Path, network: FeatureNetwork, recipe: Recipe, say: Say) -> FileMoments:
    """Moments from a file, and a line about where they come from.

    Raises:
        BadInput: as `read_moments`, or another network made them.
    """
    blank = features_of(network, recipe.resolution)
    moments = read_moments(path, blank.pooled.shape[1])
    if moments.network_digest is None:
        torchvisions = TORCHVISION.name
        hint = "" if network.name == torchvisions else f"; BigGAN-PyTorch's files go with --network {torchvisions}"
        say(
            f"reference: {path}, {moments.digest[:8]}: it does not say which network made it; its scores mean "
            f"something if that was {network.name}{hint}"
        )
        return moments
    if moments.network_digest != network.digest:
        raise BadInput(
            f"--reference {path}: made with another feature network ({moments.network_digest[:8]}; here {network.name} "
            f"{network.digest[:8]}); name that one with --network, or make the file again"
        )
    say(f"reference: {path}, {moments.digest[:8]}: {moments.pictures:,} pictures of {moments.resolution} pixels")
    side = recipe.resolution
    if moments.resolution != side:
        say(
            f"warning: those pictures have {moments.resolution} pixels, generated ones {side}: the distance counts that"
        )
    return moments


def real_pictures(
    recipe: Recipe,
    data: str | Path | PictureSet,
    say: Say,
    progress: Progress | None,
    known: Mapping[str, RunData] = MappingProxyType({}),
) -> RealPictures:
    """Open real pictures as a recipe takes them.

    Args:
        known: see `open_real`.

    Raises:
        BadInput: as `open_real`, or the recipe draws no pictures of its own.
    """
    if are_unseen_digits(data):
        known_classes(recipe)
        (need,) = recipe.sources.values()
        data = unseen_digits(need.resolution, say)
    return open_real(recipe, data, say, progress, known)


def unseen_digits(resolution: int, say: Say) -> PictureSet:
    """The half of the digits that the demo does not train on."""
    _, unseen = split_digits(SPLIT_SEED)
    say(f"data: {len(unseen)} handwritten digits that the demo keeps unseen")
    return digits_set(resolution, unseen)


def described(data: str | Path | PictureSet | None) -> str:
    """Where the real pictures are, for the provenance."""
    if data is None:
        return NONE
    return "given" if isinstance(data, PictureSet) else str(data)
