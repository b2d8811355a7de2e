"""Whether a step makes the host wait for the device: then the card stands still while Python goes on."""

import traceback
from contextlib import suppress
from pathlib import Path

import torch

from frugan.api.doctor.card_tools import CardTools
from frugan.api.doctor.outcome import Outcome, judged
from frugan.api.doctor.stand_in import META, Watcher
from frugan.api.doctor.trial import FP32, Way, begin
from frugan.engine.precision import Precision
from frugan.engine.readout import Readout
from frugan.engine.training import Training

CHECK = "the host waits for nothing"
MOST_FIRST_STEPS = 20
"""fp16 waits until it has found its loss scale; libraries are set up in the first steps."""
LEAST_FIRST_STEPS = 2


def waits_on_a_stand_in(subject: Training) -> Outcome:
    """A step beside a stand-in for a card: each operation is looked at."""
    trial = begin(subject, Way(META))
    watcher = Watcher()
    with suppress(RuntimeError), watcher:  # what looks at a value that is not there is noted already
        Readout.start(1, trial.run(), {})
    return judged(
        CHECK,
        subject.family,
        passed=not watcher.found and watcher.to_card > 0,
        line=watcher.found[0] if watcher.found else f"{watcher.to_card} copies to the card, none is waited for",
        figures={"found": watcher.found[:5], "beside": "a stand-in"},
    )


def waits_on_a_card(subject: Training, card: CardTools, precision: Precision = FP32) -> Outcome:
    """A step on a card in which torch refuses whatever waits."""
    trial = begin(subject, Way(card.device, precision))
    for step in range(MOST_FIRST_STEPS):
        trial.run()
        if step + 1 >= LEAST_FIRST_STEPS and all(scale.found for scale in trial.state.loss_scales.values()):
            break
    card.wait()
    found = None
    try:
        with card.refusing_to_wait():
            readout = Readout.start(trial.state.step, trial.run(), {})
        readout.read()
    except RuntimeError as error:
        found = f"{str(error).partition(chr(10))[0]} ({_where(error)})"
    return judged(
        CHECK,
        subject.family,
        passed=found is None,
        line=found or f"a step in {precision.name} that is never waited for",
        figures={"found": [found] if found else [], "beside": "a card"},
    )


def _where(error: RuntimeError) -> str:
    """The last line outside torch: it asked."""
    torch_folder = Path(torch.__file__).parent
    own = [f for f in traceback.extract_tb(error.__traceback__) if torch_folder not in Path(f.filename).parents]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "within torch"
