"""What a plan says of compiled phases: about what their operations take one by one, or less; the rest as written."""

from dataclasses import replace
from functools import partial

import pytest

from contract.made_up import MadeUpFamily
from frugan.contract.family import Family
from frugan.engine.compiled_phases import CompiledPhases
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training
from frugan.families import families
from frugan.planning.prediction import predict, step_memory
from frugan.planning.step_memory import StepMemory, measure_step
from planning.tasks import plan_of, real_step, task

AS_TRACED, ONE_BY_ONE = "eager", "aot_eager"
"""Both run a graph's operations one by one; the second once torch.compile has taken out what writes in place."""
MADE_UP = MadeUpFamily()


def of_phase(of: Training, name: str) -> Training:
    """A training of one phase."""
    (stage,) = of.stages
    phases = tuple(phase for phase in stage.phases if phase.name == name)
    return replace(of, stages=(replace(stage, phases=phases),))


def one_by_one(of: Training, plan: Plan, backend: str) -> StepMemory:
    """A second step of compiled phases on real tensors, as the first one compiles."""
    state, step = real_step(of, plan)
    step = replace(step, backward=CompiledPhases(_is_no_warning, pytest.fail, backend=backend))
    step.run(state, plan)
    state.step = 0
    return measure_step(step, state, plan, of.recomputable(state.networks), count_zeros=True)


def _is_no_warning(line: str) -> None:
    assert line.startswith(("compiling phase", "compiled phase"))


def assert_no_more(of: Training, plan: Plan, backend: str) -> None:
    """By phase, forwards of all parts before the first backward, as torch's compiler has them.

    Sizes are rounded up for an allocator, which in tiny steps makes a few percent.
    """
    plan = replace(plan, parts_in_sequence=False)
    predicted = step_memory(replace(of, compiled=True), plan, "cpu", of.stages[0])
    for phase, peak in one_by_one(of, plan, backend).by_phase.items():
        share = predicted.by_phase[phase].size_bytes / peak.size_bytes
        assert 0.5 < share < 1.05, (phase, share)


def test_two_micro_batches() -> None:
    """Of which the gradients of the second are held beside those of the first."""
    of = of_phase(task(MADE_UP), "maker")
    assert_no_more(of, plan_of(of, of.batch // 2), AS_TRACED)


@pytest.mark.long
@pytest.mark.parametrize("family", [MADE_UP, *families().values()], ids=lambda family: family.name)
def test_every_family(family: Family) -> None:
    of = task(family)
    assert_no_more(of, plan_of(of, of.batch // 2), ONE_BY_ONE)


def test_it_starts_fewer_kernels_and_moves_less_than_the_written_step() -> None:
    """And multiplies as much."""
    of = task(MADE_UP)
    run = partial(predict, plan=plan_of(of, of.group), target="card", stage=of.stages[0], rough=True)
    written, compiled = run(of).work, run(replace(of, compiled=True)).work
    assert compiled.macs == written.macs
    assert compiled.operations < written.operations
    assert compiled.bytes_moved < 0.9 * written.bytes_moved


@pytest.mark.parametrize("keeping", ["products", "nothing", "nothing here"])
def test_what_is_not_compiled_is_priced_as_it_is_written(keeping: str) -> None:
    of = of_phase(task(MADE_UP), "maker")
    plan = plan_of(of, of.group, keeping=keeping)
    assert predict(of, plan, "card", of.stages[0], rough=True) == predict(
        replace(of, compiled=True), plan, "card", of.stages[0], rough=True
    )


def test_a_cuda_graph_is_started_at_once_and_keeps_its_memory() -> None:
    """What it works in is there in every phase, beside what the step has."""
    of = replace(task(MADE_UP), compiled=True)
    plan = plan_of(of, of.group)
    kernels, graphs = (
        predict(of, replace(plan, cuda_graphs=on), "card", of.stages[0], rough=True) for on in (False, True)
    )
    assert graphs.work.macs == kernels.work.macs
    assert graphs.work.operations < 0.8 * kernels.work.operations
    assert graphs.work.bytes_moved > kernels.work.bytes_moved
    assert graphs.live_bytes > kernels.live_bytes
