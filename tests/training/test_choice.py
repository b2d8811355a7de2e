"""Which recipe is chosen for whose pictures, and what is told of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from frugan.data.facts import LOOKED_AT_PIXELS, Duplicate, PictureFacts
from frugan.data.formats.decoding import BLACK
from frugan.engine.run.events import read_events
from frugan.errors import BadInput
from frugan.faces.data.drawn_faces import write_drawn_faces
from frugan.planning.pace import Machine, machine_here
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.stepmemory.cards import unnamed_card
from frugan.training.candidates import THRESHOLDS
from frugan.training.choice import RecipeChoice, choose, choose_for
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from frugan.wording import GIB, MIB
from training.pictures import RECIPE, write_pictures, write_recipe


def facts_of(
    pictures: int = 2000, sides: tuple[int, int] = (300, 300), classes: tuple[int, ...] = (), transparent: int = 0
) -> PictureFacts:
    looked_at = np.zeros((10, 3, LOOKED_AT_PIXELS, LOOKED_AT_PIXELS), np.uint8)
    looked_at[:, 0] = 1
    return PictureFacts(np.full((pictures, 2), sides), classes, looked_at, False, transparent, ())


def machine(seconds: Mapping[int, float | None], *, is_card: bool = False) -> Machine:
    """One that takes so many seconds for a step at each side; None: it has no room."""
    return Machine(lambda recipe: seconds[recipe.resolution], is_card, "a made-up machine")


SLOW = machine({32: 0.5, 64: 4.0, 128: 20.0})
CARD = machine({32: 0.01, 64: 0.02, 128: 0.05, 256: 0.1}, is_card=True)


CASES = ((500, "10h"), (6000, "10h"), (500, "1min"))
"""Numbers of pictures, and times: enough for 256 pixels or for 32 alone."""


def loaded(choice: RecipeChoice) -> Recipe:
    assert isinstance(choice.recipe, str)
    return load_recipe(choice.recipe, choice.overrides)


def test_the_largest_size_that_the_time_is_enough_for() -> None:
    sides = {for_time: loaded(choose(facts_of(), SLOW, for_time)).resolution for for_time in ("30min", "2h", "20h")}
    assert sides == {"30min": 32, "2h": 64, "20h": 128}
    short = choose(facts_of(), SLOW, "2min")
    assert loaded(short).resolution == 32
    assert "few to learn from" in " ".join(short.lines)
    few = " ".join(choose(facts_of(3), SLOW, "2min").lines)
    assert "few to learn from" in few
    assert "360 times are training.duration=" in few
    assert "in 2min, in which" in few
    assert "in 30min, as no time is given" in " ".join(choose(facts_of(), SLOW).lines)
    assert "; 64 pixels would need about " in " ".join(choose(facts_of(), SLOW, "30min").lines)
    assert "; 64 pixels would need more than " in " ".join(choose(facts_of(), SLOW, "2min").lines)
    assert "would need" not in " ".join(choose(facts_of(), SLOW, "20h").lines)
    assert "; 256 pixels would need about " in " ".join(choose(facts_of(), CARD, "1h").lines)
    assert loaded(choose(facts_of(), CARD, "1h")).resolution == 128
    assert loaded(choose(facts_of(), CARD, "10h")).resolution == 256


def test_few_large_pictures_are_told_of_weights_to_start_from() -> None:
    told = {(count, for_time): choose(facts_of(count), CARD, for_time).lines for count, for_time in CASES}
    assert [any("name them with --init" in line for line in lines) for lines in told.values()] == [True, False, False]
    assert max(map(len, told.values())) <= 6
    start = loaded(choose(facts_of(), CARD, "10h"))
    assert not any("--init" in line for line in choose(facts_of(500), CARD, "10h", (), start).lines)


def test_pictures_that_may_be_learned_by_heart_are_told() -> None:
    def told(pictures: int, for_time: str, machine: Machine) -> bool:
        lines = choose(facts_of(pictures, (60, 60)), machine, for_time).lines
        assert len(lines) <= 7
        return any("by heart" in line for line in lines)

    assert not told(2000, "10h", SLOW)  # 64 pixels: 8,100 steps of 32, 130 times
    assert told(200, "10h", SLOW)
    assert not told(200, "2h", CARD)  # stylegan2-auto augments


def test_a_processor_is_not_given_what_is_for_cards() -> None:
    fast = machine({each.side: 0.001 for each in THRESHOLDS.candidates})
    assert choose(facts_of(), fast, "10h").recipe == "biggan-small-128"


def test_a_processor_is_not_timed_at_sizes_that_there_is_no_time_for() -> None:
    def timed(for_time: str) -> list[int]:
        sides: list[int] = []

        def pace(recipe: Recipe) -> float | None:
            sides.append(recipe.resolution)
            return SLOW.pace(recipe)

        choose(facts_of(), replace(SLOW, pace=pace), for_time)
        return sides

    assert [timed(for_time) for for_time in ("5min", "30min", "2h", "20h")] == [
        [32],
        [32, 64],
        [32, 64],
        [32, 64, 128],
    ]


@pytest.mark.parametrize("word", ["data.holdout=1.5", "data.subset=0"])
def test_values_of_data_are_refused_before_anything_is_opened_and_without_a_recipe(tmp_path: Path, word: str) -> None:
    with pytest.raises(BadInput, match=rf"^{word.partition('=')[0]}: ") as refused:
        choose_for(tmp_path / "not there", overrides=[word])
    assert "recipe" not in str(refused.value)


def test_a_length_that_is_asked_for_counts_where_a_size_is_chosen() -> None:
    asked = {steps: choose(facts_of(), SLOW, "20h", [f"training.duration={steps} steps"]) for steps in (99, 2000, 9000)}
    assert [loaded(each).resolution for each in asked.values()] == [32, 64, 128]
    assert loaded(choose(facts_of(), SLOW, "2h", ["training.duration=9000 steps"])).resolution == 64


def test_a_recipe_without_room_is_passed_over() -> None:
    crowded = machine({32: 0.01, 64: 0.02, 128: None, 256: None}, is_card=True)
    assert loaded(choose(facts_of(), crowded)).resolution == 64
    with pytest.raises(BadInput, match="no recipe that frugan chooses among fits a made-up machine"):
        choose(facts_of(), machine(dict.fromkeys((32, 64, 128, 256)), is_card=True))


def test_the_length_fits_the_time_in_two_digits() -> None:
    chosen = loaded(choose(facts_of(), SLOW, "30min"))
    assert str(chosen.training.duration) == "3200 steps"  # 0.9 * 1800 / 0.5 = 3240
    assert (str(chosen.training.time), chosen.evaluation.every) == ("30min", 0.25)
    with pytest.raises(BadInput, match=r"--for 5s: time for 9 steps .* give it 1[12] s or longer"):
        choose(facts_of(), SLOW, "5s")
    with pytest.raises(BadInput, match="expected a time"):
        choose(facts_of(), SLOW, "3 steps")


def test_the_average_of_a_short_run_reaches_back_over_a_tenth_of_it() -> None:
    """The recipe's is over 100 steps; a run of 3,200 is long enough for that, one of 320 is not."""
    recipes = [loaded(choose(facts_of(), SLOW, for_time)) for for_time in ("30min", "3min")]
    lengths = [recipe.training.duration.steps(recipe.training.batch) for recipe in recipes]
    averages = [recipe.ema.decay_at(500, 32, steps=steps) for recipe, steps in zip(recipes, lengths, strict=True)]
    assert averages == [0.99, pytest.approx(1 - 10 / 320)]
    asked = choose(facts_of(), SLOW, "3min", ["ema.decay=0.5"])
    assert not any(word.startswith("ema.") for word in asked.overrides)


def test_no_size_that_pictures_would_have_to_be_enlarged_to_by_much() -> None:
    nearly = choose(facts_of(sides=(60, 60)), SLOW, "10h")
    assert (loaded(nearly).resolution, loaded(nearly).data.allow_upscale) == (64, True)
    assert "enlarged: 2,000 of 2,000 pictures, smaller than 64 pixels" in " ".join(nearly.lines)
    assert "enlarged" not in " ".join(choose(facts_of(), SLOW, "10h").lines)
    assert loaded(choose(facts_of(sides=(40, 90)), SLOW, "10h")).resolution == 32
    tiny = choose(facts_of(sides=(16, 16)), SLOW, "10h")
    assert (loaded(tiny).resolution, loaded(tiny).data.allow_upscale) == (32, True)
    fewer = choose(facts_of(sides=(60, 60)), SLOW, "10h", ["data.allow_upscale=leave-out"])
    assert loaded(fewer).resolution == 32
    assert not any(word.startswith("data.allow_upscale") for word in fewer.overrides)


def test_a_few_too_small_pictures_are_left_out_and_not_enlarged() -> None:
    """As with a recipe that is named."""
    mostly_large = facts_of(100)
    mostly_large.sizes[:3] = 60
    chosen = choose(mostly_large, SLOW, "10h")
    assert (loaded(chosen).resolution, loaded(chosen).data.allow_upscale) == (64, False)
    assert (
        "left out: 3 of 100 pictures, smaller than 64 pixels; to enlarge them: data.allow_upscale=true" in chosen.lines
    )
    enlarged = choose(mostly_large, SLOW, "10h", ["data.allow_upscale=true"])
    assert any(line.startswith("enlarged: 3 of 100 pictures") for line in enlarged.lines)
    only_those = replace(mostly_large, class_counts=(3, 97), labels=np.repeat([0, 1], [3, 97]))
    assert loaded(choose(only_those, SLOW, "10h")).data.allow_upscale is True  # nothing of their class would be left
    mostly_large.sizes[:11] = 60
    assert loaded(choose(mostly_large, SLOW, "10h")).data.allow_upscale is True


def test_what_is_said_of_squares_counts_where_a_size_is_chosen() -> None:
    oblong = facts_of(sides=(40, 90))
    for word in ("data.fit=pad", 'data.fit="pad"'):
        assert loaded(choose(oblong, SLOW, "10h", [word])).resolution == 64
    clear = facts_of(sides=(40, 64), transparent=9)
    cropped = choose(clear, SLOW, "10h", ["data.fit=crop"])
    assert (loaded(cropped).resolution, "data.fit=pad" in cropped.overrides) == (32, False)
    assert loaded(choose(facts_of(sides=(60, 60)), SLOW, "10h", ["data.allow_upscale=false"])).resolution == 32
    assert loaded(choose(clear, SLOW, "10h", ["data.allow_upscale=false"])).resolution == 64  # which are padded
    padding = load_recipe("biggan-digits-32", ["data.fit=pad"])
    small = choose(facts_of(sides=(20, 20)), SLOW, "10h", (), padding)
    assert isinstance(small.recipe, Recipe)
    assert (small.recipe.data.fit, small.recipe.data.allow_upscale) == ("pad", False)


def test_what_cannot_be_seen_on_white_goes_on_black() -> None:
    unseen = replace(facts_of(transparent=9), background=BLACK)
    chosen = choose(unseen, SLOW, "30min")
    assert "data.background=black" in chosen.overrides
    assert "laid on black, as most cannot be seen on white" in chosen.lines[0]
    assert loaded(choose(facts_of(transparent=9), SLOW, "30min")).data.background == "white"
    asked = choose(unseen, SLOW, "30min", ["data.background=red"])
    assert "data.background=black" not in asked.overrides
    assert choose(unseen, SLOW, "30min", (), load_recipe("biggan-digits-32")).recipe.data.background == "white"  # type: ignore[union-attr]


def test_a_set_that_is_opened_keeps_its_size() -> None:
    opened = replace(facts_of(sides=(64, 64)), only_side=64)
    assert loaded(choose(opened, SLOW, "2min")).resolution == 64
    with pytest.raises(BadInput, match="an opened set of 256 pixels: frugan chooses this size on cards alone"):
        choose(replace(opened, only_side=256), SLOW, "2h")
    for other, asked, expected in ((48, (), "32, 64, 128, 256"), (64, ("networks.resolution=32",), "32")):
        with pytest.raises(BadInput, match=f"an opened set of {other} pixels; expected one of {expected} where"):
            choose(replace(opened, only_side=other), SLOW, "2h", asked)


def test_samples_of_all_scores_are_a_twentieth_of_what_is_shown() -> None:
    """An hour of 64,000 steps of 32 has four scores, twenty hours of 640,000 of 16 have one each hour."""
    chosen = {hours: loaded(choose(facts_of(), CARD, f"{hours}h")) for hours in (1, 20)}
    assert [str(each.training.duration) for each in chosen.values()] == ["64000 steps", "640000 steps"]
    assert [each.training.batch for each in chosen.values()] == [32, 16]
    assert [each.evaluation.samples for each in chosen.values()] == [64_000 * 32 // 20 // 4 // 1000 * 1000, 25_000]
    asked = loaded(choose(facts_of(), CARD, "1h", ["evaluation.samples=50000"]))
    assert asked.evaluation.samples == 50_000
    enough = choose(facts_of(), SLOW, "2min")  # a twentieth is not a thousand, and its scores are of 500
    assert not any(word.startswith("evaluation.samples") for word in enough.overrides)


def test_what_lies_on_a_background_keeps_its_ends() -> None:
    chosen = loaded(choose(facts_of(sides=(40, 64), transparent=9), SLOW, "10h"))
    assert (chosen.data.fit, chosen.data.allow_upscale, chosen.resolution) == ("pad", False, 64)


def test_classes_and_colours_are_those_of_the_pictures() -> None:
    assert loaded(choose(facts_of(classes=(9, 8, 7)), SLOW, "30min")).classes == 3
    assert loaded(choose(facts_of(), SLOW, "30min")).classes == 1
    assert "networks.classes=3" in choose(facts_of(classes=(9, 8, 7)), SLOW, "2h").overrides
    known = facts_of()
    grey = PictureFacts(known.sizes, (), known.looked_at, True, 0, ())
    assert "networks.channels=1" in choose(grey, SLOW, "30min").overrides


def test_what_is_there_twice_is_named_below_the_pictures() -> None:
    twice = Duplicate("cat/9.png", "cat/1.png", False), Duplicate("dog/8.png", "cat/2.png", True)
    lines = choose(replace(facts_of(), duplicates=twice), SLOW, "30min").lines
    assert lines[0].endswith("2 duplicates among 10 looked at, which stay in the set")
    assert lines[1] == "duplicates: cat/1.png = cat/9.png"
    assert lines[2].startswith("warning: the same picture in two classes: cat/2.png = dog/8.png; ")


def test_what_was_asked_for_is_not_told_as_a_choice() -> None:
    few = facts_of(pictures=300)
    told = " ".join(choose(few, SLOW, "30min", ["training.duration=200 steps"]).lines)
    assert "each picture is seen about 21 times" in told
    part = ["training.duration=200 steps", "data.subset=100"]
    assert "each picture is seen about 64 times" in " ".join(choose(few, SLOW, "30min", part).lines)
    assert "in 30min" not in told
    assert "override with --for" not in told
    in_hours = " ".join(choose(few, CARD, "10h", ["training.duration=1h"]).lines)
    assert "recipe: stylegan2-auto at 256 pixels" in in_hours
    assert "length" not in in_hours


def test_a_size_for_cards_alone_is_named() -> None:
    with pytest.raises(BadInput, match=r"resolution=256: .* cards alone; expected one of 32, 64, 128 without"):
        choose(facts_of(), SLOW, "30min", ["networks.resolution=256"])
    assert loaded(choose(facts_of(), CARD, "1h", ["networks.resolution=256"])).resolution == 256
    assert choose(facts_of(), SLOW, "30min", ["networks.resolution=128"]).recipe == "biggan-small-128"


def test_what_a_person_says_holds_and_few_lines_tell_the_rest() -> None:
    asked = ["networks.resolution=32", "training.duration=70 steps"]
    chosen = choose(facts_of(pictures=50), SLOW, "10h", asked)
    assert load_recipe(str(chosen.recipe), [*chosen.overrides, *asked]).resolution == 32
    assert "70 steps of 32" in " ".join(chosen.lines)
    assert len(chosen.lines) <= 6
    with pytest.raises(BadInput, match=r"networks\.resolution=48: expected 32, 64, 128, 256"):
        choose(facts_of(), SLOW, None, ["networks.resolution=48"])


def test_what_is_kept_goes_by_the_length_that_is_asked_for() -> None:
    asked = ["networks.resolution=32", "training.duration=800 steps"]
    for for_time in (None, "1s"):  # time for no step at all
        chosen = choose(facts_of(), SLOW, for_time, asked)
        recipe = load_recipe(str(chosen.recipe), [*chosen.overrides, *asked])
        assert (recipe.saving.checkpoint_every, recipe.evaluation.every) == (0.125, 0.25)
        assert recipe.training.time is None  # a number of steps is kept


def test_a_length_by_the_clock_is_the_time_that_there_is() -> None:
    asked = ["training.duration=10h"]
    chosen = choose(facts_of(), CARD, None, asked)
    recipe = load_recipe(str(chosen.recipe), [*chosen.overrides, *asked])
    assert (recipe.resolution, str(recipe.saving.checkpoint_every)) == (256, "30min")


def test_a_time_that_a_recipe_cannot_have_is_named_with_the_option_that_takes_it() -> None:
    with pytest.raises(
        BadInput, match=r"training\.duration=2h: where frugan chooses the recipe, a time is given as --for"
    ):
        choose(facts_of(), SLOW, None, ["training.duration=2h"])
    with pytest.raises(BadInput, match=r"networks\.nothing"):
        choose(facts_of(), SLOW, None, ["training.duration=2h", "networks.nothing=2"])


def test_weights_are_grown_to_the_resolution_that_is_asked_for() -> None:
    start = load_recipe("biggan-small-32", ["networks.classes=1"])
    chosen = choose(facts_of(sides=(48, 48)), SLOW, "30min", ["networks.resolution=64"], start)
    assert isinstance(chosen.recipe, Recipe)
    assert (chosen.recipe.resolution, chosen.recipe.data.allow_upscale) == (64, True)
    assert "at 64 pixels" in chosen.lines[1]


def test_classes_that_weights_do_not_know_are_told_of() -> None:
    start = load_recipe("biggan-small-32", ["networks.classes=1"])
    lines = choose(facts_of(classes=(500, 500)), SLOW, "30min", (), start).lines
    assert any(line.startswith("classes: 2, and the weights know 1: what these become") for line in lines)
    assert not any(line.startswith("classes:") for line in choose(facts_of(), SLOW, "30min", (), start).lines)


def test_a_long_run_keeps_a_checkpoint_each_half_hour() -> None:
    short, long = (loaded(choose(facts_of(), SLOW, for_time)) for for_time in ("2h", "400h"))
    assert short.saving.checkpoint_every == 0.125
    assert (str(long.saving.checkpoint_every), str(long.evaluation.every)) == ("30min", "1h")


def test_weights_keep_what_they_know_and_what_their_recipe_does_is_told() -> None:
    start = load_recipe("stylegan2-finetune-256")
    chosen = choose(facts_of(classes=(1000, 1000)), CARD, "1h", (), start)
    assert isinstance(chosen.recipe, Recipe)
    assert chosen.recipe.classes == 1
    told = " ".join(chosen.lines)
    assert "the weights know none" in told
    assert "flips: half of the pictures" in told
    assert len(chosen.lines) <= 6
    assert "flips" not in " ".join(choose(facts_of(), CARD, "1h", ["data.flip=true"], start).lines)


@pytest.mark.parametrize("pixels", [40, pytest.param(70, marks=pytest.mark.long)])
def test_a_batch_of_one_group_is_not_too_much_for_two_cards(pixels: int) -> None:
    two = machine_here(card="rtx-3060x2")
    chosen = choose(facts_of(sides=(pixels, pixels)), two, "30s")
    assert str(chosen.recipe).startswith("biggan-small")


def test_the_same_facts_give_the_same_choice() -> None:
    almost = machine({32: 0.502, 64: 4.01, 128: 20.1})
    assert choose(facts_of(), SLOW, "30min") == choose(facts_of(), almost, "30min")


def test_weights_to_start_from_bring_their_recipe() -> None:
    start = load_recipe("biggan-digits-32")
    chosen = choose(facts_of(classes=(5, 6)), SLOW, "1h", start=start)
    assert isinstance(chosen.recipe, Recipe)
    assert (chosen.recipe.classes, chosen.recipe.networks) == (
        2,
        start.networks.model_copy(update={"classes": 2}),
    )
    assert str(chosen.recipe.training.duration) == "6400 steps"


def test_weights_that_ship_are_started_from_unless_noise_or_other_networks_are_asked_for() -> None:
    def start(*words: str, **how: Any) -> tuple[str | None, bool]:
        chosen = choose(facts_of(classes=(5, 6)), SLOW, "2h", words, **how)
        known = "a discriminator that ships" if chosen.start == "biggan-small-64" else "weights that ship"
        told = [line.startswith(f"start: {known} ") for line in chosen.lines if "--init none" in line]
        assert all(told)
        return chosen.start, bool(told)

    assert start() == ("biggan-small-64", True)
    assert start("networks.resolution=32") == ("biggan-small-32", True)
    assert start(from_noise=True) == (None, False)
    assert start("networks.generator_channels=16") == (None, False)
    assert start("networks.channels=1", "optimizers.G.learning_rate=5e-4") == ("biggan-small-64", True)
    assert start(start=load_recipe("biggan-digits-32")) == (None, False)


def test_a_size_needs_fewer_pictures_from_weights_that_ship() -> None:
    def side(*words: str, **how: Any) -> int:
        return loaded(choose(facts_of(), machine({32: 0.1, 64: 0.5, 128: 2.0}), "8min", words, **how)).resolution

    assert [side(), side("networks.classes=1")] == [64, 64]
    assert [side(from_noise=True), side("networks.latent_size=64")] == [32, 32]


def test_few_steps_from_weights_that_ship_are_smaller_and_more() -> None:
    def batch(for_time: str, *words: str, on: Machine | None = None, **how: Any) -> int:
        by_batch = Machine(lambda recipe: recipe.training.batch / 64, False, "a made-up machine")
        choice = choose(facts_of(), on or by_batch, for_time, words, **how)
        recipe = loaded(choice)
        told = any(line.startswith("settings: training.batch=16 ") and "beta1=0.5" in line for line in choice.lines)
        assert told == (recipe.training.batch == 16)
        assert {settings.beta1 for settings in recipe.optimizers.values()} == {0.5 if told else 0.0}  # type: ignore[attr-defined]
        assert recipe.training.normalisation_batch == (16 if told else 32)
        return recipe.training.batch

    assert [batch("2min"), batch("10min"), batch("2min", from_noise=True)] == [16, 32, 32]
    assert batch("2min", "networks.generator_channels=16") == 32
    assert batch("2min", "training.batch=32") == batch("2min", "objective.r1_gamma=1") == 32
    assert batch("2min", "training.duration=40 steps") == 32
    assert batch("2min", on=CARD) == 32
    steps = loaded(choose(facts_of(), Machine(lambda recipe: recipe.training.batch / 64, False, ""), "2min")).training
    assert steps.duration.known_steps(16) == 430


def test_a_run_is_begun_by_it_told_of_it_and_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = write_pictures(tmp_path / "pictures", each=12)
    tiny = write_recipe(tmp_path, RECIPE)
    asked_for = SimpleNamespace(times=0)

    def chosen(*_: object, **__: object) -> RecipeChoice:
        asked_for.times += 1
        return RecipeChoice(tiny, ("training.duration=2 steps",), ("pictures: some", "recipe: tiny"))

    monkeypatch.setattr("frugan.training.open_run.choose_for", chosen)
    told: list[str] = []
    run, options = tmp_path / "run", TrainingOptions(device="cpu")
    assert train(None, pictures, run, options=options, say=told.append).step == 2
    assert told[:2] == ["pictures: some", "recipe: tiny"]
    lines = [event["line"] for event in read_events(run / "events.jsonl") if event["event"] == "choice"]
    assert lines[:2] == told[:2]
    goes_on = train(None, pictures, run, for_time="1h", overrides=["training.duration=3 steps"], options=options)
    assert (goes_on.step, asked_for.times) == (3, 1)
    with pytest.raises(BadInput, match="--for banana: expected a time"):
        train(tiny, pictures, tmp_path / "other", for_time="banana", options=options)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "no recipe and no pictures given: add --data PATH"),
        ({}, "no recipe and no pictures given"),
        ({"src": "a", "dst": "b"}, "for faces name one"),
        ("s3://somewhere/else", "read from a disk of this machine"),
        ({"images": 3}, "expected pictures, not int"),
    ],
)
def test_what_no_recipe_is_chosen_for(data: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        choose_for(data, "cpu")  # type: ignore[arg-type]


def test_a_card_is_planned_for_by_what_is_predicted() -> None:
    seconds = machine_here("cpu", "rtx-3060").pace(load_recipe("biggan-digits-32"))
    assert seconds is not None
    assert 0 < seconds < 1
    assert machine_here("cpu", "rtx-3060", "1GiB").pace(load_recipe("biggan-imagenet-512")) is None
    for given, message in (
        (("riva-128",), "'riva-128' is not known"),
        (("rtx-3060", "six"), "'six' is not a size"),
        (("rtx-3060x4", None, 3), "names 4"),
        (("rtx-3060x4", None, None, "quick"), "expected the bandwidth between cards"),
        (("rtx-3060", None, None, "8GB/s"), "between several cards"),
    ):
        with pytest.raises(BadInput, match=message):
            machine_here("cpu", *given)


@pytest.mark.parametrize("asked", [None, "1"])
def test_a_processor_is_timed_with_the_threads_that_training_would_take(
    asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[tuple[int, ...]] = []

    def of(time_step: Callable[[], float], counts: Sequence[int], rounds: int) -> dict[int, float]:
        timed.append(tuple(counts))
        torch.set_num_threads(max(counts))
        assert time_step() > 0
        return {count: 4 / count for count in counts}

    monkeypatch.setattr("frugan.engine.run.threads.time_counts", of)
    monkeypatch.setattr("frugan.engine.run.threads.asked_for", lambda: asked)
    monkeypatch.setattr("frugan.planning.pace.available_cores", lambda: 4)
    before = torch.get_num_threads()
    seconds = machine_here("cpu").pace(load_recipe("biggan-digits-32"))
    assert (timed, seconds) == (([(before,)], 4 / before) if asked else ([(1, 2, 4)], 1))
    assert torch.get_num_threads() == before


@pytest.mark.long
def test_several_cards_share_each_batch() -> None:
    recipe = load_recipe("r3gan-digits-32")
    one, four, named = (
        machine_here("cpu", card, gpus=gpus) for card, gpus in (("t4", None), ("t4x4", None), ("t4", 4))
    )
    seconds = [machine.pace(recipe) for machine in (one, four)]
    assert None not in seconds
    assert seconds[0] != seconds[1]
    assert four.words == named.words == "4 x t4, by predicted times"


def test_of_the_card_here_what_is_free_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"bytes": 8 * GIB}
    monkeypatch.setattr("frugan.planning.pace.choose_device", lambda asked: (torch.device("meta"), "made up"))
    monkeypatch.setattr("frugan.planning.pace.choose_card", lambda card, device: unnamed_card())
    monkeypatch.setattr("frugan.planning.pace.free_bytes", lambda device: (free["bytes"], 8 * GIB))
    small = load_recipe("biggan-digits-32")
    assert machine_here().pace(small) is not None
    free["bytes"] = MIB
    assert machine_here().pace(small) is None


def test_a_workspace_of_faces_is_no_set_of_pictures(tmp_path: Path) -> None:
    """Its frames and its faces are no classes; nothing is read, and the command to type is said."""
    for side in ("data_src", "data_dst"):
        (tmp_path / "my film" / side / "aligned").mkdir(parents=True)
    with pytest.raises(BadInput, match="this is a DeepFaceLab workspace") as refused:
        choose_for(tmp_path / "my film", "cpu")
    assert f"frugan train saehd-demo-64 --data '{tmp_path / 'my film'}' --out runs/swap" in str(refused.value)
    assert "quick96" in str(refused.value)
    assert "saehd-df-ud-256" in str(refused.value)
    with pytest.raises(BadInput, match=r"one side of a DeepFaceLab workspace.* --data '.*my film' --out"):
        choose_for(tmp_path / "my film" / "data_dst", "cpu")


def test_aligned_faces_alone_are_pictures_and_a_line_says_what_they_are(tmp_path: Path) -> None:
    faces = write_drawn_faces(tmp_path / "workspace", 20) / "data_src" / "aligned"
    line = choose_for(faces, "cpu", for_time="20min").lines[0]
    assert "faces that DeepFaceLab aligned" in line
    assert "--data src=PATH --data dst=PATH" in line
    pictures = write_pictures(tmp_path / "pictures", each=12)
    assert not any("DeepFaceLab" in line for line in choose_for(pictures, "cpu", for_time="20min").lines)
