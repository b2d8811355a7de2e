"""`train`: from a recipe and pictures to a run, new or resumed."""

import json
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frugan.api.devices import choose_device, choose_plan, normalisation_group
from frugan.api.networks import (
    EMA_FILE,
    NETWORKS_FILE,
    build_networks,
    read_weights,
    weights_file,
    weights_metadata,
)
from frugan.api.pictures import Progress, Say, check_needs, feeding, named_sources, open_pictures
from frugan.data.picture_set import PictureSet
from frugan.engine.checkpoint import load_networks, newest_whole, restore
from frugan.engine.events import Event, EventLog
from frugan.engine.interrupt import stop_on_signals
from frugan.engine.loop import Clock, Loop
from frugan.engine.plan import Plan
from frugan.engine.precision import accumulate_in_fp32, resolve_precision
from frugan.engine.run_folder import RunFolder
from frugan.engine.state import TrainingState, create_state
from frugan.engine.step import Step
from frugan.engine.streams import Streams
from frugan.engine.tensor_files import write_json
from frugan.engine.working_weights import working_weights
from frugan.errors import BadInput
from frugan.folders import Folders
from frugan.nn.spectral_norm import top_singular_values
from frugan.phase import Phase
from frugan.recipe import Recipe, differences, load_recipe, parse_recipe
from frugan.report.sheets import write_sheet


@dataclass(frozen=True)
class TrainingOptions:
    """How to run a recipe on this machine; none of it changes the result beyond rounding.

    Attributes:
        micro_batch: samples in one forward; None: one normalisation group.
        recompute: recompute every block that may be.
        ema_on_host: keep the average in host memory.
        device: "auto", "cpu", "cuda" or "cuda:1".
    """

    micro_batch: int | None = None
    recompute: bool = False
    ema_on_host: bool = False
    device: str = "auto"


@dataclass(frozen=True)
class TrainingResult:
    """What `train` left.

    Attributes:
        run: the run folder.
        step: steps done.
        finished: whether the recipe's duration is over.
        seconds: of training, over all resumptions.
    """

    run: Path
    step: int
    finished: bool
    seconds: float


def _quiet(_: object) -> None:
    """Show nothing."""


def train(
    recipe: str | Recipe,
    data: str | Path | Mapping[str, str | Path] | Mapping[str, PictureSet],
    out: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    init: str | Path | None = None,
    options: TrainingOptions | None = None,
    say: Say = _quiet,
    show: Callable[[Event], None] = _quiet,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train a recipe, or go on with the run in `out` if there is one.

    Args:
        recipe: built-in name, path of a TOML file, or a loaded recipe.
        data: pictures: a path, paths by source name, or opened sets by source name.
        out: run folder; default: a new one, named after the recipe, in the folder for runs.
        overrides: `key.sub=value` words.
        init: weights file, checkpoint or run whose weights a new run starts from.
        options: how to run it here.
        say: is given a line for every automatic choice.
        show: is given every event.
        progress: (done, all) while pictures are prepared.

    Raises:
        BadInput: anything given that cannot be used; nothing is lost then.
        TrainingFailed: training stopped by itself.
    """
    loaded = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
    options = options or TrainingOptions()
    name = recipe if isinstance(recipe, str) else loaded.family
    run = RunFolder(Path(out) if out is not None else Folders.from_environment().runs / Path(name).stem)
    if run.path.is_dir() and not run.exists and {p.name for p in run.path.iterdir()} - run.first_files:
        raise BadInput(f"{run.path}: holds something else than a run; choose an empty or new folder for --out")
    changed = _changed_fields(run, loaded)
    sets = _open_sets(loaded, data, say, progress)
    with run.locked(), EventLog(run.events) as log, stop_on_signals() as stop:
        return _Session(loaded, sets, run, log, options, say, show).train(changed, init, stop)


def _changed_fields(run: RunFolder, recipe: Recipe) -> dict[str, tuple[Any, Any, bool]]:
    """What differs from the recipe of the run that is resumed.

    Raises:
        BadInput: a fixed field differs.
    """
    if not run.exists:
        return {}
    try:
        values = json.loads(run.recipe.read_text("utf-8"))
    except ValueError as error:
        raise BadInput(f"{run.recipe}: damaged ({error}); restore it, or choose another --out") from error
    changed = differences(parse_recipe(values, str(run.recipe)), recipe)
    fixed = {key: (a, b) for key, (a, b, changeable) in changed.items() if not changeable}
    if fixed:
        lines = "\n".join(f"  {key}: {a} in the run, {b} now" for key, (a, b) in fixed.items())
        raise BadInput(
            f"run {run.path} was begun with another recipe, in fields that cannot change:\n{lines}\n"
            "choose another --out, or take these values back"
        )
    return changed


def _open_sets(
    recipe: Recipe,
    data: str | Path | Mapping[str, str | Path] | Mapping[str, PictureSet],
    say: Say,
    progress: Progress | None,
) -> dict[str, PictureSet]:
    needs = recipe.kind.sources(recipe.networks)
    sets: dict[str, PictureSet] = {}
    paths: dict[str, str | Path] | str | Path = {}
    if isinstance(data, Mapping):
        sets = {name: value for name, value in data.items() if isinstance(value, PictureSet)}
        paths = {name: value for name, value in data.items() if not isinstance(value, PictureSet)}
    else:
        paths = data
    wanted = {name: need for name, need in needs.items() if name not in sets}
    for name, path in named_sources(paths, wanted).items() if wanted else ():
        sets[name] = open_pictures(path, needs[name].resolution, recipe.data, say, progress)
        check_needs(name, path, sets[name], needs[name])
    return sets


@dataclass
class _Session:
    """One call of `train` on a locked run."""

    recipe: Recipe
    sets: dict[str, PictureSet]
    run: RunFolder
    log: EventLog
    options: TrainingOptions
    say: Say
    show: Callable[[Event], None]

    def train(self, changed: Mapping[str, tuple[Any, Any, bool]], init: str | Path | None, stop: Any) -> TrainingResult:
        recipe, training = self.recipe, self.recipe.training
        found = newest_whole(self.run.checkpoints)
        state, plan, phases = self._create(found[1] if found else None)
        seconds = 0.0
        if found is not None:
            checkpoint, saved, damage = found
            for line in damage:
                self._choose(f"damaged checkpoint passed over: {line}")
            self._restore(checkpoint, saved, state, phases)
            seconds = float(saved["seconds"])
            self._resumed(state.step, changed, saved, init)
        elif init is not None:
            self._initialise(state, Path(init))
        metadata = weights_metadata(recipe)
        write_json(self.run.recipe, recipe.model_dump(mode="json"))
        self._event(
            "start",
            step=state.step,
            frugan=_version(),
            torch=str(torch.__version__),
            machine=platform.platform(),
            device=str(state.device),
            data={name: {"digest": s.digest, "pictures": len(s)} for name, s in self.sets.items()},
            recipe=recipe.model_dump(mode="json"),
        )
        with feeding(self.sets, recipe, pinned=state.device.type == "cuda") as feed:
            batch = training.batch
            saving = recipe.saving
            length = None if training.duration.unit == "seconds" else training.duration.steps(batch)
            step = Step(phases, recipe.optimizers, feed, Streams(training.seed), batch, length)
            loop = Loop(
                step=step,
                state=state,
                plan=plan,
                duration=training.duration,
                checkpoint=Clock(saving.checkpoint_every, batch, seconds),
                backup=Clock(saving.backup_every, batch, seconds) if saving.backup_every else None,
                snapshot=Clock(saving.snapshot_every, batch, seconds),
                report=Clock(saving.report_every, batch, seconds),
                keep=saving.keep_checkpoints,
                run=self.run,
                log=self.log,
                metadata=metadata,
                take_snapshot=lambda now: write_sheets(recipe, now, plan, self.run.samples),
                singular_values=_singular_values,
                extra={"data": {name: s.digest for name, s in self.sets.items()}},
                show=self.show,
                seconds=seconds,
            )
            finished = loop.train(stop)
        return TrainingResult(self.run.path, state.step, finished, loop.seconds)

    def _create(self, saved: Mapping[str, Any] | None) -> tuple[TrainingState, Plan, tuple[Phase, ...]]:
        recipe, training = self.recipe, self.recipe.training
        device, why = choose_device(self.options.device)
        self._choose(f"device: {device} ({why})")
        accumulate_in_fp32()
        asked = training.precision
        if asked == "auto" and saved is not None:
            asked = saved["plan"]["precision"]
            self._choose(f"precision: {asked}, as the run was begun with")
        precision = resolve_precision(asked, device)
        if training.precision == "auto" and saved is None:
            self._choose(f"precision: {precision.name} ({precision.reason}; override with training.precision=fp32)")
        if precision.warning:
            self._choose(f"precision {precision.name}: {precision.warning}")
        networks = build_networks(recipe)
        phases = recipe.kind.phases(recipe.networks, recipe.objective)
        group = normalisation_group(recipe, networks, phases)
        blocks = recipe.kind.recomputable(networks) if self.options.recompute else {}
        plan, line = choose_plan(
            recipe, precision, group, self.options.micro_batch, blocks, ema_on_host=self.options.ema_on_host
        )
        self._choose(line)
        for network in networks.values():
            network.to(device)
        averaged = recipe.kind.averaged()
        normalisation = training.normalisation_batch
        state = create_state(networks, phases, recipe.optimizers, averaged, recipe.ema, plan, normalisation, device)
        return state, plan, phases

    def _restore(
        self, checkpoint: Any, saved: Mapping[str, Any], state: TrainingState, phases: Sequence[Phase]
    ) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            restore(checkpoint, saved, state, phases)
        for warning in caught:
            self._choose(str(warning.message))

    def _resumed(
        self,
        step: int,
        changed: Mapping[str, tuple[Any, Any, bool]],
        saved: Mapping[str, Any],
        init: str | Path | None,
    ) -> None:
        self._event("resume", step=step)
        self._choose(f"resuming {self.run.path} at step {step:,}")
        if init is not None:
            self._choose(f"--init {init} is passed over: the run exists and goes on from its own checkpoint")
        for key, (before, now, _) in changed.items():
            self._event("changed", step=step, field=key, before=str(before), now=str(now))
            self._choose(f"changed from step {step:,} on: {key}: {before} -> {now}")
        for name, digest in saved.get("data", {}).items():
            if name in self.sets and self.sets[name].digest != digest:
                self._event("changed", step=step, field=f"data.{name}", before=digest, now=self.sets[name].digest)
                self._choose(
                    f"the pictures of {name!r} are not those the run was begun with: it goes on with the new ones"
                )

    def _initialise(self, state: TrainingState, path: Path) -> None:
        """Start from other weights: networks from a run's networks, averages from its averages."""
        for content, networks in ((NETWORKS_FILE, state.networks), (EMA_FILE, state.ema.networks)):
            weights = read_weights(weights_file(path, content))
            if weights.recipe.family != self.recipe.family:
                raise BadInput(f"--init {path}: weights of family {weights.recipe.family}, not {self.recipe.family}")
            present = {name: n for name, n in networks.items() if name in weights.networks}
            count = len(load_networks(present, weights.of(list(present)), f"--init {weights.path}"))
            fresh = sorted(set(networks) - set(present))
            kind = "averages" if content == EMA_FILE else "networks"
            line = f"init: {kind} {', '.join(present) or 'none'}: {count} tensors from {weights.path}"
            self._choose(line + (f"; fresh: {', '.join(fresh)}" if fresh else ""))

    def _choose(self, line: str) -> None:
        self.say(line)
        self._event("choice", line=line)

    def _event(self, event: str, **values: Any) -> None:
        self.show(self.log.write(event, **values))


def _singular_values(state: TrainingState) -> dict[str, Tensor]:
    return {
        f"{name}.{layer}": value
        for name, network in state.networks.items()
        for layer, value in top_singular_values(network).items()
    }


def write_sheets(recipe: Recipe, state: TrainingState, plan: Plan, folder: Path) -> list[Path]:
    """Write the family's sheets of the averaged networks; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    layout = plan.layout(state.device)
    if plan.ema_on_host and state.device.type != "cpu":
        # The card's precision may be one that this processor is slow in.
        host = torch.device("cpu")
        layout = replace(plan, precision=resolve_precision("auto", host)).layout(host)
    layouts = dict.fromkeys(state.ema.networks, layout)
    for network in state.ema.networks.values():
        network.eval()
    paths = []
    with working_weights(state.ema.networks, layouts, (), None):
        for name, request in recipe.kind.snapshots(recipe.networks).items():
            asked = replace(request, micro_batch=plan.micro_batch)
            paths.append(folder / f"step-{state.step:09d}-{name}.png")
            write_sheet(recipe.kind.sample(recipe.networks, state.ema.networks, asked), paths[-1])
    return paths


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415  (reads the disk: only when a run starts)

    return version("frugan")
