"""Stages of a run between changes of its recipe: data, phases, grids and scores, opened together."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from frugan.engine.durations import Clock, GridClock
from frugan.engine.plan import Plan
from frugan.engine.run.best_checkpoints import BestCheckpoints
from frugan.engine.run.loop import Loop, RunningStage, Scoring, Stages
from frugan.engine.state.state import TrainingState
from frugan.engine.streams import Streams
from frugan.nn.spectral_norm import top_singular_values
from frugan.recipe.overrides import differences
from frugan.reporting.loss_history import LossHistory
from frugan.sampling.generators import write_grids
from frugan.setup.run_data_sources import feeding
from frugan.training.observers import variety_measurement
from frugan.training.run import TrainRun


def stages_of(
    run: TrainRun,
    losses: LossHistory,
    look: Callable[[Loop, RunningStage], None],
    seed: int,
    on_first_full_step: Callable[[], None],
) -> Stages:
    """Return the stages of a run, which are opened one after the other.

    Args:
        losses: drawn above the grids.
        look: is given each stage on the first rank, before its first step.
        seed: that order of data and draws go by.
        on_first_full_step: is called in each stage, when a step that all phases were due in is over.
    """
    measure_variety = variety_measurement(run)

    @contextmanager
    def stage(loop: Loop) -> Iterator[RunningStage]:
        step, seconds = loop.state.step, loop.seconds
        recipe, training, saving = run.recipe.at_step(step), run.recipe.training, run.recipe.saving
        unheard = () if recipe.preliminary is None else recipe.preliminary.overrules
        for key, change in differences(run.recipe, recipe).items():
            if key != "stages" and key not in unheard:
                run.choose(f"stage from step {step:,} on: {key} = {change.after}")
        device = loop.state.device

        def lost(source: str, picture: str, reason: str, count: int) -> None:
            reached = loop.state.step
            run.log.write("picture_skipped", step=reached, source=source, picture=picture, reason=reason, count=count)
            run.warn(
                reached, f"data {source}: {reason.rstrip('.')}. Another picture takes its place ({count:,} so far)"
            )

        with feeding(
            run.sources,
            recipe,
            device,
            workers=run.options.workers,
            ranks=run.ranks.local_size,
            seed=seed,
            say=run.choose_here,
            lost=lost,
        ) as feed:

            def draw(state: TrainingState, plan: Plan) -> list[Path]:
                curves = losses.curves
                paths = write_grids(recipe, state, plan, run.folder, feed, curves, run.class_names, run.choose)
                measure_variety(state, plan)
                return paths

            running = RunningStage(
                step=run.training.step(feed, Streams(seed), stage=run.training.stage_at(step), ranks=run.ranks),
                until=min((later for later in run.recipe.stage_steps() if later > step), default=None),
                checkpoint=Clock(saving.checkpoint_every, training.batch, seconds, loop.length),
                backup=Clock(saving.backup_every, training.batch, seconds) if saving.backup_every else None,
                snapshot=GridClock(saving.snapshot_every, training.batch, seconds, loop.length),
                report=Clock(saving.report_every, training.batch, seconds),
                draw=draw,
                readings=_singular_values,
                scoring=_scoring(run, loop, seconds),
                on_first_full_step=on_first_full_step,
            )
            if run.is_first:
                look(loop, running)
            yield running

    return stage


def _scoring(run: TrainRun, loop: Loop, seconds: float) -> Scoring | None:
    """Return the scoring that the present recipe asks for; None: none, or the feature network's weights are missing.

    Raises:
        BadInput: by a network that is not there, or that a metric cannot use: better now than hours later.
    """
    state = loop.state
    recipe = run.recipe.at_step(state.step)
    settings = recipe.evaluation
    if settings.every is None:
        return None
    # Feature networks and what reads them are loaded only for a training that is scored.
    from frugan.training.scores import TrainingScores, possible  # noqa: PLC0415

    taken, lacking = possible(run, settings)
    if taken is None:
        run.warn(state.step, f"no scores while training: {lacking}; evaluation.every=none leaves out this line")
        return None
    if lacking is not None:
        by_it = "; no checkpoint is kept in best/, which goes by it (evaluation.best_by)"
        run.warn(state.step, f"not all scores while training: {lacking}{by_it * (settings.best_by == 'two_sample')}")
    recipe = recipe.model_copy(update={"evaluation": taken})
    scores = TrainingScores(run, recipe, state.device)
    best = BestCheckpoints(run.folder.best, settings.best_by, settings.keep_best)
    if run.is_first:
        scores.check()
        for path in best.delete_after(state.step):
            run.choose(f"deleted {path}: kept for its score, of a training that this one has gone back behind")
    due = Clock(settings.every, recipe.training.batch, seconds, loop.length)
    return Scoring(due, scores.take, best, scores.predict, scores.leave_to_end)


def _singular_values(state: TrainingState) -> Mapping[str, Tensor]:
    return {
        f"{name}.{layer}": value
        for name, network in state.networks.items()
        for layer, value in top_singular_values(network).items()
    }
