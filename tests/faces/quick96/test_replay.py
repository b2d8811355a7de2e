"""Every third step of Quick96 reads the pictures of the step before, and sees them unwarped."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from frugan.accelerator.precision import Precision
from frugan.contract.phase import Replay
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.optimizer_settings import RMSpropSettings
from frugan.engine.streams import Streams
from frugan.faces.quick96.family import Quick96Family
from frugan.faces.quick96.phases import unwarped

SIDE = Quick96Family().tiny()[0].resolution
BATCH, STEPS = 2, 8


@dataclass
class Feed:
    """Faces of the side "src" whose warped ones are not finite when they are read again."""

    positions: list[int] = field(default_factory=list)  # that were read

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """See `PictureFeed`."""
        warped = torch.rand(count, 3, SIDE, SIDE)
        if source == "src":
            warped *= float("nan") if position in self.positions else 1
            self.positions.append(position)
        return {"warped": warped, "target": torch.rand(count, 3, SIDE, SIDE), "mask": torch.rand(count, 1, SIDE, SIDE)}


def test_every_third_step_reads_again_and_unwarped() -> None:
    feed, plan = Feed(), Plan(BATCH, Precision("fp32", torch.float32, "test"))
    family = Quick96Family()
    settings = RMSpropSettings(learning_rate=1e-4)
    training = Training.of_family(family, *family.tiny(), settings=settings, ema=EmaSettings(), batch=BATCH)
    state, step = training.state(plan, torch.device("cpu")), training.step(feed, Streams(0))
    results = [result for _ in range(STEPS) for result in step.run(state, plan)]
    assert feed.positions == [BATCH * batch for batch in (0, 1, 2, 2, 3, 4, 4, 5)]
    assert all(result.accepted for result in results)


def test_nothing_is_changed_in_place() -> None:
    seen = Feed().take("dst", "dst", 0, 1)
    before = seen["warped"].clone()
    assert unwarped(seen)["warped"] is seen["target"]
    assert torch.equal(seen["warped"], before)


def test_a_replay_at_every_step_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 2"):
        Replay(1, unwarped)
