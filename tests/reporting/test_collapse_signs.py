"""Signs of collapse are told once, with their numbers, and healthy trainings are left in peace."""

from typing import Any

import pytest

from frugan.recipe.loading import load_recipe
from frugan.reporting.signs import JUMP_REPORTS, SATURATION_STEPS, SCORES_IN_A_ROW, CollapseSigns


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
    ended = [line for event in [step(1.0)] * SATURATION_STEPS for line in (*signs.look(event), *signs.over)]
    assert ended == told  # once, when it is over
    assert len(lines(signs, *[step(0.01)] * (2 * SATURATION_STEPS))) == 1


def paired(loss: float) -> dict[str, Any]:
    return {"event": "step", "step": 1, "phases": {"D": {"terms": {"relativistic": loss}}}}


def judged(share: float) -> dict[str, Any]:
    return {"event": "metrics", "step": 1, "scores": {"two_sample": share}}


def started(loss: str) -> dict[str, Any]:
    return {"event": "start", "step": 0, "recipe": {"objective": {"loss": loss}}}


@pytest.mark.parametrize(
    ("loss", "guessing"),
    [
        ("relativistic", paired(0.693)),
        ("hinge", step(1.0, 1.0)),
        ("hinge", step(0.1, 1.9)),
        ("non-saturating", step(0.693, 0.694)),
    ],
)
def test_a_discriminator_that_guesses_while_a_fresh_network_knows_is_told(loss: str, guessing: dict[str, Any]) -> None:
    signs = CollapseSigns()
    window = [guessing] * SATURATION_STEPS
    assert lines(signs, started(loss), *window[1:], judged(1.0)) == []  # too few steps to say
    assert lines(signs, *window, judged(0.99)) == []  # the pictures may be about to get better
    (told,) = lines(signs, *window, judged(0.97), *window, judged(0.99))
    assert told.startswith("D has given up: at this score and the one before, its loss stood at that of guessing (")
    assert "told real from generated 99 and now 97 times in 100" in told
    assert lines(signs, judged(0.7)) == []  # nor can a fresh network
    assert signs.given_up == set()
    assert len(lines(signs, judged(0.82))) == 1
    assert signs.given_up == {"D"}


def test_whoever_judged_is_named() -> None:
    signs, guessing = CollapseSigns(), [paired(0.693)] * SATURATION_STEPS
    few = {"provenance": {"judge": "60 pictures on either side; fixed features, leaving out each picture"}}
    (told,) = lines(signs, started("relativistic"), *guessing, judged(1.0) | few, *guessing, judged(0.99) | few)
    assert "a simple judge for few pictures that was trained afresh told real from generated 100 and now 99" in told
    assert "small network" not in told


def test_a_judge_of_fixed_features_must_tell_every_picture_before_a_generator_has_given_up() -> None:
    few = {"provenance": {"judge": "60 pictures on either side; fixed features, leaving out each picture"}}
    working = [started("relativistic"), *[paired(0.01)] * SATURATION_STEPS]
    for share, by, told in ((0.99, {}, 1), (0.99, few, 0), (1.0, few, 1)):
        assert len(lines(CollapseSigns(), *working, *[judged(share) | by] * SCORES_IN_A_ROW)) == told


def test_a_discriminator_that_guesses_while_pictures_get_better_is_left_in_peace() -> None:
    signs, guessing, working = CollapseSigns(), [paired(0.693)] * SATURATION_STEPS, [paired(0.3)] * SATURATION_STEPS
    told = lines(signs, started("relativistic"), *guessing, judged(1.0), *guessing, judged(0.89))
    assert told == []
    told = lines(signs, *working, judged(0.9), *guessing, judged(0.9))  # it was at work at the score before
    assert told == []
    assert len(lines(signs, judged(0.86))) == 1


def test_advice_names_what_the_runs_own_recipe_has() -> None:
    def advice(name: str, *words: str) -> tuple[str, ...]:
        recipe = load_recipe(name, words).model_dump(mode="json")
        began = {"event": "start", "step": 0, "recipe": recipe}
        guessing = [*[paired(0.693)] * SATURATION_STEPS, judged(1.0), judged(1.0)]
        blind = [*[paired(0.01)] * SATURATION_STEPS, *[judged(1.0)] * SCORES_IN_A_ROW]
        alike = {"event": "variety", "step": 1, "mean": {"one": 0.1}, "nearest": {"one": 0.1}}
        return tuple(lines(CollapseSigns(), began, *events)[0] for events in (guessing, blind, [alike]))

    biggan, stylegan2, r3gan = map(advice, ("biggan-small-64", "stylegan2-small-64", "r3gan-small-64"))
    assert (
        "(objective.discriminator_steps), a weaker penalty on its gradient (objective.r1_gamma), or another"
        in biggan[0]
    )
    assert "generator, a weaker penalty on its gradient (objective.gamma), or another" in r3gan[0]
    assert stylegan2[0].endswith("such as biggan-small-64")
    assert [" (objective.gamma)," in each[1] for each in (biggan, stylegan2, r3gan)] == [False, False, True]
    assert ["objective.loss=relativistic" in each[2] for each in (biggan, stylegan2, r3gan)] == [True, True, False]
    normed = advice("biggan-small-64", "networks.spectral_norm=true")
    assert ["networks.spectral_norm=false" in each[2] for each in (biggan, stylegan2, normed)] == [False, False, True]


def test_what_came_after_the_step_that_a_run_goes_on_from_is_forgotten() -> None:
    signs, working, guessing = CollapseSigns(), paired(0.4), paired(0.693)
    numbered = [{**e, "step": i} for i, e in enumerate([*[working] * 300, *[guessing] * 300], start=1)]
    score = [{**judged(1.0), "step": 600}]
    lines(signs, started("relativistic"), *numbered, *score)
    assert signs.guessed == {"D": (600, 1.0)}
    resumed = {"event": "resume", "step": 500}
    assert lines(signs, resumed, *numbered[500:], *score) == []  # the same score is not two
    assert len(lines(signs, {**judged(1.0), "step": 600})) == 1
    lines(signs, {"event": "resume", "step": 150})
    assert (signs.given_up, signs.guessed) == (set(), {})
    # a training that is stopped again and again is judged by all of it
    signs = CollapseSigns()
    told = lines(signs, started("relativistic"))
    for first in range(0, 600, 100):
        told += lines(
            signs, {"event": "resume", "step": first}, *[{**guessing, "step": first + i} for i in range(1, 101)]
        )
        told += lines(signs, {**judged(1.0), "step": first + 100})
    assert len(told) == 1


def test_what_happens_again_after_going_back_is_told_again() -> None:
    signs = CollapseSigns()
    blind = [{**step(0.01), "step": i} for i in range(1, 2 * SATURATION_STEPS)]
    alike = {"event": "variety", "step": 200, "mean": {"one": 0.1}, "nearest": {"one": 0.1}}
    assert len(lines(signs, started("hinge"), *blind, alike)) == 2
    resumed = {"event": "resume", "step": blind[-1]["step"]}
    assert lines(signs, resumed, {**step(0.01), "step": 2 * SATURATION_STEPS}, alike) == []  # nothing was lost
    assert len(lines(signs, {"event": "start", "step": 0}, *blind, alike)) == 2


def test_one_huge_loss_is_forgotten_like_others() -> None:
    signs, guessing = CollapseSigns(), [paired(0.693)] * SATURATION_STEPS
    lines(signs, started("relativistic"), *guessing, paired(1e30), *guessing, *guessing)
    assert len(lines(signs, judged(1.0), judged(1.0))) == 1


def test_losses_about_the_equilibrium_and_those_of_another_game_are_left_in_peace() -> None:
    swinging = [paired(0.5), paired(0.886)] * SATURATION_STEPS
    easily, hardly = [judged(1.0)] * 2, [judged(0.75)] * 2
    assert lines(CollapseSigns(), started("relativistic"), *swinging, *easily) == []
    assert lines(CollapseSigns(), started("hinge"), *[step(0.693, 0.693)] * SATURATION_STEPS, *easily) == []
    assert lines(CollapseSigns(), started("relativistic"), *[paired(0.693)] * SATURATION_STEPS, *hardly) == []


def test_a_generator_that_everyone_sees_through_is_told_once() -> None:
    signs, window = CollapseSigns(), [paired(0.01)] * SATURATION_STEPS
    assert lines(signs, started("relativistic"), *window, *[judged(1.0)] * (SCORES_IN_A_ROW - 1)) == []
    (told,) = lines(signs, *[judged(0.995)] * 3)
    assert told.startswith("the generator has given up: in the last 3 scores")
    assert lines(CollapseSigns(), *window, judged(1.0), judged(0.98), judged(1.0)) == []
    assert lines(CollapseSigns(), *[paired(0.2)] * SATURATION_STEPS, *[judged(1.0)] * 5) == []
    signs = CollapseSigns()  # what was said of the losses alone is not said again
    (told,) = lines(signs, started("hinge"), *[step(0.01)] * SATURATION_STEPS, *[judged(1.0)] * 5)
    assert "add up to 0.010" in told


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


def variety(mean: float, nearest: float = 1.0, **others: float) -> dict[str, Any]:
    """Ten classes of one ratio, but for those named, whose ratio is both of the mean and of the nearest."""
    names = [str(number) for number in range(10)]
    return {
        "event": "variety",
        "step": 600,
        "mean": dict.fromkeys(names, mean) | others,
        "nearest": dict.fromkeys(names, nearest) | others,
    }


def test_samples_that_vary_as_real_ones_do_are_left_in_peace() -> None:
    signs = CollapseSigns()
    assert lines(signs, variety(1.0), variety(0.8, 0.7), variety(1.4, 2.0), variety(0.9, 0.9, c=0.5)) == []
    assert lines(signs, {"event": "variety", "step": 600, "mean": {}, "nearest": {}}) == []


def test_samples_of_all_classes_that_are_alike_are_told_with_the_worst() -> None:
    (told,) = lines(CollapseSigns(), variety(0.55, 0.6, seven=0.3, eight=0.9))
    assert "samples of 11 of 12 classes are more alike than real pictures" in told
    assert "0.56, to the nearest neighbour 0.60; lowest: seven 0.30, 0 0.55, 1 0.55, 2 0.55" in told
    assert "docs/training-well.md" in told
    (told,) = lines(CollapseSigns(), variety(0.9, 0.1))  # a few pictures of each class, again and again
    assert "samples of 10 of 10 classes" in told


def test_a_single_class_that_collapses_is_told() -> None:
    (told,) = lines(CollapseSigns(), variety(0.9, 0.9, three=0.2))
    assert "samples of 1 of 11 classes are more alike" in told
    assert "lowest: three 0.20." in told


def test_what_was_told_is_told_again_only_when_it_gets_worse_or_comes_back() -> None:
    signs = CollapseSigns()
    assert len(lines(signs, variety(0.6))) == 1
    assert lines(signs, variety(0.6), variety(0.5), variety(0.66), variety(0.6), variety(0.7), variety(0.5)) == []
    assert len(lines(signs, variety(0.3))) == 1  # notably worse
    assert lines(signs, variety(0.35), variety(0.9)) == []
    assert len(lines(signs, variety(0.6))) == 1  # recovered, and back
    signs = CollapseSigns()
    assert len(lines(signs, variety(1.0, a=0.3))) == 1
    assert lines(signs, variety(1.0, b=0.3)) == []
    assert len(lines(signs, variety(1.0, a=0.3, b=0.3))) == 1  # twice as many classes
