"""What looks at a training that goes on: each reads the events, and says what is wrong as soon as one shows it."""

from collections.abc import Callable

from frugan.api.machine.devices import choose_device
from frugan.api.train.run import TrainRun
from frugan.api.train.variety_watch import VarietyWatch, variety_watch_of
from frugan.engine.events import Event
from frugan.engine.out_of_memory import ran_out_of_memory
from frugan.engine.plan import Plan
from frugan.engine.state import TrainingState
from frugan.memory.budget import is_spilling
from frugan.report.collapse_signs import CollapseSigns
from frugan.report.gradient_signs import GradientSigns


def collapse_watch(run: TrainRun) -> Callable[[Event], None]:
    """Warns where losses, gradients or variety look like a collapse."""
    signs = CollapseSigns()

    def look(event: Event) -> None:
        for line in signs.look(event):
            run.warn(int(event["step"]), line)

    return look


def gradient_watch(run: TrainRun) -> Callable[[Event], None]:
    """Warns of parameters that get no gradient, and of fp16 that turns gradients into zeros."""
    signs = GradientSigns()

    def look(event: Event) -> None:
        for line in signs.look(event):
            run.warn(int(event["step"]), line)

    return look


def spill_watch(run: TrainRun) -> Callable[[Event], None]:
    """Says once, at a checkpoint, that a driver moves a full card's memory to the host (Windows)."""
    said: list[bool] = []

    def look(event: Event) -> None:
        if event["event"] == "checkpoint" and not said and is_spilling(choose_device(run.options.device)[0]):
            said.append(True)
            run.choose(
                "the card is full: this system's driver may be moving memory to the computer's own, which is many "
                "times slower; close other programs, or resume with a smaller --memory"
            )

    return look


def variety_measurement(run: TrainRun) -> Callable[[TrainingState, Plan], None]:
    """Measures, where that is due, how much samples of a class vary, and writes an event of it."""
    watch = variety_watch_of(run.recipe, run.sources)
    return lambda state, plan: None if watch is None else _measure(run, watch, state, plan)


def _measure(run: TrainRun, watch: VarietyWatch, state: TrainingState, plan: Plan) -> None:
    if not watch.due(state.step):
        return
    try:
        found = watch.measure(state, plan)
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        run.choose(f"variety within classes not measured at step {state.step:,}, memory ran out: {error}")
        return
    if found is not None:
        names = watch.pictures.class_names
        mean, nearest = (
            {names[label]: round(ratio, 4) for label, ratio in each.items()} for each in (found.mean, found.nearest)
        )
        run.log.write("variety", step=state.step, mean=mean, nearest=nearest)
