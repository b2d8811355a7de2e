"""`plan`: what it answers, what it refuses, and that training runs by it."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import frugan
from frugan.accelerator.precision import Precision
from frugan.engine.plan import Plan
from frugan.engine.run.checkpoint import newest_whole
from frugan.errors import BadInput, TrainingFailed
from frugan.planning.plan_recipe import PlanOptions, planner_of
from frugan.planning.plan_report import PlanReport
from frugan.planning.plan_space import PlanConstraints
from frugan.planning.plan_text import report_blocks
from frugan.planning.planner import Planner
from frugan.planning.predictions import Predictions
from frugan.planning.recipe_predictions import shipped_predictions
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipe.relatives import MOST_BATCH, relatives
from frugan.recipes import PARAMETERS, built_in, shipped_recipes, smallest_cards
from frugan.setup.recipe_setup import parameter_counts, training_of
from frugan.stepmemory.cards import LAPTOP_SLOWER, PUBLISHED, named_card, unnamed_card
from frugan.training.plan_in_force import TrainingPlanner
from frugan.training.run import TrainingOptions
from frugan.wording import GIB, MIB, show_size
from planning.formula import PredictionsBy, predicted_by_formula
from planning.planners import training_planner
from training.pictures import RECIPE, write_pictures, write_recipe

FP32 = Precision("fp32", torch.float32, "test")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGAN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A recipe of a few thousand weights."""
    text = RECIPE.replace('precision = "fp32"', 'precision = "auto"')
    return write_recipe(tmp_path_factory.mktemp("recipe"), text)


@pytest.fixture
def by_formula(monkeypatch: pytest.MonkeyPatch, predictions_by: PredictionsBy, tmp_path: Path) -> None:
    """Predictions by a formula, where many are asked for and what they are does not matter."""
    monkeypatch.setenv("FRUGAN_CACHE", str(tmp_path / "cache of formulas"))
    predictions_by(predicted_by_formula)


@pytest.mark.parametrize("shipped", [True, pytest.param(False, marks=pytest.mark.long)])
def test_it_fits_and_everything_adds_up(shipped: bool, small: str) -> None:
    """By predictions that ship; by some that are made now, which takes half a minute."""
    report = frugan.plan("biggan-digits-32" if shipped else small, "6GiB")
    assert report.fits
    assert sum(report.categories.values()) == report.peak_bytes <= 6 * GIB
    assert report.micro_batch * report.accumulation >= report.batch
    assert {"D", "G", "sheets"} <= set(report.by_phase)
    values = report.as_json()
    keys = {"fits", "peak_bytes", "micro_batch", "accumulation", "savers", "categories", "extra_compute"}
    assert keys <= values.keys()
    assert json.loads(json.dumps(values)) == values | {"savers": list(report.savers)}
    assert {line.split(":")[0] for line in report.decisions} >= {"precision", "micro-batch", "card"}


@pytest.mark.usefixtures("by_formula")
def test_it_does_not_fit(small: str) -> None:
    report = frugan.plan(small, 850 * MIB)
    assert not report.fits
    assert report.peak_bytes > 850 * MIB
    values = report.as_json()
    assert values["smallest_bytes"] == report.peak_bytes
    assert frugan.plan(small, report.peak_bytes).fits
    assert report.nearest_change is None or load_recipe(small, report.nearest_change)


@pytest.mark.usefixtures("by_formula")
def test_that_it_does_not_fit_is_said_before_a_change_is_looked_for(
    small: str, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """The search is given so much time, and begins nothing that would not be done by then."""
    now = [0.0]

    def too_large(recipe: Recipe, _: str) -> Iterator[tuple[tuple[str, ...], Recipe]]:
        for number in range(9):
            said.append(f"tried {number}")
            now[0] += 1.25
            yield (), recipe

    monkeypatch.setattr("frugan.planning.planner.smaller_recipes", too_large)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Predictions, "learn", lambda *_: now.__setitem__(0, now[0] + 0.5))
    report = frugan.plan(small, 850 * MIB, options=PlanOptions(say=said.append))
    assert said[0].startswith("does NOT fit 850 MiB: it takes ")
    # at 1.25 s the first, until 1.75; at 3 s the second would not be done by 3
    assert said[1:] == ["tried 0", "tried 1"]
    assert report.nearest_change is None


@pytest.mark.usefixtures("by_formula")
def test_without_a_budget_there_is_a_ladder(small: str) -> None:
    rungs = frugan.plan(small).ladder
    assert len(rungs) > 1
    assert [r.peak_bytes for r in rungs] == sorted((r.peak_bytes for r in rungs), reverse=True)
    assert rungs[0].extra_time == 0


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (6, "memory 6: expected a size such as"),
        ("six", "'six' is not a size"),
        ("6", "expected a number with a unit"),
        ("100MiB", "CUDA and its libraries"),
        ("770MiB", "the parameters alone take"),
    ],
)
def test_budgets_that_are_none(memory: str | int, message: str, small: str) -> None:
    with pytest.raises(BadInput, match=message):
        frugan.plan(small, memory)


@pytest.mark.parametrize(
    ("duration", "begins", "shares"),
    [
        ("30k steps", [0], [1.0]),
        ("500k steps", [0], [1.0]),
        ("600k steps", [0, 500_000], [5 / 6, 1 / 6]),
        ("1M steps", [0, 500_000, 700_000], [0.5, 0.2, 0.3]),
        ("6h", [0, 500_000, 700_000], [5 / 14, 2 / 14, 7 / 14]),  # nobody knows how many steps that is
    ],
)
def test_stages_that_begin_after_the_end_are_left_out(duration: str, begins: list[int], shares: list[float]) -> None:
    training = training_of(load_recipe("saehd-df-ud-512", [f"training.duration={duration}"]))
    assert [stage.begins for stage in training.distinct_stages] == begins
    assert [stage.share for stage in training.distinct_stages] == pytest.approx(shares)
    assert len(training.stages) == 3  # a run that goes on for longer comes to them


@pytest.mark.usefixtures("by_formula")
def test_what_is_said_of_a_plan_is_what_was_found(small: str) -> None:
    """Of a saving why it is there, of recomputing only where there is a choice, and times for one card as for many."""
    avoid = ("recompute", "keep-products", "ema-on-host")
    options = frugan.PlanOptions(card="rtx-2060", avoid=avoid, micro_batch=8)
    roomy, tight = (frugan.plan(small, size, options=options) for size in ("6GiB", "960MiB"))
    assert not roomy.savers or roomy.savers == ("micro-batch",)
    assert "optimizer-on-host" in tight.savers
    said = [line for line in tight.decisions if line.startswith("optimizer-on-host: ")]
    assert said == [
        "optimizer-on-host: every faster plan takes more than there is; avoid it with --avoid optimizer-on-host"
    ]
    assert not [line for line in (*roomy.decisions, *tight.decisions) if line.startswith("recompute: ")]
    assert roomy.as_json()["images_per_second"] == pytest.approx(roomy.batch / roomy.step_seconds)
    assert roomy.as_json()["time_range"] == [0.8, 1.8]
    text = "\n".join(str(block) for block in report_blocks(roomy, 0.5))
    assert " images/s; the card is predicted to be busy " in text
    assert "the 2 published times of Turing cards lie within 0.8 to 1.8 times that" in text
    assert "price: about " in text
    printed = str(roomy)
    assert printed.startswith(f"{small} fits 6.00 GiB")
    assert " images/s; the card is predicted to be busy " in printed
    assert set(roomy.decisions) <= {line.removeprefix("- ") for line in printed.splitlines()}


@pytest.mark.usefixtures("by_formula")
def test_a_laptops_card_may_take_longer_than_its_processor_in_a_desktop(small: str) -> None:
    """How much longer is a guess, and called one; what was measured on the very card needs none."""
    desktop, laptop = (
        frugan.plan(small, "5GiB", options=frugan.PlanOptions(card=card)) for card in ("rtx-3060", "rtx-3060-laptop")
    )
    (least, most), widened = desktop.as_json()["time_range"], laptop.as_json()["time_range"]
    assert widened == [least, LAPTOP_SLOWER * most]
    text = "\n".join(str(block) for block in report_blocks(laptop))
    assert "a laptop's power limit may make it slower" in text
    assert f"lie within {least:g} to {most:g} times that, and {LAPTOP_SLOWER * most:g} for a laptop is a guess" in text
    assert "laptop" not in "\n".join(str(block) for block in report_blocks(desktop))


@pytest.mark.usefixtures("by_formula")
def test_more_than_the_card_has_is_said_and_used(small: str) -> None:
    report = frugan.plan(small, "24GiB", options=frugan.PlanOptions(card="rtx-2060"))
    assert report.fits
    assert any("24.00 GiB as asked, although rtx-2060 has 5.60 GiB for programs" in line for line in report.decisions)
    assert report.precision == "fp16"


def said_of_memory(report: PlanReport) -> dict[str, str]:
    """What its lines about memory and the desktop say."""
    lines = (line.partition(": ") for line in report.decisions)
    return {topic: said for topic, _, said in lines if topic in {"memory", "desktop"}}


@pytest.mark.usefixtures("by_formula")
@pytest.mark.parametrize(("card", "known"), [("rtx-2060", "as people have shown it"), ("rtx-2060-super", "predicted")])
def test_all_of_a_named_card_is_what_its_driver_leaves(card: str, known: str, small: str) -> None:
    published = PUBLISHED[card]
    report = frugan.plan(small, options=frugan.PlanOptions(card=card.replace("rtx-", "")))
    assert report.budget_bytes == published.left_bytes < published.gib * GIB
    said = said_of_memory(report)
    assert said["memory"] == (
        f"{show_size(published.left_bytes)}, what the driver leaves of {card}'s {published.gib} GB under Linux "
        f"({known}); override with --memory"
    )
    assert report.desktop_budget_bytes == published.left_bytes - GIB
    assert report.desktop_chosen == report.chosen
    assert said["desktop"].endswith(f"{show_size(published.left_bytes - GIB)}: this plan fits there too")


@pytest.mark.usefixtures("by_formula")
@pytest.mark.parametrize("left_mib", [960, 300])
def test_a_plan_that_does_not_fit_beside_a_desktop_says_which_does(
    left_mib: int, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frugan.planning.planner.DESKTOP_BYTES", PUBLISHED["rtx-2060"].left_bytes - left_mib * MIB)
    report = frugan.plan(small, options=frugan.PlanOptions(card="rtx-2060"))
    said, beside = said_of_memory(report)["desktop"], report.as_json()["beside_desktop"]
    assert beside["budget_bytes"] == left_mib * MIB
    if left_mib == 300:
        assert beside["plan"] is None
        assert said.endswith("300 MiB: no plan fits there")
        return
    memory = re.findall(r"\(--memory ([\w.]+)\)", said)
    there = frugan.plan(small, memory[0], options=frugan.PlanOptions(card="rtx-2060"))
    assert there.fits
    assert there.desktop_budget_bytes is None
    assert beside["plan"] == there.chosen.as_json() != report.chosen.as_json()
    assert there.savers
    assert all(saver in said for saver in there.savers if saver != "micro-batch")


@pytest.mark.usefixtures("by_formula")
@pytest.mark.parametrize(
    ("memory", "card"), [("5GiB", "rtx-2060"), (None, "t4"), (None, "rtx-2060x2"), ("5GiB", None), (None, None)]
)
def test_no_desktop_is_spoken_of_where_none_is_or_memory_was_given(
    memory: str | None, card: str | None, small: str
) -> None:
    report = frugan.plan(small, memory, options=frugan.PlanOptions(card=card))
    assert report.desktop_budget_bytes is None
    assert report.as_json()["beside_desktop"] is None
    assert "desktop" not in said_of_memory(report)


@pytest.mark.usefixtures("by_formula")
def test_the_largest_that_fits_a_card_knows_of_the_desktop(small: str) -> None:
    _, report = frugan.largest(small, "batch", None, options=frugan.PlanOptions(card="rtx-2060"))
    assert report.desktop_chosen is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"card": "riva-128"}, "riva-128"),
        ({"gpus": 3}, "plan for at most 2"),
        ({"gpus": 0}, "expected at least one"),
        ({"micro_batch": 7}, "multiple of"),
        ({"use": ("recompute", "keep-products")}, "contradict"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], message: str, small: str) -> None:
    with pytest.raises(BadInput, match=message):
        frugan.plan(small, "6GiB", options=frugan.PlanOptions(**options))  # type: ignore[arg-type]


@pytest.mark.usefixtures("by_formula")
def test_cards_share_the_batch_and_talk(small: str) -> None:
    one, two = (frugan.plan(small, "6GiB", options=frugan.PlanOptions(gpus=n)) for n in (1, 2))
    assert two.micro_batch * two.accumulation == one.batch // 2
    assert {"gradient buckets", "communication"} <= two.categories.keys() - one.categories.keys()
    assert sum(two.categories.values()) == two.peak_bytes


@pytest.mark.usefixtures("by_formula")
@pytest.mark.long
def test_the_largest_batch_fits_in_one_forward_and_the_next_does_not(small: str) -> None:
    budget = 1 * GIB
    words, report = frugan.largest(small, "batch", budget)
    assert report.fits
    assert report.accumulation == 1
    batch = int(words[0].removeprefix("training.batch="))
    twice = frugan.plan(small, budget, [f"training.batch={2 * batch}"], frugan.PlanOptions(micro_batch=2 * batch))
    assert not twice.fits


@pytest.mark.usefixtures("by_formula")
def test_the_largest_is_found_where_larger_ones_have_no_room_for_their_parameters() -> None:
    words, report = frugan.largest("stylegan2-digits-32", "width", "2GiB")
    assert report.fits
    assert words
    assert report.decisions[0].endswith("does not fit")
    _, generous = frugan.largest("stylegan2-digits-32", "resolution", "100GiB")
    assert generous.decisions[0].startswith("resolution: ")
    assert generous.decisions[0].endswith("nothing larger is tried")


def test_relatives_of_larger_batches_end_where_nobody_trains_any_more(small: str) -> None:
    batches = [recipe.training.batch for _, recipe in relatives(load_recipe(small), "batch")]
    assert batches == sorted(batches)
    assert batches[-1] <= MOST_BATCH < 2 * batches[-1]


def test_relatives_of_every_recipe_are_recipes() -> None:
    for name in built_in():
        recipe = load_recipe(name)
        for fields in recipe.kind.variants(recipe.networks).values():
            sizes = [json.dumps(each) for each in fields]
            assert len(sizes) == len(set(sizes)) > 1


@pytest.mark.usefixtures("by_formula")
def test_tf32_is_planned_for_and_offered_where_it_is_faster(small: str) -> None:
    def told(*words: str, card: str) -> list[str]:
        report = frugan.plan(small, None, ["training.precision=fp32", *words], frugan.PlanOptions(card=card))
        return [line for line in report.decisions if line.startswith("TF32")]

    assert told("training.tf32=true", card="a100") == [
        "TF32: on, so products of fp32 numbers have three digits; override with training.tf32=false"
    ]
    (offered,) = told(card="a100")
    assert "training.tf32=true they have three and are up to" in offered
    assert told(card="rtx-3060") == []  # where it is no faster
    assert told(card="gtx-1080") == []


@pytest.mark.usefixtures("by_formula")
def test_the_precision_has_its_reason_and_the_best_other_one(small: str) -> None:
    def told(precision: str, card: str) -> str:
        report = frugan.plan(small, None, [f"training.precision={precision}"], frugan.PlanOptions(card=card))
        return next(line for line in report.decisions if line.startswith("precision: "))

    assert told("fp32", "a100") == "precision: fp32 (asked for); override with training.precision=bf16"
    assert told("bf16", "a100") == "precision: bf16 (asked for); override with training.precision=fp32"
    assert told("bf16", "rtx-2060") == (
        "precision: fp32 (bf16 was asked for, and rtx-2060 with compute capability 7.5 has no bf16 units, but those of "
        "fp16); override with training.precision=fp16"
    )


def test_a_cards_precision_is_planned_for(small: str) -> None:
    asked = load_recipe(small).training.precision
    names = {card: named_card(card).precision(asked).name for card in ("gtx-1060", "rtx-2060", "rtx-3060")}
    assert names == {"gtx-1060": "fp32", "rtx-2060": "fp16", "rtx-3060": "bf16"}
    assert unnamed_card().precision("fp32").name == "fp32"


def test_shipped_predictions_are_found_by_name() -> None:
    assert shipped_predictions("no-such-recipe") is None


@pytest.mark.usefixtures("by_formula")
def test_what_ships_for_other_torches_is_made_here_once_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.9.0+cu999")
    for said in (True, False):
        lines = [line for line in frugan.plan("biggan-digits-32", "6GiB").decisions if line.startswith("predictions:")]
        assert len(lines) == said
        assert not said or re.search(r"this is torch 9\.9\.0; those that ship .* \d\.\d+\.\d", lines[0]), lines


def test_every_recipe_has_its_smallest_card() -> None:
    known = smallest_cards()
    assert list(known) == [name for name in built_in() if shipped_predictions(name)]  # others are not predicted yet
    name = "biggan-digits-32"
    assert frugan.plan(name, f"{known[name]}GiB").fits


def test_smallest_cards_in_fp32_are_no_smaller_and_their_predictions_ship() -> None:
    half, full = smallest_cards(), smallest_cards(fp32=True)
    assert "biggan-digits-32" in full
    for name, gib in full.items():
        assert gib is None or gib >= (half[name] or 0), name
    planner = planner_of("biggan-digits-32", (), PlanOptions(card="gtx-1060"))
    report = planner.report((full[planner.name] or 0) * GIB)
    assert (report.fits, report.precision) == (True, "fp32")
    assert planner.store.ran == 0


each_prediction = pytest.mark.parametrize("by", ["formula", pytest.param("run", marks=pytest.mark.long)])
"""Training asks for many: real ones take half a minute."""


@each_prediction
def test_training_keeps_to_a_budget_and_resumes_by_its_plan(
    by: str, tmp_path: Path, small: str, request: pytest.FixtureRequest, said: list[str]
) -> None:
    if by == "formula":
        request.getfixturevalue("by_formula")
    budget_mib = {"formula": 205, "run": 5}[by]
    write_pictures(tmp_path / "pictures")
    words = ["training.batch=16", "training.duration=2 steps"]
    tight = TrainingOptions(device="cpu", memory=f"{budget_mib}MiB")
    frugan.train(small, tmp_path / "pictures", tmp_path / "run", overrides=words, options=tight, say=said.append)
    assert any(line.startswith("plan: ") and " at a time, " in line for line in said)
    assert any("cannot be capped" in line for line in said)
    report = json.loads((tmp_path / "run" / "plan.json").read_text("utf-8"))
    assert report["fits"]
    assert report["peak_bytes"] <= budget_mib * MIB
    newest = newest_whole(tmp_path / "run" / "checkpoints")
    assert newest is not None
    saved = Plan.from_json(newest[1]["plan"], FP32)
    assert saved.micro_batch == report["micro_batch"]
    said.clear()
    words[-1] = "training.duration=3 steps"
    frugan.train(
        small,
        tmp_path / "pictures",
        tmp_path / "run",
        overrides=words,
        options=TrainingOptions(device="cpu"),
        say=said.append,
    )
    assert "plan: the one that this run has used; another --memory or --micro-batch makes a new one" in said
    again = newest_whole(tmp_path / "run" / "checkpoints")
    assert again is not None
    assert again[1]["plan"] == newest[1]["plan"]
    # the same command once more asks for no other plan
    said.clear()
    words[-1] = "training.duration=4 steps"
    frugan.train(small, tmp_path / "pictures", tmp_path / "run", overrides=words, options=tight, say=said.append)
    assert "plan: the one that this run has used; another --memory or --micro-batch makes a new one" in said
    # another micro-batch keeps to the budget
    words[-1] = "training.duration=5 steps"
    other = TrainingOptions(device="cpu", micro_batch=saved.micro_batch)
    frugan.train(small, tmp_path / "pictures", tmp_path / "run", overrides=words, options=other, say=said.append)
    newest = newest_whole(tmp_path / "run" / "checkpoints")
    assert newest is not None
    assert newest[1]["memory_budget_bytes"] == budget_mib * MIB


@each_prediction
def test_training_that_does_not_fit_says_what_would(
    by: str, tmp_path: Path, small: str, request: pytest.FixtureRequest
) -> None:
    if by == "formula":
        request.getfixturevalue("by_formula")
    write_pictures(tmp_path / "pictures")
    options = TrainingOptions(device="cpu", memory="600KiB")
    with pytest.raises(BadInput, match=r"does not fit 600 KiB: the smallest plan takes \d+MiB"):
        frugan.train(small, tmp_path / "pictures", tmp_path / "run", options=options)
    assert not (tmp_path / "run").exists()


def _training_planner(said: list[str], small: str) -> TrainingPlanner:
    recipe = load_recipe(small, ["training.batch=32", "training.normalisation_batch=8"])
    options = TrainingOptions(device="cpu", micro_batch=32)
    return training_planner(recipe, options, torch.device("cpu"), FP32, said.append, name=small)


@pytest.mark.usefixtures("by_formula")
def test_the_next_plan_takes_less_until_there_is_none(small: str, said: list[str]) -> None:
    planner = _training_planner(said, small)
    plan, sizes = Plan(32, FP32), list[int]()

    def until_none() -> None:
        nonlocal plan
        for _ in range(20):
            sizes.append(plan.micro_batch)
            plan = planner.next(plan, "G", "CUDA out of memory. Tried to allocate")

    with pytest.raises(TrainingFailed, match="no plan takes less"):
        until_none()
    assert len(sizes) > 1
    assert min(sizes) >= 8
    assert said[0].startswith("out of memory in phase G: CUDA out of memory. Tried to allocate. Nothing was changed")
    assert "the batch stays the same" in said[1]


def test_options_in_order_and_the_fields_that_are_promised_stay(small: str) -> None:
    options = PlanOptions("gtx-1080", 4, ("recompute",), ("offload",), 2, "8GB/s", False, print, print)
    assert (options.card, options.constraints) == ("gtx-1080", PlanConstraints(4, ("recompute",), ("offload",)))
    assert (options.gpus, options.link, options.tell, options.say) == (2, "8GB/s", print, print)
    training = TrainingOptions(4, True, True, False, "cpu", 1, "2GiB", ("recompute",), ("offload",), True, "project")
    assert (training.micro_batch, training.device, training.memory) == (4, "cpu", "2GiB")
    assert (training.use, training.avoid, training.wandb_project) == (("recompute",), ("offload",), "project")
    with pytest.raises(BadInput, match="is unknown"):
        TrainingOptions(use=("magic",))
    report = frugan.plan(small, "6GiB")
    chosen = report.chosen
    assert (report.micro_batch, report.savers) == (chosen.micro_batch, chosen.savers)
    assert (report.peak_bytes, report.accumulation) == (chosen.peak_bytes, chosen.accumulation)


@pytest.mark.usefixtures("by_formula")
def test_a_planner_remembers(small: str) -> None:
    def ran() -> int:
        with Planner(load_recipe(small), unnamed_card(), Precision("bf16", torch.bfloat16, "test")) as planner:
            assert planner.search.within(6 * GIB) is not None
            return planner.store.ran

    assert ran() > 0
    assert ran() == 0


@pytest.mark.long
def test_the_table_of_recipes_is_what_they_are() -> None:
    """It is read without building anything; parameters.json is kept by hand, as recipes are added."""
    rows = {row["name"]: row for row in shipped_recipes()}
    assert tuple(rows) == built_in()
    for name, row in rows.items():
        recipe = load_recipe(name)
        resolutions = {need.resolution for need in recipe.kind.sources(recipe.networks, recipe.objective).values()}
        about, training = recipe.about, recipe.training
        assert row == {
            "name": name,
            "family": recipe.family,
            "resolution": max(resolutions),
            "parameters": sum(parameter_counts(recipe).values()),
            "batch": training.batch,
            "normalisation_batch": training.normalisation_batch,
            "duration": str(training.duration),
            "smallest_card_gib": smallest_cards().get(name),
            "smallest_fp32_card_gib": smallest_cards(fp32=True).get(name),
            "trained": about.trained,
            "summary": about.summary,
            "source": about.source,
        }, f"{name}: does predictions/{PARAMETERS} hold?"
