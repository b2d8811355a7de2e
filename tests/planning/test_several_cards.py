"""Plans for cards that share every batch: what falls to each, what they wait for, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import frugan
from frugan.contract.phase import Phase
from frugan.engine.plan import Plan
from frugan.engine.ranks.place import deal
from frugan.engine.run.training import Stage, Training
from frugan.errors import BadInput
from frugan.planning.links import GUESSED
from frugan.planning.prediction import Prediction, Target
from frugan.planning.several_cards import parse_cards
from frugan.recipe.loading import load_recipe
from frugan.setup.recipe_setup import training_of
from frugan.wording import MIB
from planning.formula import PredictionsBy, prediction
from training.pictures import RECIPE, write_recipe


def by_samples(
    training: Training, plan: Plan, target: Target, stage: Stage, *, rough: bool = False, dataless: object = None
) -> Prediction:
    """A formula by which a step's time is that of its samples alone, and nobody is held up by the host."""
    predicted = prediction(plan, stage, training.batch, rough=rough, sample_bytes=64 * MIB)
    return replace(
        predicted, work=replace(predicted.work, macs=1e11 * training.batch, bytes_moved=0, operations=0, host_bytes=0)
    )


@pytest.fixture(autouse=True)
def _by_formula(monkeypatch: pytest.MonkeyPatch, predictions_by: PredictionsBy, tmp_path: Path) -> None:
    monkeypatch.setenv("FRUGAN_CACHE", str(tmp_path / "cache"))
    predictions_by(by_samples)


@pytest.fixture(scope="module")
def of_64_groups(tmp_path_factory: pytest.TempPathFactory) -> str:
    text = RECIPE.replace("\nbatch = 8\n", "\nbatch = 256\n")
    return write_recipe(tmp_path_factory.mktemp("recipe"), text)


@pytest.mark.long
def test_64_groups_over_12_cards(of_64_groups: str) -> None:
    options = frugan.PlanOptions(card="gtx-1080", gpus=12, link="8GB/s,0us")
    report = frugan.plan(of_64_groups, None, (), options)
    together = report.together
    assert together is not None
    assert [(count, part.share) for count, part in together.parts] == [(4, 24), (8, 20)]
    assert report.fits
    assert report.share == 24
    assert sum(report.categories.values()) == report.peak_bytes
    assert {"gradient buckets", "communication"} <= report.categories.keys()
    # By the formula time goes by samples: the four with 24 hold up the eight with 20.
    six, five = (part.chosen.whole_seconds for _, part in together.parts)
    assert five == pytest.approx(six * 5 / 6)
    summed = together.summed_bytes
    assert together.between_seconds == pytest.approx(2 * 11 / 12 * summed / 8e9)
    assert together.step_seconds == pytest.approx(six + together.between_seconds)
    assert together.idle == pytest.approx(8 / 12 * (six - five) / together.step_seconds)
    assert together.images_per_second == pytest.approx(256 / together.step_seconds)
    alone = frugan.plan(of_64_groups, None, (), frugan.PlanOptions(card="gtx-1080")).chosen.whole_seconds
    assert together.efficiency == pytest.approx(alone / 12 / together.step_seconds)
    assert together.efficiency < 64 / 72  # what the groups that do not divide leave of it
    values = report.as_json()
    assert json.loads(json.dumps(values))["together"]["sent_bytes_per_step"] == pytest.approx(2 * 11 / 12 * summed)
    lines = "\n".join(report.decisions)
    assert "shares: 6 on 4 cards, 5 on 8 cards (normalisation groups of 4)" in lines
    assert "link: 8 GB/s to each card, 0 \u00b5s a message: as asked" in lines


@pytest.mark.long
def test_bytes_are_those_of_the_gradients(of_64_groups: str) -> None:
    report = frugan.plan(of_64_groups, None, (), frugan.PlanOptions(card="gtx-1080x2"))
    recipe = load_recipe(of_64_groups)
    networks = recipe.kind.build(recipe.networks, "meta")
    assert report.together is not None
    sizes = {each.phase: (each.size_bytes, each.updates) for each in report.together.sums}
    assert sizes == {name: (4 * sum(p.numel() for p in networks[name].parameters()), 1.0) for name in ("D", "G")}
    assert report.together.link == GUESSED
    assert any("a guess for cards in one machine" in line for line in report.decisions)


def test_it_fits_only_if_every_share_does(of_64_groups: str) -> None:
    """88 samples take 5.5 GiB by the formula where nothing may be saved, 84 take 256 MiB less."""
    avoid = ("recompute", "keep-products", "offload", "ema-on-host", "optimizer-on-host", "shard-optimizer")
    options = frugan.PlanOptions(card="gtx-1080x3", micro_batch=88, avoid=avoid)
    tight = frugan.plan(of_64_groups, None, (), options).peak_bytes - 1
    report = frugan.plan(of_64_groups, tight, (), options)
    assert report.together is not None
    assert [(count, part.share, part.fits) for count, part in report.together.parts] == [
        (1, 88, False),
        (2, 84, True),
    ]
    assert not report.fits
    assert report.share == 88


@pytest.mark.long
def test_the_largest_batch_over_several_cards(of_64_groups: str) -> None:
    options = frugan.PlanOptions(card="gtx-1080", gpus=12, link="8GB/s")
    words, report = frugan.largest(of_64_groups, "batch", None, (), options)
    batch = int(words[0].removeprefix("training.batch="))
    assert report.together is not None
    assert report.together.batch == batch
    assert all(part.accumulation == 1 and part.fits for _, part in report.together.parts)
    alone = frugan.largest(of_64_groups, "batch", None, (), frugan.PlanOptions(card="gtx-1080"))[1]
    assert 6 * alone.batch < batch <= 12 * alone.batch


def _of_half(phase: Phase) -> Phase:
    """D sees half of the batch, in groups as large as ever; path lengths do so in groups of half the size."""
    return replace(phase, fraction=0.5) if phase.name == "D" else phase


def test_a_phase_with_few_groups_runs_one_on_each_rank() -> None:
    """Of half a batch and as many ranks as groups, half of the ranks would do, and each runs a whole one."""
    training = training_of(load_recipe("stylegan2-ffhq-1024"))
    ranks = training.batch // training.group
    assert ranks > 2
    stages = [replace(e, phases=tuple(map(_of_half, e.phases))) for e in training.stages]
    training = replace(training, stages=tuple(stages))
    mine = training.shared_by(ranks, training.group)
    assert (mine.batch, mine.ranks) == (training.group, ranks)
    for before, after in zip(training.phases, mine.phases, strict=True):
        group, seen = before.group(training.group), before.samples(training.batch)
        dealt = deal(seen, group, min(ranks, seen // group))
        assert after.samples(mine.batch) == len(dealt[0].samples)
        assert after.group(mine.group) == group
    assert training.shared_by(1, training.batch) is training


@pytest.mark.long
def test_all_share_the_optimizers_state_or_none(of_64_groups: str) -> None:
    """Asked for, and where a link is slower than the card's own bus, what is gathered takes longer."""
    names = ("keep-products", "recompute", "offload", "ema-on-host", "optimizer-on-host")
    options = frugan.PlanOptions(card="gtx-1080x3", use=("shard-optimizer",), avoid=names)
    fast, slow = (
        frugan.plan(of_64_groups, None, (), replace(options, link=link)).together
        for link in ("99GB/s,0us", "1GB/s,0us")
    )
    plain = frugan.plan(of_64_groups, None, (), replace(options, link="1GB/s,0us", use=())).together
    assert fast is not None
    assert slow is not None
    assert plain is not None
    assert all("shard-optimizer" in part.savers for _, part in (*fast.parts, *slow.parts))
    assert not any("shard-optimizer" in part.savers for _, part in plain.parts)
    gathered = 2 / 3 * slow.summed_bytes
    assert slow.between_seconds == pytest.approx(plain.between_seconds + gathered * (1e-9 - 1e-10))
    assert fast.between_seconds == pytest.approx(4 / 3 * fast.summed_bytes / 99e9)


@pytest.mark.parametrize(
    ("card", "gpus", "cards"),
    [
        (None, None, (None, 1)),
        (None, 4, (None, 4)),
        ("gtx-1080", 12, ("gtx-1080", 12)),
        ("gtx-1080x12", None, ("gtx-1080", 12)),
        ("titan-x", None, ("titan-x", 1)),
        ("titan-xx2", 2, ("titan-x", 2)),
        ("RTX 3060", 3, ("RTX 3060", 3)),
        ("rtx3060", None, ("rtx3060", 1)),
        ("GTX1080Tix2", None, ("GTX1080Ti", 2)),
        ("rtx9999", None, ("rtx9999", 1)),
        ("gtx970", None, ("gtx970", 1)),
        ("微星 RTX 3060 12Gx2", None, ("微星 RTX 3060 12G", 2)),
    ],
)
def test_cards_are_read(card: str | None, gpus: int | None, cards: tuple[str | None, int]) -> None:
    assert parse_cards(card, gpus) == cards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"card": "gtx-1080", "gpus": 65}, "64 normalisation groups of 4, at least one to each card"),
        ({"card": "gtx-1080x2", "gpus": 3}, "names 2"),
        ({"card": "gtx-1080x0"}, "at least one of them"),
        ({"card": "riva-128x2"}, "'riva-128' is not known"),
        ({"card": "gtx-1080x8,rtx-3060x4"}, "cards of one kind. Ask for each kind as if all cards were of it"),
        ({"card": "gtx-1080", "link": "8GB/s"}, "between several cards"),
        ({"gpus": 2, "link": "8GB/s"}, "between which cards"),
        ({"card": "gtx-1080", "gpus": 12, "micro_batch": 28}, "from 4 to 24"),
        ({"gpus": -1}, "expected at least one"),
    ],
)
def test_cards_that_cannot_be(options: dict[str, object], message: str, of_64_groups: str) -> None:
    with pytest.raises(BadInput, match=message):
        frugan.plan(of_64_groups, None, (), frugan.PlanOptions(**options))  # type: ignore[arg-type]
