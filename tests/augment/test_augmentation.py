"""What phases see of augmentation: its draws, its state, and how that moves."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from frugan.augment.ada import Ada
from frugan.augment.augmentation import STATE, Augmentation, AugmentationSettings
from frugan.augment.diffaugment import DiffAugment
from frugan.contract.phase import MicroBatch, PhaseState


def steered(**settings: Any) -> Augmentation:
    return Augmentation.of(AugmentationSettings(method="ada", **settings))


class Controller:
    """The engine's part: a phase observes micro-batch by micro-batch; then the state moves, once."""

    def __init__(self, augmentation: Augmentation) -> None:
        self.augmentation = augmentation
        self.carried = augmentation.carried()[STATE]
        self.value = torch.tensor(self.carried.initial)

    def phase(self, *signs: list[float], counts: bool = True) -> float:
        """Run a phase on micro-batches whose outputs have these signs; returns the probability after it."""
        state = PhaseState({STATE: self.value}, torch.ones(()))
        for outputs in signs:
            micro = MicroBatch({}, {}, len(outputs))
            self.augmentation.observe(torch.tensor(outputs, dtype=torch.float32)[:, None], micro, state, counts=counts)
        self.value = self.carried.update(self.value, *state.observed()[STATE])
        return float(self.value[0])


def test_a_recipe_names_its_pipeline() -> None:
    none, both = AugmentationSettings(), ("geometry", "blit")
    assert Augmentation.of(none).pipeline is None
    assert Augmentation.of(AugmentationSettings(method="ada", operations=())).pipeline is None
    assert Augmentation.of(AugmentationSettings(method="ada")).pipeline == Ada(("blit", "geometry", "colour"))
    assert Augmentation.of(AugmentationSettings(method="ada", operations=both)).pipeline == Ada(("blit", "geometry"))
    assert isinstance(Augmentation.of(AugmentationSettings(method="diffaugment")).pipeline, DiffAugment)


def test_operations_belong_to_their_method() -> None:
    with pytest.raises(ValidationError, match="operations translation: ada has blit, geometry, colour, filter"):
        AugmentationSettings(method="ada", operations=("blit", "translation"))
    with pytest.raises(ValidationError, match="operations colour: set method to diffaugment or ada as well"):
        AugmentationSettings(operations=("colour",))


@pytest.mark.parametrize("target", [1, -1, 1.5, float("nan")])
def test_a_target_that_no_mean_of_signs_crosses_is_refused(target: float) -> None:
    with pytest.raises(ValidationError, match=r"a mean of signs lies between -1 and 1.* such as 0\.6, or none"):
        AugmentationSettings(method="ada", target=target)


def test_ada_that_never_acts_is_refused() -> None:
    with pytest.raises(ValidationError, match="ada would change no picture"):
        AugmentationSettings(method="ada", target=None)


def test_the_probability_moves_every_interval_by_the_pictures_seen() -> None:
    controller = Controller(steered(interval=3, ramp_images=100, probability=0.2))
    assert [controller.phase([1, 1, 1, 1]) for _ in range(3)] == pytest.approx([0.2, 0.2, 0.2 + 12 / 100])
    assert controller.value[1:].tolist() == [0, 0, 0, 0]
    # Down: 5 of 12 signs are positive, so their mean is below 0.6.
    assert [controller.phase([1, 1, -1, -1]), controller.phase([1, 1, -1, -1])] == pytest.approx([0.32, 0.32])
    assert controller.phase([1, -1, -1, -1]) == pytest.approx(0.2)


def test_it_never_falls_below_0_and_may_pass_1() -> None:
    low, high = Controller(steered(interval=1, ramp_images=4)), Controller(steered(interval=1, ramp_images=2))
    assert [low.phase([-1, -1]), low.phase([-1, -1])] == [0, 0]
    assert [high.phase([1, 1]), high.phase([1, 1])] == [1, 2]


def test_micro_batches_of_a_phase_count_by_their_samples() -> None:
    """Mean sign 0.2, below the target; the mean of the micro-batches' means would be 0.5, above it."""
    controller = Controller(steered(interval=1, ramp_images=100, probability=0.5, target=0.3))
    assert controller.phase([1, 1, 1, 1, -1, -1, -1, -1], [1, 1]) == pytest.approx(0.5 - 10 / 100)


def test_a_phase_that_does_not_count_lends_its_signs_alone() -> None:
    """R1 sees the pictures that the discriminator's own phase has seen: signs, but no pictures and no update."""
    controller = Controller(steered(interval=2, ramp_images=100, probability=0.5, target=0.0))
    controller.phase([1, 1])
    assert controller.phase([-1, -1, -1, -1, -1, -1], counts=False) == 0.5
    assert controller.phase([1, 1]) == pytest.approx(0.5 - 4 / 100)  # 4 signs up, 6 down; 4 pictures


def test_a_probability_without_target_stays() -> None:
    augmentation = steered(target=None, probability=0.4)
    assert augmentation.carried() == {}
    state = PhaseState({}, torch.ones(()))
    augmentation.observe(torch.ones(2, 1), MicroBatch({}, {}, 2), state)
    assert state.observed() == {}


@pytest.mark.parametrize(("target", "acts"), [(None, False), (0.6, True)])
def test_the_probability_in_force_is_the_state_s_where_it_is_steered(target: float | None, acts: bool) -> None:
    """The recipe's is 0.1, the state's 1; the draws are 0.3."""
    augmentation = steered(target=target, probability=0.1, operations=("colour",))
    draws = {
        name: torch.full((2, *draw.shape), 0.3) for name, draw in augmentation.draws("real", shape=(1, 8, 8)).items()
    }
    pictures = torch.zeros(2, 1, 8, 8, dtype=torch.bfloat16)
    state = PhaseState({STATE: torch.tensor([1.0, 0, 0, 0, 0])}, torch.ones(()))
    made: Tensor = augmentation.apply(pictures, MicroBatch({}, draws, 2), state, "real")
    assert made.dtype == torch.float32
    assert bool((made != 0).all()) == acts
