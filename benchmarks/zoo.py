"""Plans real architectures of five libraries and runs them: python benchmarks/zoo.py OUT.json [NAME ...]

Needs no card, but those libraries (pip install timm transformers peft diffusers monai einops; `zoo_models.py`). For
each it records whether it is planned and in how many seconds; the predicted peak of a step on a processor, in fp32, in
bf16, by autocast's rules, recomputed and split, against every allocation counted in a real one (`Tracker`), and against
torch's `MemTracker`; how far gradients are from float64, also by torch's own autocast; and how far five planned steps
lead from the plain loop's.
`zoo_page.py` makes a table of the record.
"""

import gc
import json
import re
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker

import frugan
from frugan.errors import BadInput
from frugan.stepmemory.tracker import Tracker, tensors_of
from frugan.training.own_loop.module_step import ModulePlan
from machine import describe_machine
from zoo_models import Entry, entries, without_dropout
from zoo_page import GRADIENTS, VARIANTS

BUDGET = 0.5
"""Budget of the search that is timed: a share of the way from the least that any plan reserves to the whole step."""
STEPS = 5


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of all memory figures."""
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)


class Subject:
    """A model of the zoo, with its batch, built anew whenever it is asked for."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.loss = entry, entry.loss
        batch = entry.batch()
        self.inputs: tuple[Any, ...] = batch if isinstance(batch, tuple) else (batch,)

    def model(self) -> nn.Module:
        """Return it with the same weights each time."""
        torch.manual_seed(0)
        return without_dropout(self.entry.build().train())

    def report(self, precision: Any = "fp32", **options: Any) -> frugan.ModuleReport:
        """Return the plan of a step on a processor."""
        model = self.model()
        return frugan.plan_module(model, self.loss, self.inputs, adamw(model), precision=precision, **options)

    def plain_step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Run a step as anybody writes it."""
        optimizer.zero_grad()
        self.loss(model, *self.inputs).backward()
        optimizer.step()
        optimizer.zero_grad()

    def counted_bytes(self, plan: ModulePlan) -> int:
        """Return the most that lives in a real step by a plan, counted allocation by allocation."""
        model = self.model()
        optimizer = adamw(model)
        step = frugan.ModuleStep(model, self.loss, optimizer, plan)
        step(*self.inputs)  # makes the optimizer's state
        held: Any = {
            "parameters": [*model.parameters(), *model.buffers()],
            "optimizer": tensors_of(list(optimizer.state.values())),
            "batch": tensors_of(self.inputs),
        }
        with Tracker(held) as tracker:
            step(*self.inputs)
        return int(tracker.peak_bytes)

    def torch_bytes(self) -> int:
        """Return the most that lives in a plain step as torch's own tracker sees it."""
        model = self.model()
        optimizer = adamw(model)
        self.plain_step(model, optimizer)
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *tensors_of(self.inputs))
        with tracker:
            self.plain_step(model, optimizer)
        return max(int(of["Total"]) for of in tracker.get_tracker_snapshot("peak").values())

    def gradients(self, precision: str) -> list[Tensor]:
        """Return the gradients of a planned step in a precision, of a plain one in "float64" or by "torch.autocast"."""
        model, inputs = self.model(), self.inputs
        if precision == "float64":
            model, inputs = model.double(), _double(inputs)
        if precision in ("float64", "torch.autocast"):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "torch.autocast"):
                value = self.loss(model, *inputs)
            value.backward()
            return [p.grad.double() for p in model.parameters() if p.grad is not None]
        kept: list[Tensor] = []

        class Keeping(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                kept.extend(p.grad.double() for p in model.parameters() if p.grad is not None)

        plan = self.report(precision)
        frugan.ModuleStep(model, self.loss, Keeping(model.parameters(), lr=0.0), plan)(*inputs)
        return kept

    def way_of(self, plan: ModulePlan | None) -> Tensor:
        """Return how far all weights go in five steps, by a plan or by the plain loop."""
        model = self.model()
        before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=1e-3, momentum=0.9)
        step = None if plan is None else frugan.ModuleStep(model, self.loss, optimizer, plan)
        for _ in range(STEPS):
            if step is None:
                self.plain_step(model, optimizer)
            else:
                step(*self.inputs)
        return torch.cat([p.detach().flatten() for p in model.parameters()]) - before


def _double(inputs: Any) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.double() if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {name: _double(value) for name, value in inputs.items()}
    return tuple(_double(value) for value in inputs)


def distance(a: Any, b: Any) -> float:
    """Return |a - b| / |b|, of lists of tensors or of one."""
    a, b = (torch.cat([x.flatten() for x in xs]) if isinstance(xs, list) else xs for xs in (a, b))
    return float((a - b).norm() / b.norm())


def timed(function: Callable[[], Any]) -> float:
    """Return the seconds of the faster of two calls: others use this machine."""
    seconds = []
    for _ in range(2):
        begins = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begins)
    return round(min(seconds), 2)


def tried(what: Callable[[], Any]) -> Any:
    """Return what a function does, or why it does not, which the record says."""
    try:
        return what()
    except (BadInput, RuntimeError, TypeError, AttributeError, NotImplementedError, AssertionError) as error:
        words = re.sub(r"/\S*/site-packages/", "", str(error).splitlines()[0])
        return {"error": f"{type(error).__name__}: {words[:300]}"}


def measured(entry: Entry) -> dict[str, Any]:
    """Return the record of one model."""
    subject = Subject(entry)
    model = subject.model()
    record: dict[str, Any] = {
        "library": entry.library,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    plain = tried(subject.report)
    if isinstance(plain, dict):
        return record | {"plan": plain}
    record["batch"] = plain.batch
    record["plan_seconds"] = timed(subject.report)
    record["torch_bytes"] = tried(subject.torch_bytes)
    record["variants"] = {name: tried(partial(_variant, subject, plain, name)) for name in VARIANTS}
    record |= tried(lambda: _search(subject))
    exact = tried(lambda: subject.gradients("float64"))
    record["gradients"] = {name: tried(partial(_from_exact, subject, name, exact)) for name in GRADIENTS}
    plans = {"whole": plain, "recomputed": plain.of(plain.batch, plain.search.blocks), "split": _split(plain)}
    record["five_steps"] = tried(partial(_five_steps, subject, plans))
    return record


def _five_steps(subject: Subject, plans: dict[str, frugan.ModuleReport | None]) -> dict[str, Any]:
    plain = subject.way_of(None)
    return {name: tried(partial(_from_plain, subject, plan, plain)) for name, plan in plans.items() if plan is not None}


def _from_plain(subject: Subject, plan: ModulePlan, plain: Tensor) -> float:
    return distance(subject.way_of(plan), plain)


def _from_exact(subject: Subject, precision: str, exact: list[Tensor] | dict[str, str]) -> float:
    if isinstance(exact, dict):
        raise RuntimeError(f"not in float64: {exact['error']}")
    return distance(subject.gradients(precision), exact)


def _split(plain: frugan.ModuleReport) -> frugan.ModuleReport | None:
    """Return the plan of halves of the batch; None: batch normalisation takes it whole."""
    return None if len(plain.search.sizes) == 1 else plain.of(plain.batch // 2, ())


def _variant(subject: Subject, plain: frugan.ModuleReport, name: str) -> dict[str, Any]:
    plan: frugan.ModuleReport | None = plain
    if name in ("bf16", "autocast"):
        plan = subject.report(name)
    elif name == "recomputed":
        plan = plain.of(plain.batch, plain.search.blocks)
    elif name == "split":
        plan = _split(plain)
    if plan is None:
        return {"left_out": "batch normalisation takes the whole batch"}
    if name == "recomputed" and not plan.recompute:
        return {"left_out": "no blocks"}
    return {"predicted_bytes": plan.peak_bytes, "counted_bytes": subject.counted_bytes(plan)}


def _search(subject: Subject) -> dict[str, Any]:
    most = subject.report(memory="40GiB")
    least = most.of(*most.search.least()).peak_bytes
    room = least + int(BUDGET * (most.peak_bytes - least))
    plan = subject.report(memory=room)
    return {
        "search_seconds": timed(lambda: subject.report(memory=room)),
        "search": {
            **{"fits": plan.fits, "micro_batch": plan.micro_batch, "recomputed": len(plan.recompute)},
            **{"blocks": len(plan.search.blocks), "decisions": list(plan.decisions)},
        },
    }


def main() -> None:
    """Run the models that are named, or all, and add them to a record."""
    warnings.simplefilter("ignore")
    out, names = Path(sys.argv[1]), sys.argv[2:]
    record = json.loads(out.read_text("utf-8")) if out.is_file() else {}
    zoo = entries()
    for name in names or zoo:
        record[name] = tried(partial(measured, zoo[name]))
        print(name, json.dumps(record[name])[:300], flush=True)
        record["machine"] = describe_machine() | {"packages": _versions()}
        out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        gc.collect()


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("timm", "transformers", "peft", "diffusers", "monai")}


if __name__ == "__main__":
    main()
