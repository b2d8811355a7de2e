"""Every operation that training, grids, features and loops of one's own give a card, with what it is given.

    PYTHONPATH=src:tests:tests/simulated_card/installed python -m simulated_card.recorded_operations

writes `operations.json` anew (ten minutes of a core): of each operation its kind, as `simcard.arithmetic` has it, the
dtypes and the range of finite numbers that it was given, and the range of its scalars. Recorded on a processor, which
goes the card's ways.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from simcard.arithmetic import kind_of
from torch.utils._python_dispatch import TorchDispatchMode

import frugan
from contract.made_up import MadeUpFamily
from contract.rig import BF16, CPU, FP16, FP32, OPTIMIZERS, Rig
from contract.test_families import Augmented
from frugan.contract import cpu_ways
from frugan.contract.family import Family
from frugan.engine.state.working_weights import prepared_together
from frugan.engine.streams import Streams
from frugan.families import families
from frugan.metrics.feature_network import InceptionFeatures
from frugan.metrics.inception import Inception
from frugan.planning.prediction import BlankPictures
from frugan.setup.ops import kernel_names, ops_of
from frugan.stepmemory.work import tensors_in
from frugan.training.own_loop.module_step import ModulePlan
from own_loop.own_models import KINDS, built, cross_entropy
from planning.tasks import plan_of, task

FILE = Path(__file__).with_name("operations.json")
SAVINGS: tuple[dict[str, Any], ...] = (
    {"recompute": True},
    {"in_slices": True, "micro_batch": 4},
    {"ema_on_host": True, "optimizer_on_host": True},
)


@dataclass
class Given:
    """What an operation was given."""

    kind: str
    dtypes: set[str] = field(default_factory=set)
    largest: float = 0.0
    smallest: float = math.inf  # but for 0
    scalars: list[float] = field(default_factory=list)  # least and largest

    def add(self, args: Any, kwargs: Any) -> None:
        """Widen the ranges."""
        for x in tensors_in((args, kwargs)):
            self.dtypes.add(str(x.dtype).removeprefix("torch."))
            if x.is_floating_point() and not x.is_meta and x.numel():
                sizes = x.detach().abs()
                self.largest = max(self.largest, float(torch.where(sizes < math.inf, sizes, 0).max()))
                self.smallest = min(self.smallest, float(torch.where(sizes > 0, sizes, math.inf).min()))
        numbers = [float(x) for x in (*args, *kwargs.values()) if isinstance(x, float)]
        if numbers:
            self.scalars = [min([*numbers, *self.scalars]), max([*numbers, *self.scalars])]

    def as_json(self) -> dict[str, object]:
        """With three digits."""
        ranges: dict[str, object] = {"kind": self.kind, "dtypes": sorted(self.dtypes)}
        if self.largest:
            ranges["sizes"] = [float(f"{x:.3g}") for x in (self.smallest, self.largest)]
        if self.scalars:
            ranges["scalars"] = [float(f"{x:.3g}") for x in self.scalars]
        return ranges


@dataclass
class Recorder(TorchDispatchMode):
    """Notes each operation but views."""

    found: dict[str, Given] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note, and run."""
        if not func.is_view and func.namespace in ("aten", "frugan"):
            name = func._schema.name
            self.found.setdefault(name, Given(kind_of(func))).add(args, kwargs or {})
        return func(*args, **(kwargs or {}))


@contextmanager
def a_cards_ways() -> Iterator[None]:
    """Where processors have ways of their own, the card's are gone."""
    own, cpu_ways.taken_for = cpu_ways.taken_for, lambda x: False
    try:
        yield
    finally:
        cpu_ways.taken_for = own


def trained(family: Family, **settings: Any) -> None:
    """Two steps, and grids of what they have made."""
    rig = Rig.create(family, **settings)
    rig.run(2)


def with_kernels(family: Family) -> None:
    """A step, and grids, by operations of our own."""
    of = replace(task(family), ops=ops_of(kernel_names()))
    plan, pictures = plan_of(of, of.group, BF16), BlankPictures(of.stages[0].sources)
    state = of.state(plan, CPU)
    of.step(pictures, Streams(0)).run(state, plan)
    if of.make_grids is not None:
        with torch.no_grad(), prepared_together(state.shown, plan.layout(CPU)):
            of.make_grids(state.shown, plan.micro_batch, pictures)


def in_a_loop_of_ones_own(name: str) -> None:
    """A step with each way of torch's optimizers."""
    for fused, precision in ((True, BF16), (False, FP32)):
        model = built(name)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        frugan.EmaHook(optimizer, model, frugan.EmaSettings(decay=0.5))
        frugan.ModuleStep(model, cross_entropy, optimizer, ModulePlan(4, 2, precision), clip_norm=0.1)(
            *KINDS[name].batch(4)
        )


def features() -> None:
    """Of pictures."""
    pictures = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    InceptionFeatures(Inception(), "")(pictures)


def everything() -> Iterator[Callable[[], object]]:
    """All that is recorded."""
    subjects = [MadeUpFamily(), *families().values(), Augmented()]
    for family in subjects:
        for kind in OPTIMIZERS:
            yield partial(trained, family, optimizers=kind)
        for precision, settings in product((FP16, BF16), SAVINGS):
            yield partial(trained, family, precision=precision, **settings)
    for family in subjects[:-1]:
        yield partial(with_kernels, family)
    for name in KINDS:
        yield partial(in_a_loop_of_ones_own, name)
    yield features


def main() -> None:
    """Record, and write."""
    torch.set_num_threads(1)
    with a_cards_ways(), Recorder() as recorder:
        for run in everything():
            run()
    lines = [f"{json.dumps(name)}: {json.dumps(given.as_json())}" for name, given in sorted(recorder.found.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    print(f"{len(lines)} operations in {FILE.name}")


if __name__ == "__main__":
    main()
