"""What a step asks of a card does not creep up: three small recipes at every run, all that ship in `make test-long`."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmark_programs import FOLDER, program
from contract import made_up
from contract.made_up import MadeUpFamily
from frugan.contract.phase import MicroBatch, Networks, PhaseState, Terms
from planning.tasks import plan_of, task

if TYPE_CHECKING:
    import places
    import step_counts
else:
    step_counts, places = program("step_counts"), program("places")

RECORD = FOLDER / "results" / "counts.json"
ALLOWED = 0.02
"""Share by which a count may be above the record."""
CASES = step_counts.shipped_cases()
AT_EVERY_RUN = ("biggan-digits-32", "saehd-demo-64", "stylegan2-digits-32")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in AT_EVERY_RUN else pytest.mark.long)
        for name in step_counts.shipped_cases()
    ],
)
def test_no_step_is_dearer_than_recorded(name: str) -> None:
    recorded = json.loads(RECORD.read_text("utf-8"))["cases"]
    renewal = f'renew the record on purpose: python benchmarks/counts.py "{name}" --renew'
    assert name in recorded, f"{name} is not in the record: {renewal}"
    for step, counts in step_counts.count_case(CASES[name]).items():
        assert step in recorded[name], f"{name} has no step {step!r} in the record: {renewal}"
        before, now = recorded[name][step], counts.total
        assert now.syncs == 0, f"{name}, {step}: the host waits for {now.syncs} values; it must not"
        for what in ("launches", "bytes_moved", "flops"):
            count = getattr(now, what)
            assert count <= before[what] * (1 + ALLOWED), (
                f"{name}, {step}: {what} {count:,}, recorded {before[what]:,}; make it cheaper, or {renewal}"
            )


def test_the_record_holds_what_ships_and_nothing_else() -> None:
    recorded = json.loads(RECORD.read_text("utf-8"))["cases"]
    assert list(recorded) == list(CASES), "python benchmarks/counts.py renews all of it"


def test_a_wait_is_seen_and_counted_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def looks(networks: Networks, micro: MicroBatch, state: PhaseState) -> Terms:
        terms = made_up._penalty(1.0, networks, micro, state)
        return terms if next(iter(terms.values())).item() > 0 else {}

    calm = task(MadeUpFamily())
    stage = calm.stages[0]
    phases = tuple(replace(p, parts=(looks,)) if p.name == "penalty" else p for p in stage.phases)
    nosy = replace(stage, phases=phases)
    plan = plan_of(calm, 4)
    assert step_counts.count_step(calm, plan, stage).total.syncs == 0
    counts = step_counts.count_step(calm, plan, nosy)
    assert counts.total.syncs == counts.by(0)["penalty"].syncs > 0


def test_places_and_phases_add_up() -> None:
    of = task(MadeUpFamily())
    counts = step_counts.count_step(of, plan_of(of, 4), of.stages[0])
    for part in range(3):
        assert sum(counts.by(part).values(), step_counts.Counts()) == counts.total
    assert {"critic", "penalty", "maker", "averages"} == set(counts.by(0))
    assert {"prepare", "losses", "carry", "update", "critic", "maker"} <= set(counts.by(1))
    usual = step_counts.count_step(of, plan_of(of, 4), of.stages[0], step=1)
    assert set(counts.by(0)) - set(usual.by(0)) == {"penalty"}
    # a backward is at home where its forward was
    assert counts.by_operation["maker", "maker", "convolution_backward"].flops > 0


def test_what_a_function_asks_for_is_its_own_and_so_is_the_backward() -> None:
    of = task(MadeUpFamily())
    plan, stage = plan_of(of, 4), of.stages[0]
    counts = step_counts.count_step(of, plan, stage, by_function=True)
    assert counts.total == step_counts.count_step(of, plan, stage).total
    functions = counts.by(1)
    assert sum(functions.values(), step_counts.Counts()) == counts.total
    asked = {function for (_, function, operation) in counts.by_operation if operation == "_fused_adam_"}
    assert asked == {"engine/state/optimizer.py:FusedOptimizer.update"}
    forward, backward = (
        {function for (_, function, name) in counts.by_operation if name == operation}
        for operation in ("native_batch_norm", "native_batch_norm_backward")
    )
    assert backward == forward == {"contract/ops.py:_normalised"}


def test_each_operation_is_in_one_place_and_a_kernel_leaves_no_more() -> None:
    for step in json.loads((FOLDER / "results" / "own-kernels.json").read_text("utf-8"))["places"].values():
        for way in step.values():
            assert list(way) == [name for name in places.PLACES if name in way]
            assert sum(each["bytes_left"] for each in way.values()) <= sum(each["bytes_moved"] for each in way.values())
    of = task(MadeUpFamily())
    counts = step_counts.count_step(of, plan_of(of, 4), of.stages[0], by_function=True)
    found = places.by_place(counts.by_operation, {})
    assert sum(each["bytes_moved"] for each in found.values()) == counts.total.bytes_moved
    assert sum(each["launches"] for each in found.values()) == counts.total.launches
    assert {"products", "update", "batch norm"} <= set(found)
