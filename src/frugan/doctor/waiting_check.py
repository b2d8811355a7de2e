"""Whether a step makes the host wait for the device: then the card stands still while Python goes on."""

import traceback
from pathlib import Path

import torch

from frugan.doctor.card_tools import CudaCard
from frugan.doctor.finding import Finding, judged
from frugan.doctor.trial import FP32, Way, begin
from frugan.engine.precision import Precision
from frugan.engine.readout import Readout
from frugan.engine.training import Training

WAITS = "the host waits for nothing"
MOST_FIRST_STEPS = 20
"""fp16 waits until it has found its loss scale; libraries are set up in the first steps."""
LEAST_FIRST_STEPS = 2


def waits_on_a_card(subject: Training, card: CudaCard, precision: Precision = FP32) -> Finding:
    """A step on a card in which torch refuses whatever waits."""
    trial = begin(subject, Way(card.device, precision))
    for step in range(MOST_FIRST_STEPS):
        trial.run()
        if step + 1 >= LEAST_FIRST_STEPS and all(scale.found for scale in trial.state.loss_scales.values()):
            break
    card.wait()
    refusal = None
    try:
        with card.refusing_to_wait():
            readout = Readout.start(trial.state.step, trial.run(), {})
        readout.read()
    except RuntimeError as error:
        refusal = f"{str(error).partition(chr(10))[0]} ({_where(error)})"
    return judged(
        WAITS,
        subject.family,
        refusal or f"a step in {precision.name} that is never waited for",
        passed=refusal is None,
        found=[refusal] if refusal else [],
        beside="a card",
    )


def _where(error: RuntimeError) -> str:
    """The last line outside torch: it asked."""
    torch_folder = Path(torch.__file__).parent
    own = [f for f in traceback.extract_tb(error.__traceback__) if torch_folder not in Path(f.filename).parents]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "within torch"
