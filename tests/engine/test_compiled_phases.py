"""Compiled phases do what the written ones do, as one graph each, and say so where they cannot."""

import operator
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import GraphModule
from torch.testing import assert_close

from contract.made_up import LATENT, SIDE, MadeUpFamily, MadeUpNetworks, MadeUpObjective
from contract.rig import BF16, FP16, Rig, assert_same, largest_difference
from engine.runs import train
from frugan.contract.family import Family
from frugan.contract.phase import MicroBatch, Networks, Phase, PhaseState, Terms
from frugan.engine import compiled_phases
from frugan.engine.compiled_phases import (
    CACHE_VARIABLE,
    CompiledPhases,
    Operations,
    PhaseGraph,
    missing_compiler,
    starts_graphs,
)
from frugan.engine.durations import Course
from frugan.engine.plan import Layout, Plan
from frugan.engine.run.checkpoint import newest_whole
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import is_working
from frugan.engine.step.update import Probe
from frugan.families import families
from frugan.families.biggan.config import BigGANNetworks, BigGANObjective
from frugan.families.biggan.family import BigGANFamily
from frugan.families.r3gan.config import R3GANNetworks, R3GANObjective
from frugan.families.r3gan.family import R3GANFamily
from limits import Limit

AS_TRACED = "eager"
"""The graph's operations one by one, without the seconds that a compiler takes."""
ONE_BY_ONE = "aot_eager"
"""The same once torch.compile has taken out what writes in place: all of it but the making of kernels."""
ROUNDING = 1e-6
"""Of gradients, whose parts are added up within a micro-batch first; the smallest fault tried makes 1e-3."""
TURNED = {"stylegan2": ROUNDING}
"""Families whose graphs lay a gradient out in another order, in which some processors add up otherwise.

The gradient of `F.hardtanh` lies as what comes in does, and as what it clamped when a graph is traced (torch 2.13).
"""


class Penalised(BigGANFamily):
    """BigGAN with R1."""

    name = "biggan-r1"

    def tiny(self) -> tuple[BigGANNetworks, BigGANObjective]:
        return super().tiny()[0], BigGANObjective(r1_gamma=1.0, r1_every=2)


class Dense(MadeUpFamily):
    """The made-up family with a plain dense layer."""

    def build(self, networks: MadeUpNetworks, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        built = super().build(networks, device)
        built["maker"].linear = nn.Linear(LATENT, networks.width * SIDE * SIDE, device=device)
        return built


class Peeking(MadeUpFamily):
    """The made-up family with a part that looks at a value, which no graph can."""

    name = "peeking"

    def phases(self, networks: MadeUpNetworks, objective: MadeUpObjective) -> tuple[Phase, ...]:
        critic, penalty, maker = super().phases(networks, objective)

        def peek(built: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
            terms = maker.parts[0](built, micro, state)
            return terms if float(terms["maker"]) > 0 else {"maker": -terms["maker"]}

        return critic, penalty, replace(maker, parts=(peek,))


FAMILIES: dict[str, Family] = {
    "made-up": MadeUpFamily(),
    "biggan-r1": Penalised(),
    **{name: family for name, family in families().items() if name != "biggan"},
}
every_family = pytest.mark.parametrize(
    "family",
    [pytest.param(f, id=name, marks=[] if name == "made-up" else pytest.mark.long) for name, f in FAMILIES.items()],
)
"""The made-up one has repeats, several parts and a double backward; the others are more of the same."""


def pair(
    family: Family, backend: str = AS_TRACED, *, phase: str = "", **settings: Any
) -> tuple[Rig, Rig, CompiledPhases, list[str]]:
    """The same training, or one phase of it, as written and compiled; what runs it, and what that says."""
    written, compiled = Rig.create(family, **settings), Rig.create(family, **settings)
    said: list[str] = []
    backward = CompiledPhases(said.append, said.append, backend=backend)
    compiled.step = replace(compiled.step, backward=backward)
    if phase:
        for rig in (written, compiled):
            rig.step = replace(rig.step, phases=tuple(each for each in rig.phases if each.name == phase))
    return written, compiled, backward, said


def warnings(said: list[str]) -> list[str]:
    """What does not tell of a phase that was compiled."""
    return [line for line in said if not line.startswith(("compiling phase", "compiled phase"))]


def assert_equal_steps(written: Rig, compiled: Rig, steps: int, tolerance: float = 0.0) -> None:
    """Terms, gradients, and all that moves."""
    for before, after in zip(written.run(steps), compiled.run(steps), strict=True):
        for a, b in zip(before, after, strict=True):
            assert (a.phase, list(a.terms), a.gradients.names) == (b.phase, list(b.terms), b.gradients.names)
            for name in a.terms:
                assert_close(a.terms[name], b.terms[name], rtol=0, atol=tolerance)
            limit = tolerance * float(a.gradients.norm.nan_to_num(1.0))  # fp16 overflows until it has found its scale
            assert_close(a.gradients.norms, b.gradients.norms, rtol=0, atol=limit, equal_nan=True)
    difference, where = largest_difference(written.tensors(), compiled.tensors())
    assert difference <= tolerance, where


@every_family
def test_every_phase_is_one_graph_and_equals_the_written_step(family: Family) -> None:
    """R1 and path lengths included; bit for bit (but see TURNED), one graph each, of nothing but operations."""
    written, compiled, backward, said = pair(family)
    assert_equal_steps(written, compiled, 2, tolerance=TURNED.get(family.name, 0.0))
    assert warnings(said) == []
    for phase in compiled.phases:
        (graph,) = backward.graphs(phase.name)
        called = [node for node in graph.module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
        assert all(isinstance(node.target, OpOverload) or node.target is operator.getitem for node in called)
        assert graph.operations == len(called) > 50


@pytest.mark.parametrize(
    "family", [pytest.param(FAMILIES[name], marks=pytest.mark.long) for name in ("made-up", "biggan-r1")]
)
def test_aot_compiled_equals_the_written_step(family: Family) -> None:
    written, compiled, _, said = pair(family, ONE_BY_ONE)
    assert_equal_steps(written, compiled, 2, tolerance=TURNED.get(family.name, 0.0))
    assert warnings(said) == []


@pytest.mark.long
@pytest.mark.parametrize("family", [FAMILIES["saehd"], FAMILIES["stylegan2"]])
def test_aot_compiled_equals_the_written_step_of_large_families(family: Family) -> None:
    test_aot_compiled_equals_the_written_step(family)


@pytest.mark.long
@pytest.mark.parametrize("backend", [AS_TRACED, ONE_BY_ONE])
@pytest.mark.parametrize("name", TURNED)
def test_where_all_lies_in_one_order_even_those_are_equal(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit."""
    monkeypatch.setattr(Plan, "layout", lambda plan, _: Layout(plan.precision.dtype))
    written, compiled, _, said = pair(FAMILIES[name], backend)
    assert_equal_steps(written, compiled, 2)
    assert warnings(said) == []


@pytest.mark.long
@pytest.mark.skipif(missing_compiler(torch.device("cpu")) is not None, reason="no C++ compiler")
def test_kernels_equal_the_written_step(tmp_path: Path) -> None:
    written, compiled, backward, said = pair(FAMILIES["made-up"], compiled_phases.INDUCTOR)
    backward.cache = tmp_path / "kernels"
    assert_equal_steps(written, compiled, 2, tolerance=1e-5)
    assert warnings(said) == []
    assert any(backward.cache.rglob("*.so"))


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [{"precision": BF16, "micro_batch": 4}, {"precision": FP16}, {"parts_in_sequence": False}],
    ids="-".join,
)
def test_plans_and_precisions(settings: dict[str, Any]) -> None:
    """Half gradients add up in fp32 as ever; with several micro-batches only the order of sums is another."""
    written, compiled, _, said = pair(FAMILIES["made-up"], phase="maker", **settings)
    assert_equal_steps(written, compiled, 2, tolerance=ROUNDING if "micro_batch" in settings else 0.0)
    assert warnings(said) == []


@pytest.mark.long
def test_a_remainder_is_a_second_graph_and_says_what_changed() -> None:
    written, compiled, backward, said = pair(FAMILIES["made-up"], phase="maker", batch=8, micro_batch=3, group=None)
    assert_equal_steps(written, compiled, 2, tolerance=ROUNDING)
    assert len(backward.graphs("maker")) == 2
    again = [line for line in said if "again" in line and "maker" in line]
    assert len(again) == 1
    assert "draw z is [2, 6]" in again[0]
    assert "instead of [3, 6]" in again[0]


@pytest.mark.long
def test_another_plan_begins_anew() -> None:
    _, compiled, backward, said = pair(FAMILIES["made-up"], phase="maker")
    compiled.run(1)
    compiled.plan = replace(compiled.plan, micro_batch=4)
    compiled.run(1)
    assert len(backward.graphs("maker")) == 1
    assert warnings(said) == []


def test_too_many_graphs_are_said_once(limit: Limit) -> None:
    limit("graphs of a phase", 1)
    written, compiled, _, said = pair(FAMILIES["made-up"], phase="maker", batch=8, micro_batch=3, group=None)
    assert_equal_steps(written, compiled, 2, tolerance=ROUNDING)
    (line,) = [line for line in warnings(said) if "phase maker" in line]
    assert "runs as it is written: 1 graphs of it were made already" in line
    assert "draw" in line


def test_a_phase_that_cannot_be_compiled_runs_as_written() -> None:
    written, compiled, backward, said = pair(Peeking())
    assert_equal_steps(written, compiled, 2)
    (line,) = warnings(said)
    assert line.startswith("phase maker is not compiled and runs as it is written: compiling failed (")
    assert "\n" not in line
    assert [bool(backward.graphs(phase.name)) for phase in compiled.phases] == [True, True, False]
    assert not any(is_working(network) for network in compiled.state.networks.values())


def test_a_phase_that_cannot_be_compiled_runs_by_a_plan_for_it_as_written() -> None:
    """Its update is repeated, as where memory ran out: nothing of it has moved. And it is tried once alone."""
    written, compiled, _, said = pair(Peeking(), phase="maker")
    plan, asked = replace(compiled.plan, micro_batch=4), list[tuple[str, str]]()
    compiled.step = replace(compiled.step, probe=(seen := Sizes()))

    def for_it(before: Plan, phase: str, reason: str) -> Plan:
        assert before == compiled.plan
        asked.append((phase, reason))
        return plan

    compiled.step.run(compiled.state, compiled.plan, plan_as_written=for_it)
    compiled.step.run(compiled.state, plan, plan_as_written=for_it)
    assert [phase for phase, _ in asked] == ["maker"]
    assert asked[0][1].startswith("compiling failed (")
    assert len(warnings(said)) == 1
    assert seen.sizes == [8, 4, 4, 4, 4]
    written.plan = plan
    written.run(2)
    difference, where = largest_difference(written.tensors(), compiled.tensors())
    assert difference == 0.0, where


def test_a_training_goes_on_by_the_plan_for_phases_as_written(tmp_path: Path) -> None:
    _, compiled, _, _ = pair(Peeking())
    plan = replace(compiled.plan, micro_batch=4)
    train(tmp_path, 2, rig=compiled, plan_as_written=lambda *_: plan)
    (_, saved, _) = newest_whole(tmp_path / "checkpoints") or pytest.fail("no checkpoint")
    assert saved["plan"] == plan.as_json()


class Sizes(Probe):
    """Notes the sizes of micro-batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def micro_batch_begins(self, state: TrainingState, phase: Phase, micro: MicroBatch) -> MicroBatch:
        """See `Probe`."""
        self.sizes.append(micro.size)
        return micro


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"in_slices": True}, "slice by slice"),
        ({"recompute": True}, "recomputes blocks"),
        pytest.param({"recompute": True, "offload": True}, "recomputes blocks", marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_savings_that_cannot_be_compiled(settings: dict[str, Any], reason: str, limit: Limit) -> None:
    limit("bytes sent to the host", 1)
    written, compiled, _, said = pair(Dense(), **settings)
    assert_equal_steps(written, compiled, 1)
    refused = warnings(said)
    assert refused
    assert all(reason in line for line in refused)
    assert len(set(refused)) == len(refused)


def test_groups_that_ranks_share_are_left_to_the_written_step() -> None:
    """Their forward waits for sums of other processes."""

    class Half:
        part, samples = 4, 8

        def sum(self, own: Tensor) -> Tensor:
            return 2 * own

    _, compiled, backward, said = pair(FAMILIES["made-up"])
    maker = compiled.phases[2]
    networks = {name: compiled.state.networks[name] for name in maker.uses}
    draws = {"z": torch.randn(4, LATENT), "dropout": torch.rand(4, 8)}
    state = PhaseState({}, torch.ones(()))
    backward(maker, networks, MicroBatch({}, draws, 4, shared=Half()), state, 1.0, compiled.plan)
    (line,) = said
    assert "ranks share its normalisation groups" in line


def test_kept_products_are_left_to_the_written_step() -> None:
    """Not of the penalty: torch refuses its double backward there anyway."""
    family = MadeUpFamily()
    _, compiled, _, said = pair(family, recompute=True, keep_products=True)
    compiled.step = replace(compiled.step, phases=(compiled.phases[2],))
    compiled.run(1)
    (line,) = warnings(said)
    assert "phase maker is not compiled" in line


def test_memory_that_runs_out_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object) -> PhaseGraph:
        raise torch.OutOfMemoryError("CUDA out of memory")

    _, compiled, _, said = pair(FAMILIES["made-up"])
    before = compiled.tensors()
    monkeypatch.setattr(PhaseGraph, "trace", run_out)
    with pytest.raises(torch.OutOfMemoryError):
        compiled.run(1)
    assert_same(before, compiled.tensors())
    assert warnings(said) == []


@pytest.mark.long
def test_kernels_are_kept_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def look(_: str) -> Callable[..., Any]:
        seen.append(os.environ.get(CACHE_VARIABLE))
        return lambda module, _: module

    monkeypatch.setattr("torch._dynamo.lookup_backend", look)
    for own in (None, "elsewhere"):
        if own is None:
            monkeypatch.delenv(CACHE_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(CACHE_VARIABLE, own)
        _, compiled, backward, _ = pair(FAMILIES["made-up"], compiled_phases.INDUCTOR)
        backward.cache = tmp_path
        compiled.step = replace(compiled.step, phases=(compiled.phases[2],))
        compiled.run(1)
        assert os.environ.get(CACHE_VARIABLE) == own
    assert seen == [str(tmp_path), "elsewhere"]


def test_observations_are_those_of_the_written_step() -> None:
    """Several groups in a micro-batch, each with its weight."""
    written, compiled, _, _ = pair(FAMILIES["made-up"], phase="critic", batch=16, micro_batch=8, group=4)
    assert_equal_steps(written, compiled, 1, tolerance=ROUNDING)

    def statistics(rig: Rig) -> dict[str, Tensor]:
        return {k: v for k, v in rig.tensors().items() if "stored" in k or k.endswith(("seen", "length"))}

    assert len(statistics(written)) > 5
    difference, where = largest_difference(statistics(written), statistics(compiled))
    assert difference <= ROUNDING, where


@pytest.mark.parametrize(("is_card", "where"), [(True, "meta"), (False, "cpu")])
def test_constants_that_are_made_on_the_host_are_kept_on_a_card(
    is_card: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy in the middle of a graph would cut a CUDA graph in two; a device without data stands in for the card."""
    monkeypatch.setattr(compiled_phases, "accelerator_of", lambda _: SimpleNamespace(is_card=is_card))
    card = torch.device("meta")

    def part(networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        made = networks["network"](micro.pictures["images"]["images"])
        return {"loss": (made * torch.tensor([1.0, 2.0], device="cpu")[None].to(made.device)).mean()}

    phase = Phase("some", ("network",), ("network",), "optimizer", parts=(part,), draws={}, sources=("images",))
    micro = MicroBatch({"images": {"images": torch.zeros(3, 2, device=card)}}, {}, 3, 1)
    own = PhaseState({}, torch.ones((), device=card), torch.zeros((), device=card))
    networks = {"network": nn.Linear(2, 2, device=card)}
    graph = PhaseGraph.trace(phase, networks, micro, own, 1.0, Rig.create(MadeUpFamily()).plan)
    constants = [getattr(graph.module, str(node.target)) for node in graph.module.graph.find_nodes(op="get_attr")]
    assert [each.device.type for each in constants] == [where]


def test_cuda_graphs_are_for_cards() -> None:
    plan = Rig.create(MadeUpFamily()).plan
    for graphs, device, expected in ((True, "cuda", True), (True, "cpu", False), (False, "cuda", False)):
        assert starts_graphs(replace(plan, cuda_graphs=graphs), torch.device(device)) is expected


@pytest.mark.parametrize("graphs", [True, False])
def test_the_compiler_is_asked_for_cuda_graphs_by_the_plan_alone(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config as inductor  # noqa: PLC0415  (most of a second of every collection)

    asked: list[bool] = []

    def look(_: str) -> Callable[..., Any]:
        asked.append(inductor.triton.cudagraphs)
        return lambda module, _: module

    monkeypatch.setattr("torch._dynamo.lookup_backend", look)
    monkeypatch.setattr(compiled_phases, "starts_graphs", lambda plan, _: plan.cuda_graphs)
    before = inductor.triton.cudagraphs
    _, compiled, _, said = pair(FAMILIES["made-up"], compiled_phases.INDUCTOR, phase="maker")
    compiled.plan = replace(compiled.plan, cuda_graphs=graphs)
    compiled.run(1)
    assert warnings(said) == []
    assert asked == [graphs]
    assert inductor.triton.cudagraphs is before


def test_results_of_a_cuda_graph_are_not_overwritten_by_its_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes them to where the last ones were; the gradients of two micro-batches must both count."""
    monkeypatch.setattr(compiled_phases, "starts_graphs", lambda plan, _: plan.cuda_graphs)
    begun: list[None] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(None))

    def in_one_place(module: GraphModule, _: list[Tensor]) -> Operations:
        kept: list[Tensor] = []

        def run(*tensors: Tensor) -> list[Tensor]:
            results = module(*tensors)
            kept[:] = kept or [torch.empty_like(result) for result in results]
            for place, result in zip(kept, results, strict=True):
                place.copy_(result)
            return kept

        return run

    written, compiled, backward, said = pair(FAMILIES["made-up"], phase="maker", batch=8, micro_batch=4)
    backward.backend = in_one_place
    for rig in (written, compiled):
        rig.plan = replace(rig.plan, cuda_graphs=True)
    assert_equal_steps(written, compiled, 2, tolerance=ROUNDING)
    assert warnings(said) == []
    assert len(begun) == 4


class Changing(R3GANFamily):
    """R3GAN whose gamma changes during training."""

    def tiny(self) -> tuple[R3GANNetworks, R3GANObjective]:
        return super().tiny()[0], R3GANObjective(gamma=1.0, final_gamma=0.1)


def test_what_changes_during_training_is_no_constant_of_a_graph() -> None:
    """One graph for each phase, however far gamma has come."""
    written, compiled, _, said = pair(Changing())
    for rig in (written, compiled):
        rig.step = replace(rig.step, course=Course(3 * rig.step.batch, cosine=True))
    assert_equal_steps(written, compiled, 2)
    assert warnings(said) == []
    assert len(said) == 2 * len(written.phases), said
