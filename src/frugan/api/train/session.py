"""One call of `train` on a locked run: the state it starts from, and its stages one after the other."""

import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frugan.api.data.feed import SourceFeed, default_workers, feeding
from frugan.api.devices import choose_device, use_device
from frugan.api.networks import (
    NETWORKS_FILE,
    build_networks,
    recipe_of,
    weights_metadata,
)
from frugan.api.progress import Say
from frugan.api.sample.sample_grids import write_sheets
from frugan.api.setup import setup_of
from frugan.api.train.loading import load_fitting, told_when_full
from frugan.api.train.loss_history import LossHistory
from frugan.api.train.opening import Opening
from frugan.api.train.options import TrainingOptions
from frugan.api.train.plan_in_force import TrainingPlanner
from frugan.api.train.scores import scoring_of
from frugan.api.train.starting_weights import refuse_untaught, start_from
from frugan.api.train.variety_watch import VarietyWatch, variety_watch_of
from frugan.contract.data import RunData, Source
from frugan.data.run_data import class_names, other_pictures, read_run_data
from frugan.engine.arithmetic import pin_arithmetic, tf32_decision
from frugan.engine.checkpoint import (
    Checkpoint,
    newest_whole,
    restore,
    set_aside_newer,
)
from frugan.engine.clock import Clock, SheetClock
from frugan.engine.events import Event, EventLog
from frugan.engine.interrupt import StopRequest
from frugan.engine.loop import Loop
from frugan.engine.out_of_memory import ran_out_of_memory
from frugan.engine.plan import Plan
from frugan.engine.precision import Precision, PrecisionName, continued_precision, resolve_precision
from frugan.engine.requests import Requests
from frugan.engine.run_folder import RunFolder
from frugan.engine.soundness import Soundness
from frugan.engine.state import TrainingState
from frugan.engine.streams import Streams
from frugan.engine.tensor_files import write_json
from frugan.errors import BadInput
from frugan.memory.budget import is_spilling
from frugan.nn.spectral_norm import top_singular_values
from frugan.recipe import Recipe
from frugan.recipe_differences import Difference, differences
from frugan.report.collapse_signs import CollapseSigns

Found = tuple[Checkpoint, dict[str, Any], list[str]]
"""A checkpoint to go on from, its JSON state, and what is wrong with newer ones."""


@dataclass(frozen=True)
class TrainingResult:
    """What `train` left.

    Attributes:
        run: the run folder.
        step: steps done.
        finished: whether the recipe's duration is over.
        seconds: of training, over all resumptions.
        threads: that a CPU trained with, at the end.
    """

    run: Path
    step: int
    finished: bool
    seconds: float
    threads: int


@dataclass
class _Reached:
    """What goes on from one stage to the next, besides the state.

    Attributes:
        plan: in force.
        seconds, images: so far, over all resumptions.
        soundness: of the updates so far.
    """

    plan: Plan
    seconds: float
    images: int
    soundness: Soundness


@dataclass
class Session:
    """One call of `train` on a locked run.

    Attributes:
        recipe, name: what is trained.
        sources: opened pictures by source name.
        data: what checkpoints keep of them.
        run, log: where things go.
        options: how it runs here.
        say: is given a line for every automatic choice.
        requests: what is asked for while training goes on.
        command: that goes on with the run, for messages; None: there is none.
    """

    recipe: Recipe
    name: str
    sources: dict[str, Source]
    data: Mapping[str, RunData]
    run: RunFolder
    log: EventLog
    options: TrainingOptions
    say: Say
    requests: Requests
    command: str | None = None
    _losses: LossHistory = field(default_factory=LossHistory)
    _signs: CollapseSigns = field(default_factory=CollapseSigns)
    _spilling: bool = False

    @cached_property
    def _variety(self) -> VarietyWatch | None:
        return variety_watch_of(self.recipe, self.sources)

    def train(self, init: str | Path | None, stop: StopRequest) -> TrainingResult:
        """Train to the end of the recipe's duration or until a stop is asked for.

        Raises:
            BadInput: the checkpoint is of another recipe, or damaged, or `init` cannot be used.
        """
        recipe = self.recipe
        found = newest_whole(self.run.checkpoints)
        # The checkpoint's recipe counts, not recipe.json: that is changed already if a run died before it saved.
        before = recipe_of(found[0].path / NETWORKS_FILE) if found else recipe
        changed = changed_fields(before, recipe, self.run.path)
        if found:
            self._refuse_swapped({name: known.digest for name, known in read_run_data(found[1]).items()})
        device, why = use_device(self.options.device)
        self._choose(f"device: {device} ({why})")
        restarts = {name for change in changed.values() for name in change.restarts}
        with told_when_full(device, "training was set up"):
            state, plan, planner = self._create(device, found, restarts)
        seconds = 0.0
        if found is not None:
            checkpoint, saved, damage = found
            for line in damage:
                self._choose(f"damaged checkpoint passed over: {line}")
            for moved in set_aside_newer(self.run.checkpoints, checkpoint):
                self._choose(f"set aside as {moved}; delete it when it is of no more use")
            seconds = float(saved["seconds"])
            self._resumed(state.step, before, saved, init)
        elif init is not None:
            start_from(Path(init), recipe, state, class_names(self.data), self._choose)
        else:
            refuse_untaught(state.networks)
        self._losses = LossHistory.of(self.run.events)
        self.log.subscribe(self._losses.add)
        self.log.subscribe(self._watch)
        write_json(self.run.recipe, recipe.model_dump(mode="json"))
        self.log.write(
            "start",
            step=state.step,
            frugan=_version(),
            torch=str(torch.__version__),
            machine=platform.platform(),
            device=str(state.device),
            data={name: {"digest": s.digest, "pictures": len(s)} for name, s in self.sources.items()},
            recipe=recipe.model_dump(mode="json"),
        )
        last = found[1] if found is not None else {}
        images = int(last.get("images", state.step * recipe.training.batch))
        reached = _Reached(plan, seconds, images, Soundness.of(last, state.step))
        kept = {
            "data": {name: data.as_json() for name, data in self.data.items()},
            "device": state.device.type,
            "card": planner.where,
            "memory_budget_bytes": planner.asked_bytes,
        }
        opening = Opening(recipe, self.name, self._choose, stop, last, kept)
        while True:
            finished = self._stage(state, reached, planner, opening, stop)
            if finished or stop.asked:
                return TrainingResult(self.run.path, state.step, finished, reached.seconds, torch.get_num_threads())

    def _stage(
        self,
        state: TrainingState,
        reached: _Reached,
        planner: TrainingPlanner,
        opening: Opening,
        stop: StopRequest,
    ) -> bool:
        """Train with the recipe as it is from this step on, until it changes or all is over.

        Returns:
            Whether all is over.
        """
        seconds = reached.seconds
        recipe, training, saving = self.recipe.at_step(state.step), self.recipe.training, self.recipe.saving
        for key, change in differences(self.recipe, recipe).items():
            if key != "stages":
                self._choose(f"stage from step {state.step:,} on: {key} = {change.after}")
        batch = training.batch
        workers = self.options.workers
        if workers is None:
            workers = default_workers(state.device)
        pinned = state.device.type == "cuda"
        with feeding(self.sources, recipe, pinned=pinned, workers=workers, say=self._choose) as feed:
            loop = Loop(
                step=setup_of(self.recipe, state.step).step(feed, Streams(training.seed)),
                state=state,
                plan=reached.plan,
                duration=training.duration,
                checkpoint=Clock(saving.checkpoint_every, batch, seconds),
                backup=Clock(saving.backup_every, batch, seconds) if saving.backup_every else None,
                snapshot=SheetClock(saving.snapshot_every, batch, seconds),
                report=Clock(saving.report_every, batch, seconds),
                keep=saving.keep_checkpoints,
                run=self.run,
                log=self.log,
                metadata=weights_metadata(self.recipe, class_names(self.data)),
                take_snapshot=lambda now: self._snapshot(now, recipe, loop.plan, feed),
                next_plan=planner.next,
                singular_values=_singular_values,
                extra=opening.kept,
                evaluation=scoring_of(recipe, self.sources, state, self.run, seconds, self._choose, self._warn),
                requests=self.requests,
                command=self.command,
                until=min((s for s in self.recipe.stage_steps() if s > state.step), default=None),
                seconds=seconds,
                images=reached.images,
                soundness=reached.soundness,
            )
            opening.look(loop)
            finished = loop.train(stop)
            reached.plan, reached.seconds, reached.images = loop.plan, loop.seconds, loop.images
            return finished

    def _snapshot(self, state: TrainingState, recipe: Recipe, plan: Plan, feed: SourceFeed) -> list[Path]:
        names = class_names(self.data)
        paths = write_sheets(recipe, state, plan, self.run.samples, feed, self._losses.curves, names, self._choose)
        self._measure_variety(state, plan)
        return paths

    def _measure_variety(self, state: TrainingState, plan: Plan) -> None:
        watch = self._variety
        if watch is None or not watch.due(state.step):
            return
        try:
            found = watch.measure(state, plan)
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            self._choose(f"variety within classes not measured at step {state.step:,}, memory ran out: {error}")
            return
        if found is not None:
            names = watch.pictures.class_names
            mean, nearest = (
                {names[label]: round(ratio, 4) for label, ratio in each.items()} for each in (found.mean, found.nearest)
            )
            self.log.write("variety", step=state.step, mean=mean, nearest=nearest)

    def _create(
        self, device: torch.device, found: Found | None, restarts: Collection[str]
    ) -> tuple[TrainingState, Plan, TrainingPlanner]:
        """Decide how to train on a device, and bring what is trained there, from a checkpoint if there is one."""
        recipe = self.recipe
        saved = None if found is None else found[1]
        pin_arithmetic()
        if device.type == "cuda" and (line := tf32_decision(torch.cuda.get_device_capability(device))):
            self._choose(line)
        precision = self._precision(device, saved)
        setup = setup_of(recipe)
        described = setup.used(recipe.kind.build(recipe.networks, "meta"))
        planner = TrainingPlanner(recipe, self.name, self.options, device, precision, self._choose)
        plan, report = planner.first(described, setup.every_phase, saved)

        def load(by: Plan) -> tuple[TrainingState, list[str]]:
            networks = setup.used(build_networks(recipe))
            for network in networks.values():
                network.to(device)
            state = setup.state(networks, by, device)
            return state, [] if found is None else restore(found[0], found[1], state, restarts)

        (state, lines), loaded_by = load_fitting(load, plan, planner)
        in_force = loaded_by if report is None or loaded_by != plan else report
        write_json(self.run.plan, in_force.as_json())
        for line in lines:
            self._choose(line)
        return state, loaded_by, planner

    def _precision(self, device: torch.device, saved: Mapping[str, Any] | None) -> Precision:
        asked = self.recipe.training.precision
        before: PrecisionName = "auto" if saved is None else saved["plan"]["precision"]
        if asked == "auto" and before != "auto":
            precision = continued_precision(before, device)
            self._choose(f"precision: {precision.name} ({precision.reason})")
        else:
            precision = resolve_precision(asked, device)
        if asked == before == "auto":
            self._choose(
                f"precision: {precision.name} ({precision.reason}; a new run can have training.precision=fp32)"
            )
        if precision.warning:
            self._choose(f"precision {precision.name}: {precision.warning}")
        return precision

    def _resumed(self, step: int, before: Recipe, saved: Mapping[str, Any], init: str | Path | None) -> None:
        self.log.write("resume", step=step)
        self._choose(f"resuming {self.run.path} at step {step:,}")
        if init is not None:
            self._choose(f"--init {init} is passed over: the run exists and goes on from its own checkpoint")
        for key, change in differences(before.at_step(step), self.recipe.at_step(step)).items():
            self.log.write("changed", step=step, field=key, before=str(change.before), now=str(change.after))
            self._choose(f"changed from step {step:,} on: {key}: {change.before} -> {change.after}")
        if before.stages != self.recipe.stages:
            self.log.write("changed", step=step, field="stages", before=str(before.stages), now=str(self.recipe.stages))
            self._choose(f"changed from step {step:,} on: the recipe's stages")
        for name, known in read_run_data(saved).items():
            digest = self.sources[name].digest if name in self.sources else known.digest
            if digest != known.digest:
                self.log.write("changed", step=step, field=f"data.{name}", before=known.digest, now=digest)
            if name in self.sources and (line := other_pictures(name, known, digest)):
                self._choose(line)

    def _refuse_swapped(self, saved: Mapping[str, str]) -> None:
        """Two sources in each other's places would train a model in the wrong direction."""
        now = {name: source.digest for name, source in self.sources.items()}
        for a, b in combinations(sorted(set(now) & set(saved)), 2):
            if now[a] != now[b] and (now[a], now[b]) == (saved[b], saved[a]):
                raise BadInput(
                    f"--data {a}=... and --data {b}=... are swapped: {a} is what the run was trained with as {b}, and "
                    "the other way round; swap them back, or choose another --out"
                )

    def _watch(self, event: Event) -> None:
        """Say what is wrong with a training that goes on, as soon as an event shows it."""
        for line in self._signs.look(event):
            self._warn(int(event["step"]), line)
        if event["event"] == "checkpoint" and not self._spilling and is_spilling(choose_device(self.options.device)[0]):
            self._spilling = True
            self._choose(
                "the card is full: this system's driver may be moving memory to the computer's own, which is many "
                "times slower; close other programs, or resume with a smaller --memory"
            )

    def _warn(self, step: int, line: str) -> None:
        self.say(f"warning: {line}")
        self.log.write("warning", step=step, line=line)

    def _choose(self, line: str) -> None:
        self.say(line)
        self.log.write("choice", line=line)


def changed_fields(before: Recipe, now: Recipe, run: Path) -> dict[str, Difference]:
    """What differs from the recipe of the run that is resumed.

    Raises:
        BadInput: a fixed field differs.
    """
    changed = differences(before, now)
    fixed = {key: field for key, field in changed.items() if not field.changeable}
    if fixed:
        lines = "\n".join(f"  {key}: {field.before} in the run, {field.after} now" for key, field in fixed.items())
        raise BadInput(
            f"run {run} was begun with another recipe, in fields that cannot change:\n{lines}\n"
            "choose another --out, or take these values back"
        )
    return changed


def _singular_values(state: TrainingState) -> dict[str, Tensor]:
    return {
        f"{name}.{layer}": value
        for name, network in state.networks.items()
        for layer, value in top_singular_values(network).items()
    }


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415  (reads the disk: only when a run starts)

    return version("frugan")
