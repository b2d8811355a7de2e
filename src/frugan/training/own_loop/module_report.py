"""`ModuleReport`: the plan of a step in words and numbers, and what it is in loops that others run."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from frugan.engine.plan import micro_batch_sizes
from frugan.errors import BadInput
from frugan.planning.search import LOWER
from frugan.training.own_loop.batch import Inputs, Parts, samples_in
from frugan.training.own_loop.batch_loss import BatchLoss
from frugan.training.own_loop.half_precision import Autocast, name_of, trained_halves
from frugan.training.own_loop.module_step import ModulePlan
from frugan.training.own_loop.plan_search import Search
from frugan.training.own_loop.recompute import recompute_blocks
from frugan.training.own_loop.split_check import ignores_count
from frugan.wording import count, first_names, show_size

SLACK = "allocator slack"
OUTSIDE = ("CUDA context", "library workspaces")
"""Categories beside those of the step itself."""


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of a model's parameters, by names that torch's compiler does not change."""
    return {name.replace("_orig_mod.", ""): p.shape for name, p in model.named_parameters()}


@dataclass(frozen=True)
class ModuleReport(ModulePlan):
    """The plan of a step, what it is predicted to take, and why it was chosen; printed, it says so to people."""

    name: str = field(kw_only=True)  # of the module's class
    fits: bool = field(kw_only=True)  # within the budget; True without one
    budget_bytes: int | None = field(kw_only=True)  # on the card in all; None: there is none, or it is for a CPU
    peak_bytes: int = field(kw_only=True)  # on the card in all, CUDA's context and libraries too; on a CPU what lives
    categories: Mapping[str, int] = field(kw_only=True)  # bytes at the peak, by what they are for
    extra_time: float = field(kw_only=True)  # predicted beyond the whole batch with nothing recomputed, as a share
    decisions: tuple[str, ...] = field(kw_only=True)  # a line for each choice: what, why, how to override
    search: Search = field(kw_only=True, repr=False, compare=False)  # among all plans of the step

    def smaller(self) -> ModulePlan | None:
        """The fastest that takes at most 93 % of this one; None: there is none."""
        taken = self.search.taken(self.micro_batch, self.recompute)
        chosen = self.search.within(int(LOWER * taken.reserved_bytes))
        if chosen is None:
            return None
        why = "memory ran out: this is the fastest plan that takes less than the one before"
        return replace(self.of(*chosen), fits=True, decisions=(*self.decisions, why))

    def of(self, micro_batch: int, recompute: tuple[str, ...]) -> "ModuleReport":
        """Return the report of another plan of the same step."""
        taken, search = self.search.taken(micro_batch, recompute), self.search
        outside = {name: self.categories[name] for name in OUTSIDE if name in self.categories}
        slack = {SLACK: taken.reserved_bytes - sum(taken.categories.values())} if outside else {}
        return replace(
            self,
            micro_batch=micro_batch,
            recompute=recompute,
            peak_bytes=taken.reserved_bytes + sum(outside.values()),
            categories={**taken.categories, **slack, **outside},
            extra_time=max(0.0, search.seconds(micro_batch, recompute) / search.seconds(*search.plain) - 1),
        )

    def check_model(self, model: nn.Module) -> None:
        """Refuse a model of another class, or with other parameters than the one that was planned.

        Raises:
            BadInput: it is another.
        """
        name = type(model).__name__
        if name != self.name:
            raise BadInput(f"the plan is of a {self.name}, and the model is a {name}: plan it")
        planned, found = _shapes(self.search.task.model), _shapes(model)
        for key in (*planned, *found):
            if planned.get(key) != found.get(key):
                was, now = (list(of[key]) if key in of else "missing" for of in (planned, found))
                raise BadInput(f"the plan is of another {name}: its {key} is {was}, the model's {now}; plan this one")

    def arguments(self, inputs: Inputs) -> Inputs:
        """Return what the loss is given besides the model, of a batch: its parts, where it comes as the one planned."""
        planned = len(self.search.task.inputs)
        if len(inputs) == 1 and planned != 1 and isinstance(inputs[0], tuple | list) and len(inputs[0]) == planned:
            return tuple(inputs[0])
        return inputs

    # The plan in a loop that frugan does not run.

    @property
    def accumulation(self) -> int:
        """Forwards of a step, whose gradients are added up."""
        return len(micro_batch_sizes(self.batch, self.micro_batch))

    def parts(self, *inputs: Any, device: torch.device | str | None = None) -> Iterator[tuple[Inputs, float]]:
        """Yield the micro-batches of a batch on a device, each with its share of the batch.

        The loss of a part times its share, summed over the parts, is the loss of the batch.

        Args:
            inputs: a batch, or what the loss is given besides the model, one after the other; of a last batch, fewer
                samples than were planned.
            device: None: that of the model that was planned.

        Raises:
            BadInput: the model that was planned is on the device meta, and no device is named.
        """
        where = self.search.task.device if device is None else torch.device(device)
        if where.type == "meta":
            raise BadInput(f'the {self.name} that was planned has no data: name a device, parts(batch, device="cuda")')
        inputs = self.arguments(inputs)
        batch = samples_in(inputs)
        return iter(Parts(inputs, micro_batch_sizes(batch, self.micro_batch), batch, where, self.weight))

    def apply_recompute(self, model: nn.Module) -> None:
        """Wrap the blocks that the plan recomputes in torch's checkpoint, for good; twice is once.

        They draw the same dropout again, and buffers such as running statistics move once.
        """
        recompute_blocks(model, self.recompute)

    def trainer_arguments(self) -> dict[str, Any]:
        """Return the plan as arguments of transformers' `TrainingArguments`, for one device.

        What the plan recomputes is no part of them: call `apply_recompute` on the model. Warns of a model whose parts
        Trainer would add up without a division.
        """
        micro_batch, task = self._equal_micro_batch(), self.search.task
        if self.accumulation > 1 and ignores_count(task.model, task.inputs, self.batch):
            warnings.warn(
                f"Trainer takes the loss of {self.name} to be divided by num_items_in_batch, which it ignores: "
                f"gradients would be {self.accumulation} times too large: set trainer.model_accepts_loss_kwargs=False",
                stacklevel=2,
            )
        return {
            "per_device_train_batch_size": micro_batch,
            "gradient_accumulation_steps": self.accumulation,
            "fp16": self._autocast_name() == "fp16",
            "bf16": self._autocast_name() == "bf16",
        }

    def accelerator_arguments(self) -> dict[str, Any]:
        """Return the plan as arguments of accelerate's `Accelerator`, which divides each loss by the number of parts.

        A part's loss times its share and `accumulation` is exact; without these all parts have to weigh the same.
        """
        return {
            "gradient_accumulation_steps": self.batch // self._equal_micro_batch(),
            "mixed_precision": self._autocast_name() or "no",
        }

    def fabric_arguments(self) -> dict[str, Any]:
        """Return the plan as arguments of Lightning's `Fabric`, in whose loops parts are added up by hand."""
        self._equal_micro_batch()
        name = self._autocast_name()
        return {"precision": "32-true" if name is None else f"{name.removeprefix('fp')}-mixed"}

    def _precision_name(self) -> str:
        """Return the precision of products and convolutions: in a kept loop without autocast, the parameters' own."""
        kept_as_is = self.search.equal_parts and self._autocast_name() is None
        half = trained_halves(self.search.task.model) if kept_as_is else None
        return self.precision.name if half is None else name_of(half)

    def _autocast_name(self) -> str | None:
        """Return the half precision of torch's autocast, "fp16" or "bf16"; None: the plan is without it."""
        return self.precision.name if isinstance(self.precision, Autocast) else None

    def _equal_micro_batch(self) -> int:
        """Return the micro-batch, for loops that have no half precision but torch's autocast, and parts of one size.

        Raises:
            BadInput: the plan is of half-precision copies or of parts of a BatchLoss, which ModuleStep alone makes, or
                of parts of two sizes.
        """
        if (self._autocast_name() is None and self.precision.name != "fp32") or self.batch % self.micro_batch:
            raise BadInput(
                f"the plan is of micro-batches of {self.micro_batch} out of {self.batch} in {self.precision.name}, as "
                "ModuleStep runs them; frugan.fits plans for other loops"
            )
        if self.accumulation > 1 and isinstance(self.search.task.loss, BatchLoss):
            raise BadInput(
                f"the plan splits a BatchLoss in {self.accumulation}, as ModuleStep alone does; frugan.fits plans for "
                "other loops"
            )
        return self.micro_batch

    def as_json(self) -> dict[str, Any]:
        """Return it for other programs, with sizes in bytes."""
        return {
            "model": self.name,
            "fits": self.fits,
            "budget_bytes": self.budget_bytes,
            "peak_bytes": self.peak_bytes,
            "batch": self.batch,
            "micro_batch": self.micro_batch,
            "precision": self._precision_name(),
            "recompute": list(self.recompute),
            "extra_time": self.extra_time,
            "categories_bytes": dict(self.categories),
            "decisions": list(self.decisions),
        }

    def __str__(self) -> str:
        """For people to read."""
        budget = "" if self.budget_bytes is None else f" {show_size(self.budget_bytes)}"
        where = "on a CPU" if self.search.card is None else "on the card"
        verdict = "fits" if self.fits else "does not fit"
        forwards = count(-(-self.batch // self.micro_batch), "forward")
        blocks = f"recomputed: {first_names(self.recompute)}" if self.recompute else "nothing recomputed"
        return "\n".join(
            [
                f"{self.name} {verdict}{budget}: predicted peak {show_size(self.peak_bytes)} {where}",
                f"micro-batch {self.micro_batch}, {forwards} for batch {self.batch}; "
                f"{self._precision_name()}; {blocks}; extra time {self.extra_time:.0%} (predicted)",
                "",
                "at the peak:",
                *(
                    f"{name:20} {show_size(size):>10}"
                    for name, size in sorted(self.categories.items(), key=lambda item: -item[1])
                    if size
                ),
                "",
                *(f"- {line}" for line in self.decisions),
            ]
        )
