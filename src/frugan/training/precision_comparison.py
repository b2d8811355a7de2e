"""Comparison of the same short training in two precisions."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from frugan.accelerator.precision import resolve_precision
from frugan.engine.ranks.place import Place
from frugan.engine.run.events import Event, read_events
from frugan.engine.run.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.progress import COMPARED_STEPS, Progress, Say, quiet
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.devices import choose_device
from frugan.setup.run_data_sources import Data, open_sources
from frugan.training.block_errors import BlockError, block_errors
from frugan.training.run import TrainingOptions
from frugan.training.training import train

WINDOWS = 10
"""Means over a tenth of the steps are compared: single steps of a GAN part by chance alone."""
NOTABLE = 0.1
_DECAYS = ("beta2", "decay")
"""Names of the settings by which optimizers remember the size of gradients."""


@dataclass(frozen=True)
class Drift:
    """Difference of one logged curve between two trainings."""

    phase: str  # phase of the curve
    what: str  # name of a loss term, or "gradient norm"
    first: float  # relative difference of the means over the first tenth of the steps
    last: float  # relative difference of the means over the last tenth
    notable_from: int | None  # step from which on the difference stays above a tenth; None: it does not


@dataclass(frozen=True)
class PrecisionComparison:
    """Result of a precision comparison."""

    runs: tuple[Path, Path]  # both run folders
    precisions: tuple[str, str]  # their precisions
    drifts: tuple[Drift, ...]  # the largest last
    skipped: tuple[int, int]  # updates skipped as not finite, in each run
    advice: str | None  # advice on where to look; None: nothing drifted
    block: BlockError | None  # block whose output half precision changes most; None: the networks name no blocks
    try_first: str | None  # override that keeps the block in fp32


def compare_precision(
    recipe: str | Recipe,
    data: Data,
    out: str | Path,
    precision: str,
    *,
    steps: int = COMPARED_STEPS,
    overrides: Sequence[str] = (),
    options: TrainingOptions | None = None,
    say: Say = print,
    show: Callable[[Event], None] = quiet,
    progress: Progress | None = None,
) -> PrecisionComparison:
    """Train the first steps twice, in the recipe's precision and in another: same weights, pictures and random inputs.

    Args:
        out: folder for the two runs.
        precision: precision of the second run: "fp32", "fp16" or "bf16".
        steps: steps of each run.

    Raises:
        BadInput: there are fewer than 20 steps, the runs exist already, or both precisions are equal.
    """
    folders = _new_folders(Path(out), precision, steps)
    loaded = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
    device, _ = choose_device((options or TrainingOptions()).device)
    recipe_precision = _recipe_precision(loaded, precision, device)
    for folder, words in zip(folders, ((), (f"training.precision={precision}",)), strict=True):
        say(f"comparison: {folder}")
        result = train(
            _shortened(loaded, steps, words), data, folder, options=options, say=say, show=show, progress=progress
        )
        if not result.finished:
            raise BadInput(f"{folder}: stopped before its {steps} steps; nothing to compare")
    (curves, skipped), (other_curves, other_skipped) = map(_curves, folders)
    drifts = sorted(
        (_drift(key, curve, other_curves[key]) for key, curve in curves.items() if key in other_curves),
        key=lambda drift: drift.last,
    )
    half = recipe_precision if recipe_precision != "fp32" else precision
    exact = folders[1] if precision == "fp32" else folders[0]
    sources = open_sources(loaded, data, quiet, progress)
    errors = block_errors(_shortened(loaded, steps, ()), sources, RunFolder(exact), half, device)
    worst = errors[0] if errors else None
    return PrecisionComparison(
        runs=folders,
        precisions=(recipe_precision, precision),
        drifts=tuple(drifts),
        skipped=(skipped, other_skipped),
        advice=_advice(loaded, drifts, half),
        block=worst,
        try_first=None if worst is None else _in_fp32(loaded, worst.block),
    )


def _new_folders(out: Path, precision: str, steps: int) -> tuple[Path, Path]:
    """Return the folders of the two runs.

    Raises:
        BadInput: the comparison cannot be run as requested, or one of the folders is a run already.
    """
    if not Place.here().alone:
        raise BadInput("--compare-precision: needs a single process; run it without torchrun")
    if steps < 2 * WINDOWS:
        raise BadInput(f"--compare-steps {steps}: expected at least {2 * WINDOWS}")
    if precision not in ("fp32", "fp16", "bf16"):
        raise BadInput(f"--compare-precision {precision}: expected fp32, fp16 or bf16")
    folders = (out / "own", out / f"in-{precision}")
    for folder in folders:
        if RunFolder(folder).exists:
            raise BadInput(f"{folder}: a comparison is there already; choose another --out")
    return folders


def _in_fp32(recipe: Recipe, block: str) -> str:
    """Return the override that keeps one more block in fp32."""
    return f"training.fp32_blocks={json.dumps([*recipe.training.fp32_blocks, block])}"


def _recipe_precision(recipe: Recipe, other: str, device: torch.device) -> str:
    """The precision that a recipe has on a device.

    Raises:
        BadInput: the other one is the same, or none that the device has.
    """
    recipe_precision = resolve_precision(recipe.training.precision, device).name
    if recipe_precision == other:
        raise BadInput(f"--compare-precision {other}: the recipe's own precision here already; choose another")
    if other == "bf16" and (instead := resolve_precision("bf16", device)).name != "bf16":
        raise BadInput(f"--compare-precision bf16: {instead.warning}; choose another")
    return recipe_precision


def _shortened(recipe: Recipe, steps: int, words: Sequence[str]) -> Recipe:
    """The recipe with so few steps, no scores, and every step's gradients reported."""
    values: dict[str, Any] = recipe.model_dump(mode="json")
    values["training"]["duration"] = f"{steps} steps"
    values["evaluation"]["every"] = None
    values["saving"] |= {"checkpoint_every": f"{steps} steps", "snapshot_every": f"{steps} steps"}
    for word in words:
        key, _, value = word.partition("=")
        section, field = key.split(".")
        values[section][field] = value
    return Recipe.model_validate(values)


_Curve = Mapping[int, float]
"""Value at each step at which a phase ran: some run now and then."""


def _curves(folder: Path) -> tuple[dict[tuple[str, str], _Curve], int]:
    """(phase, what) -> its values; and updates skipped."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    skipped = 0
    for event in read_events(RunFolder(folder).events):
        if event["event"] != "step":
            continue
        for phase, entry in event["phases"].items():
            for what, value in {**entry["terms"], "gradient norm": entry["gradient_norm"]}.items():
                curves.setdefault((phase, what), {})[event["step"]] = float(value)
            skipped += entry["skipped"]
    return dict(curves), skipped


def _drift(key: tuple[str, str], first_curve: _Curve, other_curve: _Curve) -> Drift:
    """Compare two curves window by window; what is not finite is left out."""
    steps = [step for step in first_curve if step in other_curve]
    one, other = (np.array([curve[step] for step in steps]) for curve in (first_curve, other_curve))
    bounds = np.linspace(0, len(steps), WINDOWS + 1).astype(int)
    size = _mean(np.abs(other))
    apart = []
    for first, after in pairwise(bounds):
        mine, theirs = (_mean(curve[first:after]) for curve in (one, other))
        # losses pass through zero: beside their usual size, not their own
        apart.append(abs(mine - theirs) / max(abs(theirs), 0.1 * size, 1e-12))
    notable = next((i for i in range(WINDOWS) if all(a > NOTABLE for a in apart[i:])), None)
    step = None if notable is None else steps[bounds[notable]]
    return Drift(*key, apart[0], apart[-1], step)


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean of the finite values; 0 if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else 0.0


def _advice(recipe: Recipe, drifts: Sequence[Drift], half: str) -> str | None:
    """Name what to look at first: the optimizer of the phase that drifted first."""
    drifted = [drift for drift in drifts if drift.notable_from is not None]
    if not drifted:
        return None
    worst = min(drifted, key=lambda drift: (drift.notable_from or 0, -drift.last))
    phase = next(p for p in recipe.kind.phases(recipe.networks, recipe.objective) if p.name == worst.phase)
    settings = recipe.optimizer_settings()[phase.optimizer]
    names = ("learning_rate", *_DECAYS, "eps")
    shown = ", ".join(f"{name} = {getattr(settings, name)}" for name in names if hasattr(settings, name))
    decay = next((name for name in _DECAYS if hasattr(settings, name)), None)
    longer = f", or raise {decay} so that {half}'s rounding averages out over more steps" if decay else ""
    return (
        f"phase {worst.phase} drifts first: its {worst.what} differs by more than {NOTABLE:.0%} from step "
        f"{worst.notable_from} on. Look at optimizers.{phase.optimizer} ({shown}): halve the learning rate{longer}; "
        "two GAN runs part by chance too, so repeat it with another training.seed before you believe it"
    )
