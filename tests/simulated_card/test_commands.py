"""Runs by the commands on a simulated card: begun, gone on with, moved between devices, looked at and converted."""

import json
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cli.calling import Frugan
from frugan.accelerator.choice import accelerator_of
from frugan.contract import cpu_ways
from frugan.engine.run.events import read_events
from frugan.engine.run.tensor_files import read_tensors
from frugan.faces.data.drawn_faces import write_drawn_faces
from frugan.stepmemory.calibration import choose_card
from frugan.stepmemory.cards import Card
from frugan.wording import MIB
from limits import Limit
from training.pictures import write_pictures

pytestmark = pytest.mark.usefixtures("a_cards_bits")
Cards = Callable[..., Any]
SHARED = tomllib.loads((Path(__file__).parents[2] / "tools" / "recorded_commands.toml").read_text("utf-8"))["shared"]
"""Recipes made tiny, by family."""
SAVING = "--ema-on-host --use optimizer-on-host --use recompute --use offload"
ROUNDING = 1e-3
"""Of a network's weights: the average difference, beside their average size. A smaller plan adds up in another order,
and first updates move a weight by the sign of its gradient: for faces 1.5e-4 was seen."""
families = pytest.mark.parametrize(
    "family", ["biggan", *(pytest.param(name, marks=pytest.mark.long) for name in ("stylegan2", "saehd"))]
)


@pytest.fixture
def words(tmp_path: Path, limit: Limit, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The words of a family's tiny training, in fp32; where processors have ways of their own, they go the card's."""
    monkeypatch.setattr(cpu_ways, "taken_for", lambda x: False)
    limit("bytes sent to the host", 1)

    def of(family: str) -> list[str]:
        if family == "saehd":
            data, micro_batch = write_drawn_faces(tmp_path / "faces", 4), 1
        else:
            data, micro_batch = write_pictures(tmp_path / "pictures", classes=("a", "b", "c"), each=4, side=32), 4
        more = f"training.precision=fp32 ema.decay=0.5 --data {data} --micro-batch {micro_batch}"
        return [*shlex.split(SHARED[family]), *more.split()]

    return of


def trained(frugan: Frugan, out: Path, words: list[str], *more: str, steps: int = 4) -> dict[str, str]:
    """Train, and what the checkpoint holds: file of tensors -> digest."""
    result = frugan("train", *words, *more, f"training.duration={steps} steps", "--out", str(out))
    assert result.returncode == 0, result.stderr
    files = (out / "checkpoints" / f"step-{steps:09}").glob("*.safetensors")
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def tensors(run: Path) -> dict[str, torch.Tensor]:
    """Weights of a run's end."""
    return read_tensors(run / "checkpoints" / "step-000000004" / "networks.safetensors")[0]


@pytest.mark.parametrize("schedule", ["latest", pytest.param("earliest", marks=pytest.mark.long)])
@families
def test_a_run_is_the_same_on_a_processor_whenever_copies_are_done(
    family: str, schedule: str, words: Callable[[str], list[str]], frugan: Frugan, cards: Cards, tmp_path: Path
) -> None:
    recipe = words(family)
    on_processor = trained(frugan, tmp_path / "cpu", recipe, "--device", "cpu")
    assert {"networks.safetensors", "optimizers.safetensors"} <= on_processor.keys()
    cards(SIMCARD_SCHEDULE=schedule)
    assert trained(frugan, tmp_path / "card", recipe, "--device", "simcard:0", *SAVING.split()) == on_processor


@families
def test_a_run_is_gone_on_with_on_another_device(
    family: str, words: Callable[[str], list[str]], frugan: Frugan, cards: Cards, tmp_path: Path
) -> None:
    """Random state, pictures and optimizers come over; so does a plan, as far as it is one for the device."""
    recipe = words(family)
    ends = []
    for first, then in (("cpu", "cpu"), ("simcard:0", "cpu"), ("cpu", "simcard:0")):
        out = tmp_path / f"{first[:3]}-{then[:3]}"
        trained(frugan, out, recipe, "--device", first, steps=2)
        cards()
        ends.append(trained(frugan, out, recipe, "--device", then))
    assert all(end == ends[0] for end in ends)


@pytest.mark.long
@pytest.mark.parametrize("family", ["biggan", "stylegan2", "saehd"])
def test_a_run_of_a_card_is_looked_at_there(
    family: str, words: Callable[[str], list[str]], frugan: Frugan, cards: Cards, tmp_path: Path
) -> None:
    """Within a limit, which nothing on the way passes."""
    recipe, run, memory = words(family), str(tmp_path / "run"), cards().memory[0]
    limit_bytes = 1200 * 2**20
    trained(frugan, Path(run), recipe, "--device", "simcard:0", "--memory", f"{limit_bytes >> 20}MiB")
    data = ["--data", str(tmp_path / "faces")] if family == "saehd" else []
    for command in (
        ["sample", run, "--out", str(tmp_path / "samples"), "--device", "simcard:0", *data],
        ["report", run],
    ):
        result = frugan(*command)
        assert result.returncode == 0, result.stderr
    too_little = frugan("info", run, "--device", "simcard:0")  # matrices of a gigabyte are multiplied for it
    assert too_little.returncode == 1
    assert "memory ran out while the device's peaks were measured" in too_little.stderr
    assert memory.allocator.peak_reserved_bytes < limit_bytes
    assert (tmp_path / "samples").is_dir()


class Looker(nn.Module):
    """A network of features, which takes 2 MiB of a card."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2**19), requires_grad=False)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Means of quarters and of all [N, 12] and [N, 3]."""
        values = pictures.float() / 255 * self.weight.to(pictures.device)[0]
        return nn.functional.adaptive_avg_pool2d(values, 2).flatten(1), values.mean((2, 3))


LOOKER = Looker()


@pytest.mark.long
@pytest.mark.parametrize("workspace_bytes", [0, 64 * MIB], ids=["to-the-last", "room-for-libraries"])
@pytest.mark.parametrize("family", ["biggan", "stylegan2", "saehd"])
def test_a_budget_is_never_passed(
    family: str,
    workspace_bytes: int,
    words: Callable[[str], list[str]],
    frugan: Frugan,
    cards: Cards,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """From the first look at the card to the last checkpoint, by what is reserved; where no room is left for scores,
    they are left out in a sentence.
    """
    recipe, memory, device = words(family), cards().memory[0], torch.device("simcard:0")
    own = accelerator_of(device)
    context_bytes = own.total_bytes - own.free_bytes

    def known(name: str | None, on: torch.device) -> Card:
        return replace(choose_card(name, on), context_bytes=context_bytes, workspace_bytes=workspace_bytes)

    monkeypatch.setattr("frugan.training.plan_in_force.choose_card", known)
    monkeypatch.setattr("frugan.planning.plan_recipe.choose_card", known)
    planned = frugan("plan", *(word for word in recipe if "=" in word or word == recipe[0]), "--json")
    assert planned.returncode == 0, planned.stderr
    smallest = json.loads(planned.stdout)["ladder"][-1]
    budget_bytes = -(-smallest["peak_bytes"] // MIB) * MIB
    held = [0]
    hold = memory.allocator._hold

    def holding(more_bytes: int, small: bool) -> None:
        hold(more_bytes, small)
        held.append(own.total_bytes - own.free_bytes)

    monkeypatch.setattr(memory.allocator, "_hold", holding)
    more = ["saving.snapshot_every=2 steps", "saving.checkpoint_every=2 steps", "--memory", f"{budget_bytes // MIB}MiB"]
    scored = [
        "evaluation.every=2 steps",
        'evaluation.metrics=["fid"]',
        "evaluation.samples=10",
        "evaluation.best_by=fid",
    ]
    scored += [f"evaluation.network={__name__}:LOOKER"]
    trained(frugan, tmp_path / "run", recipe, "--device", "simcard:0", *more, *([] if family == "saehd" else scored))
    assert context_bytes < max(held) <= budget_bytes
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    scores = [event["step"] for event in events if event["event"] == "metrics"]
    without = [event for event in events if event["event"] == "warning" and "memory ran out" in event["line"]]
    expected = 0 if family == "saehd" else 2
    assert (len(scores), len(without)) == ((expected, 0) if workspace_bytes else (0, expected))


@pytest.mark.long
@pytest.mark.parametrize("family", ["biggan", "stylegan2", "saehd"])
def test_a_run_that_runs_out_of_memory_anywhere_repeats_or_says_so(
    family: str, words: Callable[[str], list[str]], frugan: Frugan, cards: Cards, tmp_path: Path
) -> None:
    """Set-up, steps, grids and checkpoints: a run ends with the same weights, to rounding, or in a sentence."""
    recipe = [*words(family), "saving.snapshot_every=2 steps", "--device", "simcard:0"]
    memory = cards().memory[0]
    trained(frugan, tmp_path / "free", recipe)
    undisturbed = tensors(tmp_path / "free")
    for number in (1 + each * memory.allocations // 12 for each in range(12)):
        cards(SIMCARD_REFUSE=number)
        out = tmp_path / str(number)
        result = frugan("train", *recipe, "training.duration=4 steps", "--out", str(out))
        if result.returncode:
            assert result.returncode == 1, result.stderr
            assert "memory ran out" in result.stderr
            assert "Traceback" not in result.stderr
            cards()
        trained(frugan, out, recipe)  # gone on with, or as it is
        ends = tensors(out)
        assert ends.keys() == undisturbed.keys()
        apart = sum(float((ends[key] - undisturbed[key]).abs().sum()) for key in ends)
        assert apart < ROUNDING * sum(float(each.abs().sum()) for each in undisturbed.values())
