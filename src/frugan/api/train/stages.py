"""The stages of a recipe, as the training loop asks for them: each with its step, its data and its clocks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from frugan.api.data.feed import default_workers, feeding
from frugan.api.sample.sample_grids import write_sheets
from frugan.api.setup import training_of
from frugan.api.train.compiling import backward_of
from frugan.api.train.loss_history import LossHistory
from frugan.api.train.opening import Opening
from frugan.api.train.recovery import seed_after
from frugan.api.train.run import TrainRun
from frugan.api.train.scores import scoring_of
from frugan.api.train.watches import variety_measurement
from frugan.engine.clock import Clock, SheetClock
from frugan.engine.loop import Loop, RunningStage, Stages
from frugan.engine.plan import Plan
from frugan.engine.state import TrainingState
from frugan.engine.streams import Streams
from frugan.nn.spectral_norm import top_singular_values
from frugan.recipe.differences import differences


def stages_of(run: TrainRun, losses: LossHistory, opening: Opening, rollbacks: int = 0) -> Stages:
    """What opens a run's stages one after the other.

    Args:
        losses: drawn above the sheets.
        opening: looks at each stage before its first step.
        rollbacks: how often the run went back: each time it goes on with another order of data and other draws.
    """
    measure_variety, trained = variety_measurement(run), training_of(run.recipe)

    @contextmanager
    def stage(loop: Loop) -> Iterator[RunningStage]:
        step, seconds = loop.state.step, loop.seconds
        recipe, training, saving = run.recipe.at_step(step), run.recipe.training, run.recipe.saving
        for key, change in differences(run.recipe, recipe).items():
            if key != "stages":
                run.choose(f"stage from step {step:,} on: {key} = {change.after}")
        device, workers = loop.state.device, run.options.workers
        if workers is None:
            workers = default_workers(device, run.ranks.local_size)
        pinned = device.type == "cuda"
        seed = seed_after(training.seed, rollbacks)

        def lost(source: str, picture: str, reason: str, count: int) -> None:
            reached = loop.state.step
            run.log.write("picture_skipped", step=reached, source=source, picture=picture, reason=reason, count=count)
            run.warn(reached, f"data {source}: {reason} Another picture takes its place ({count:,} so far)")

        said = run.choose_here
        with feeding(run.sources, recipe, pinned=pinned, workers=workers, seed=seed, say=said, lost=lost) as feed:

            def draw(state: TrainingState, plan: Plan) -> list[Path]:
                folder, curves = run.folder.samples, losses.curves
                paths = write_sheets(recipe, state, plan, folder, feed, curves, run.class_names, run.choose)
                measure_variety(state, plan)
                return paths

            backward = backward_of(recipe, device, run.choose, lambda line: run.warn_here(loop.state.step, line))
            made = RunningStage(
                step=trained.step(
                    feed, Streams(seed), stage=trained.stage_at(step), ranks=run.ranks, backward=backward
                ),
                until=min((later for later in run.recipe.stage_steps() if later > step), default=None),
                checkpoint=Clock(saving.checkpoint_every, training.batch, seconds),
                backup=Clock(saving.backup_every, training.batch, seconds) if saving.backup_every else None,
                snapshot=SheetClock(saving.snapshot_every, training.batch, seconds),
                report=Clock(saving.report_every, training.batch, seconds),
                draw=draw,
                readings=_singular_values,
                scoring=scoring_of(recipe, run, loop.state, seconds),
            )
            if run.is_first:
                opening.look(loop, made)
            yield made

    return stage


def _singular_values(state: TrainingState) -> Mapping[str, Tensor]:
    return {
        f"{name}.{layer}": value
        for name, network in state.networks.items()
        for layer, value in top_singular_values(network).items()
    }
