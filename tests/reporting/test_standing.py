"""A run in a sentence and two scores: what is said, and what is left out as it could only mislead."""

from typing import Any

import pytest

from frugan.reporting.standing import headlines, note, origin, sentence
from frugan.wording import beside_real, with_interval

STEP = {"step": {"step": 9, "eta_seconds": 90.0}}


def scored(share: float, **measured: Any) -> dict[str, Any]:
    scores = {"precision": 0.6, "recall": 0.25, "recall_real": 0.9, "two_sample": share, "two_sample_real": 0.52}
    return {"scores": scores, "provenance": {"network": "pixels", "samples": 1000, "rows": 500, **measured}}


def test_scores_stand_with_their_controls() -> None:
    sees = "sees 10% of another picture laid over; does not see a blur of 1 pixels"
    first, second = headlines(scored(0.79, control=f"two-sample sees a blur of 2 pixels; pr,dc {sees}"))
    assert (first.name, first.value) == ("told from real pictures", "79 times in 100")
    shown_damaged = "shown damaged real pictures, it"
    assert first.about == f"50 is guessing; real ones from each other: 52; {shown_damaged} sees a blur of 2 pixels"
    assert (second.name, second.value) == ("recall (pixels)", "0.250 ± 0.038")
    assert second.about.endswith(f": 1 is all of them; real ones from each other: 0.9; {shown_damaged} {sees}")
    assert headlines(scored(0.79, neighbours=100))[1].value == "0.250 ± 0.084"


def test_neighbours_in_pixels_are_not_put_forward_while_pictures_are_told_apart() -> None:
    (alone,) = headlines(scored(0.91))
    assert alone.about.endswith("; precision and recall by pixels say little yet")
    assert [score.name for score in headlines(scored(0.91, network="inception-2015-12-05"))][1:] == ["recall"]
    young = scored(0.91)
    young["scores"]["fid"] = 30.0
    assert [score.name for score in headlines(young)][1:] == ["FID (pixels)"]
    of_pixels = {"network": "pixels"}
    assert beside_real("recall", young["scores"], of_pixels) == " (real pictures 0.9; says little yet)"
    assert beside_real("precision", young["scores"], of_pixels) == " (says little yet)"
    assert beside_real("fid", young["scores"], of_pixels) == ""
    assert beside_real("recall", scored(0.8)["scores"], of_pixels) == " (real pictures 0.9)"
    assert beside_real("recall", young["scores"], {"network": "digits"}) == " (real pictures 0.9)"


@pytest.mark.parametrize(
    ("score", "value", "half_width", "shown"),
    [
        ("recall", 0.91, 0.059, "0.910 ± 0.059"),
        ("recall", 0.98, 0.04, "0.94 to 1"),
        ("precision", 0.02, 0.04, "0 to 0.06"),
        ("recall", 0.5, None, "0.5"),
        ("kid_mean", 0.001, 0.002, "0.0010 ± 0.0020"),  # may be below 0
        ("fid", 12.0, 3.0, "12.0 ± 3.0"),
        ("fid", 1234.5, 120.0, "1234 ± 120"),
        ("f_score", 0.1347, 0.012, "0.135 ± 0.012"),
        ("recall", 0.6654, 0.14, "0.67 ± 0.14"),
        ("recall", 0.9123, 0.14, "0.77 to 1"),
        ("fid", 12.0, 0.0, "12 ± 0"),
    ],
)
def test_an_interval_ends_where_the_score_does(score: str, value: float, half_width: float | None, shown: str) -> None:
    assert with_interval(score, value, half_width) == shown


def test_nothing_is_told_apart_more_than_100_times_in_100() -> None:
    metrics = scored(1.0)
    metrics["scores"]["two_sample_half_width"] = 0.13
    assert headlines(metrics)[0].value == "87 to 100 times in 100"


def test_a_score_that_sees_nothing_is_not_shown() -> None:
    blind = scored(0.51, blind="two-sample,pr")
    assert [(score.name, score.value) for score in headlines(blind)] == [("told from real pictures", "-")]
    assert "hardly" not in sentence("running", STEP | {"metrics": blind}, None)
    assert headlines({}) == []


@pytest.mark.parametrize(
    ("state", "share", "warning", "told"),
    [
        (
            "running",
            0.99,
            None,
            "Training, 1:30 left: its pictures are still easily told from real ones; nothing needs",
        ),
        (
            "running",
            0.75,
            "step 9: x",
            "Training, 1:30 left: a small network still tells its pictures from real ones 75",
        ),
        ("running", 0.75, "step 9: x", '; read the warning: "step 9: x".'),
        ("finished", 0.5, None, "Finished: a small network can hardly tell its pictures from real ones; look at"),
        ("stopped", 0.5, "step 9: x", 'let it go on if they still get better; read the warning first: "step 9: x".'),
        ("finished", 0.5, f"step 9: {'word ' * 99}", 'first: "step 9: word word'),
        ("finished", 0.5, f"step 9: {'word ' * 99}", 'word word ...".'),
        ("died", 0.5, None, "Ended at step 9 without saying why"),
        ("stopped", 0.5, None, "Stopped at step 9: a small network can hardly"),
    ],
)
def test_one_sentence_says_how_it_goes_and_what_to_do(state: str, share: float, warning: str | None, told: str) -> None:
    assert told in sentence(state, STEP | {"metrics": scored(share)}, warning)


@pytest.mark.parametrize(
    ("share", "half_width", "real", "hardly"),
    [(0.54, 0.03, 0.5, True), (0.55, 0.01, 0.5, False), (0.55, 0.01, 0.53, True), (0.6, 0.15, 0.5, False)],
)
def test_hardly_told_apart_is_said_only_where_interval_and_control_allow_it(
    share: float, half_width: float, real: float, hardly: bool
) -> None:
    metrics = {"scores": {"two_sample": share, "two_sample_half_width": half_width, "two_sample_real": real}}
    told = sentence("finished", {"metrics": metrics}, None)
    assert ("hardly" in told) is hardly
    assert (f"{100 * share:.0f} times in 100" in told) is not hardly


def test_another_length_is_told_in_words() -> None:
    event = {"event": "length", "step": 300, "steps": 1150, "before": 2900, "slowdown": 2.52}
    assert note(event) == (
        "choice",
        "step 300: 1,150 steps in place of 2,900, to keep the time (a step took 2.5 times as long as thought)",
    )
    assert note({"event": "length", "step": 300}) is None
    for steps, slowdown, why in (
        (23, 0.98, " (what comes between steps takes more time than was kept for it)"),
        (27, 1.2, " (what comes between steps takes less time than was kept for it)"),
        (23, 1.03, ""),
        (27, 0.5, " (a step took 0.5 times as long as thought)"),
    ):
        told = note({"event": "length", "step": 9, "steps": steps, "before": 25, "slowdown": slowdown})
        assert told == ("choice", f"step 9: {steps} steps in place of 25, to keep the time{why}")
    first = {"event": "length", "step": 300, "steps": 1150}
    assert note(first) == ("choice", "step 300: 1,150 steps, to keep the time")


def test_an_origin_names_the_family_as_people_write_it_and_who_made_it() -> None:
    start = {"recipe": {"family": "stylegan2"}, "data": {"images": {"pictures": 1797}}}
    assert origin(start, " Ada ") == "Made by Ada with frugan: StyleGAN2 generator, trained on 1,797 pictures."
