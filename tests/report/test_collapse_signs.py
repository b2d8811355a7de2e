"""Signs of collapse are told once, with their numbers, and healthy trainings are left in peace."""

from typing import Any

import torch

from frugan.report.collapse_signs import JUMP_REPORTS, SATURATION_STEPS, CollapseSigns, duplicate_samples


def step(real: float | str, fake: float = 0.0, **values: float) -> dict[str, Any]:
    return {"event": "step", "step": 1, "phases": {"D": {"terms": {"real": real, "fake": fake}}}} | (
        {"singular_values": values} if values else {}
    )


def lines(signs: CollapseSigns, *events: dict[str, Any]) -> list[str]:
    return [line for event in events for line in signs.look(event)]


def test_a_saturated_discriminator_is_told_once_until_it_recovers() -> None:
    signs = CollapseSigns()
    assert lines(signs, *[step(1.0, 1.0)] * SATURATION_STEPS) == []
    told = lines(signs, *[step(0.01)] * (3 * SATURATION_STEPS))
    assert len(told) == 1
    assert "D: its losses on real and fake add up to 0.0" in told[0]
    assert lines(signs, *[step(1.0)] * SATURATION_STEPS) == []
    assert len(lines(signs, *[step(0.01)] * (2 * SATURATION_STEPS))) == 1


def test_losses_that_are_not_finite_or_of_other_names_say_nothing() -> None:
    signs = CollapseSigns()
    other = {"event": "step", "step": 1, "phases": {"G": {"terms": {"adversarial": 0.0}}}}
    assert lines(signs, *[other] * (2 * SATURATION_STEPS), *[step("nan")] * (2 * SATURATION_STEPS)) == []
    assert lines(signs, {"event": "checkpoint"}) == []


def test_a_jump_of_singular_values_is_told_with_the_worst_layer() -> None:
    signs = CollapseSigns()
    slowly = [step(1.0, 1.0, a=1.0 + 0.1 * i, b=2.0) for i in range(JUMP_REPORTS + 3)]
    assert lines(signs, *slowly) == []
    (told,) = lines(signs, step(1.0, 1.0, a=9.0, b=5.0))
    assert "of a jumped from 1.5 to 9, and of 1 more layers" in told


def test_samples_that_look_alike() -> None:
    random = torch.rand(4, 5, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 2 - 1
    shapes = torch.nn.functional.interpolate(random.flatten(0, 1)[..., :4, :4], size=32).view(4, 5, 3, 32, 32)
    assert duplicate_samples(shapes) is None
    twins = shapes.clone()
    twins[:, 1] = twins[:, 0] + 0.001
    assert "8 of 20 samples have a twin" in (duplicate_samples(twins) or "")
    assert duplicate_samples(shapes[:, :1]) is None
    across = shapes[:1].expand(4, -1, -1, -1, -1)  # classes alike, samples not
    assert duplicate_samples(across) is None
