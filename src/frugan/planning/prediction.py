"""Predicts a plan's memory and work: the engine's own step, run once without data, and remembered on disk."""

import hashlib
import importlib
import json
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from operator import eq
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor

from frugan.contract.data import SourceSpec
from frugan.engine.plan import Layout, Plan
from frugan.engine.ranks.ranks import OneRank
from frugan.engine.run.training import Stage, Training
from frugan.engine.state.state import TrainingState
from frugan.engine.state.working_weights import prepared_together
from frugan.engine.streams import Streams
from frugan.files import atomic_file, read_json
from frugan.planning.step_memory import StepMemory, measure_step
from frugan.stepmemory.dataless import META, Dataless, WithoutData, fused_attention, resting_collector
from frugan.stepmemory.work import Work
from frugan.wording import first_line


@dataclass(frozen=True)
class BlankPictures:
    """Gives sources blank samples of their kind: neither memory nor time of a step depends on what samples show."""

    needs: Mapping[str, SourceSpec]  # what each source has to give

    def take(self, source: str, stream: str, position: int, count: int) -> dict[str, Tensor]:
        """As the engine asks for them."""
        return self.needs[source].blank(count)

    def preview(self, source: str, count: int) -> dict[str, Tensor]:
        """As grids ask for them."""
        return self.needs[source].blank(count)


# Torch's compiler, kept from being imported: nothing is compiled.

COMPILER, SYMBOLS = "torch._dynamo", "torch.fx.experimental.symbolic_shapes"
_SETTINGS = SimpleNamespace(error_on_nested_fx_trace=True)  # read by a recomputation, used where something is compiled


class _StandIn(ModuleType):
    """A module of which a few functions are known; gives way to the real one when asked for another."""

    def __init__(self, name: str, known: dict[str, Any]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # a package, to Python's import
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def no_compiler() -> Iterator[None]:
    """Inside, torch's compiler is not imported, unless somebody asks for more of it than to be left alone.

    That spares a process that only plans two seconds of a processor's time. Torch imports it at the first call of many
    a function (an optimizer's step, a backward from given gradients) only to say that it must not compile it, or to
    compare sizes that might be symbols. As nothing is compiled, that changes nothing.
    """
    asked: list[weakref.ref[Any]] = []  # weak: some are made at every call and hold its tensors

    def disable(function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        asked.append(weakref.ref(function))
        return function

    stand_ins: list[_StandIn] = [
        _StandIn(COMPILER, {"disable": disable, "graph_break": lambda *_, **__: None, "config": _SETTINGS}),
        _StandIn(SYMBOLS, {"expect_true": bool, "sym_eq": eq}),
    ]
    stand_ins = [module for module in stand_ins if module.__name__ not in sys.modules]
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        yield
    finally:
        for module in stand_ins:
            _remove(module)
        for each in asked:  # torch noted the answer; let it ask again
            if (function := each()) is not None:
                vars(function).pop("__dynamo_disable", None)


def _remove(stand_in: _StandIn) -> None:
    if sys.modules.get(stand_in.__name__) is stand_in:
        del sys.modules[stand_in.__name__]


# A prediction, and how it is made.

Target = Literal["cpu", "card"]
"""What is predicted for: a CPU, whose memory holds everything, or a card beside a host, of whichever kind."""
_IN_KEYS: Mapping[Target, str] = MappingProxyType({"cpu": "cpu", "card": "cuda"})
"""Its word among what keys of predictions in files are made of."""

HOST = torch.device("cpu")
"""Where plans are made for a CPU."""


@dataclass(frozen=True)
class Prediction:
    """What a plan takes."""

    # most that lives at once, as torch's own count on a card: a block that is a little larger than what
    # was asked for counts whole
    live_bytes: int
    reserved_bytes: int  # the least that the caching allocator must be allowed to reserve; on a CPU what lives
    place: str  # where the peak of what lives falls: "phase/network.block"
    stage: str  # name of the stage of training in which it does
    categories: dict[str, int]  # bytes that live at the peak, by what they are for, without what blocks are larger
    by_phase: dict[str, int]  # phase -> its own peak of what lives; "sheets": that of making grids of samples
    work: Work  # of an average step
    host_bytes: int = 0  # most that the plan keeps in host memory, besides pictures
    unlimited_bytes: int = 0  # what the allocator reserves without a limit, as torch's own count on a card
    stayed_bytes: int = 0  # of what a plan offloads, most that stays on the card at once for being small

    @property
    def tensor_bytes(self) -> int:
        """What lives at the peak, without what blocks are larger than what was asked for."""
        return sum(self.categories.values())

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What `as_json` gave."""
        known = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        return cls(**known | {"work": Work(**values["work"])})

    def worst(self, other: "Prediction") -> "Prediction":
        """Of two stages: the higher peak, and the most of each phase."""
        higher = max(self, other, key=lambda each: each.reserved_bytes)
        by_phase = {
            phase: max(self.by_phase.get(phase, 0), other.by_phase.get(phase, 0))
            for phase in {**self.by_phase, **other.by_phase}
        }
        return replace(higher, by_phase=by_phase, host_bytes=max(self.host_bytes, other.host_bytes))


@dataclass(frozen=True)
class CardPlan(Plan):
    """A plan that is laid out as on a card, wherever its tensors are."""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The same plan, laid out so."""
        return cls(**{each.name: getattr(plan, each.name) for each in fields(Plan)})

    def layout(self, device: torch.device) -> Layout:
        return super().layout(torch.device("cuda"))


def predict(
    training: Training,
    plan: Plan,
    target: Target,
    stage: Stage,
    *,
    rough: bool = False,
    dataless: Dataless | None = None,
) -> Prediction:
    """Predict a plan for one stage of training.

    Args:
        rough: from one micro-batch instead of two, and nothing but the step: in half the time.
        dataless: runs operations; one that has run like ones is faster, with the same results.

    Raises:
        RuntimeError: torch refuses the plan (two savings that exclude each other).
    """
    memory = step_memory(training, plan, target, stage, rough=rough, dataless=dataless)
    by_phase = {name: peak.size_bytes for name, peak in memory.by_phase.items()}
    prediction = Prediction(
        live_bytes=memory.peak.size_bytes,
        reserved_bytes=memory.peak.size_bytes,
        place=memory.peak.place,
        stage=stage.name,
        # empty ones go: whether there is a tensor without numbers differs between versions of torch
        categories={str(name): size for name, size in memory.peak.categories.items() if size},
        by_phase=by_phase,
        work=memory.work,
        host_bytes=memory.host_bytes,
        unlimited_bytes=memory.peak.size_bytes,
        stayed_bytes=memory.stayed_bytes,
    )
    if target == "cpu":
        return prediction
    card = memory.on_card
    return replace(
        prediction,
        live_bytes=max(prediction.live_bytes, card.taken_bytes),
        reserved_bytes=max(prediction.live_bytes, memory.needed_bytes),
        by_phase={name: max(size_bytes, card.taken_in(name)) for name, size_bytes in by_phase.items()},
        unlimited_bytes=max(prediction.live_bytes, card.reserved_bytes),
    )


def step_memory(
    training: Training,
    plan: Plan,
    target: Target,
    stage: Stage,
    *,
    rough: bool = False,
    dataless: Dataless | None = None,
) -> StepMemory:
    """Run one step without data: of two micro-batches, for a third takes no more than the second."""
    as_card = target == "card"
    if as_card:
        plan = CardPlan.of(plan)
    dataless = dataless or Dataless()
    with resting_collector(), no_compiler(), fused_attention():
        with WithoutData(dataless):
            networks = training.build("meta")
            state = training.state(plan, META, OneRank(0, training.ranks), networks=networks, stage=stage)
        for scale in state.loss_scales.values():
            scale.found = True  # tensors without data cannot be asked
        pictures = BlankPictures(stage.sources)

        def grids() -> None:
            _make_grids(training, state, plan, pictures)

        averages_away = as_card and plan.ema_on_host and bool(state.ema.networks)  # then grids are made there
        return measure_step(
            training.step(pictures, Streams(0), stage=stage, ranks=OneRank(in_parts=training.in_parts)),
            state,
            plan,
            training.recomputable(networks),
            as_card=as_card,
            grids=None if rough or averages_away or training.make_grids is None else grids,
            micro_batches=1 if rough else 2,
            count_zeros=not rough,
            dataless=dataless,
        )


@torch.no_grad()
def _make_grids(training: Training, state: TrainingState, plan: Plan, pictures: BlankPictures) -> None:
    assert training.make_grids is not None
    networks, layout = state.shown, plan.layout(state.device)
    with prepared_together(networks, layout):
        training.make_grids(networks, plan.micro_batch, pictures)


# Predictions kept in files, and what makes them stale.

FORMAT = 3

VERSION = 15
"""Of what a step takes. Raise it with a change that moves that, and make the predictions that ship anew
(`make predictions`); tests/planning/test_shipped_predictions.py fails where one was forgotten."""

HELPFUL_SECONDS = 10.0
"""Work from which on a helper is worth its start, which takes about 3 of a processor's time."""

TORCH, OWN, PYTHON = Path(torch.__file__).parent, Path(__file__).parents[1], Path(json.__file__).parents[1]

Job = tuple[Plan, Stage, bool]
"""A plan, a stage, and whether roughly."""


class Helper(Protocol):
    """Another process that runs plans beside this one."""

    def submit(self, job: Job) -> None:
        """Queue a job."""

    def take(self) -> dict[str, Any] | None:
        """The next outcome, in the order of the jobs; None: the process is gone."""

    def close(self) -> None:
        """End the process."""


def outcome(
    training: Training, plan: Plan, target: Target, stage: Stage, *, rough: bool, dataless: Dataless | None = None
) -> dict[str, Any]:
    """A prediction as JSON, or why torch refuses the plan."""
    try:
        return predict(training, plan, target, stage, rough=rough, dataless=dataless).as_json()
    except RuntimeError as error:
        return {"refused": why_refused(error)}


def why_refused(error: RuntimeError) -> str:
    """Why a step cannot be run without data, and at which line of code that is not frugan's or torch's, if it is."""
    reason = first_line(error)
    if "_local_scalar_dense" in reason:
        reason = "a forward or a part looks at a tensor's value (.item(), float(), `if`); in a plan tensors have none"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _is_ours(Path(frame.filename))]
    return f"{reason} ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else reason


def _is_ours(file: Path) -> bool:
    """Whether a line is frugan's, torch's or Python's own."""
    return bool({TORCH, OWN} & {*file.parents}) or file.parent == PYTHON or file.name.startswith("<")


@dataclass
class PredictionStore:
    """Runs plans of one training without data, once each."""

    # training, target: what is predicted
    training: Training
    target: Target
    subject: Mapping[str, Any]  # the recipe's fields that a step depends on
    version: str  # of the step and of torch: a file whose predictions were not held to it does not count
    files: tuple[Path, ...] = ()  # read in this order, as far as they exist and hold for this version
    tell: Callable[[int], None] = lambda _: None  # is told what is run: how many so far
    helper: Helper | None = None  # runs a part of what is asked for ahead; None: nobody does
    # of one run, before any was made: whether help is worth its start
    expected_seconds: Callable[[], float] = lambda: 0.0
    ran: int = 0  # how many were run and not found
    _known: dict[str, dict[str, Any]] = field(default_factory=dict)
    _seconds: float | None = None
    _dataless: Dataless = field(default_factory=Dataless)

    def __post_init__(self) -> None:
        for file in self.files:
            self._known |= _read(file, self.version)

    @property
    def known(self) -> Mapping[str, Mapping[str, Any]]:
        """What was found so far, here or in the files, by key."""
        return self._known

    def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
        """A plan's prediction for a stage.

        Raises:
            RuntimeError: torch refuses the plan.
        """
        plan = _as_run(plan)
        key = self._key(plan, stage, rough=rough)
        if key not in self._known:
            self._run((plan, stage, rough), key)
        kept = self._known[key]
        if "refused" in kept:
            raise RuntimeError(kept["refused"])
        return Prediction.from_json(kept)

    def ahead(self, jobs: Sequence[Job]) -> None:
        """Run what will be asked for, with the helper's help; what it fails to do is done when it is asked for."""
        asked = [(_as_run(plan), stage, rough) for plan, stage, rough in jobs]
        new = {self._key(plan, stage, rough=rough): (plan, stage, rough) for plan, stage, rough in asked}
        keys = [key for key in new if key not in self._known]
        if self.helper is None or len(keys) < 2:
            return
        each_seconds = self.expected_seconds() if self._seconds is None else self._seconds
        if each_seconds * len(keys) < HELPFUL_SECONDS:
            return
        theirs = keys[1::2]
        for key in theirs:
            self.helper.submit(new[key])
        for key in keys[0::2]:
            self._run(new[key], key)
        for key in theirs:
            if (outcome_of := self.helper.take()) is None:
                self.helper.close()
                self.helper = None
                return
            self._tell()
            self._known[key] = outcome_of

    def _run(self, job: Job, key: str) -> None:
        plan, stage, rough = job
        self._tell()
        begun = time.perf_counter()
        self._known[key] = outcome(self.training, plan, self.target, stage, rough=rough, dataless=self._dataless)
        self._seconds = time.perf_counter() - begun

    def learn(self, other: "PredictionStore") -> None:
        """Take over what is known of another recipe: keys tell recipes apart."""
        self._known |= other._known
        self.ran += other.ran

    def _tell(self) -> None:
        self.ran += 1
        self.tell(self.ran)

    def close(self) -> None:
        """End the helper's work."""
        if self.helper is not None:
            self.helper.close()

    def remember(self) -> None:
        """Keep what was found out in the last file; a full disk or a read-only one is no reason to fail."""
        self.close()
        if self.ran:
            with suppress(OSError):
                self.save(self.files[-1])

    def save(self, file: Path) -> None:
        """Add what is known to a file; one of other versions is replaced. What is added holds for this one alone."""
        before = _read(file, self.version)
        known = before | self._known
        if known != before:
            write_predictions(file, (self.version,), known)

    def _key(self, plan: Plan, stage: Stage, *, rough: bool) -> str:
        what = {
            "subject": self.subject,
            "plan": {name: value for name, value in plan.as_json().items() if value},  # a saver to come is no change
            "stage": stage.name,
            "rough": rough,
            "target": _IN_KEYS[self.target],
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]


def write_predictions(file: Path, versions: Sequence[str], predictions: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep predictions by key.

    Args:
        versions: those by which each of them was made, equal in every figure.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    values = {"format": FORMAT, "versions": list(versions), "predictions": dict(sorted(predictions.items()))}
    with atomic_file(file) as beside:
        beside.write_text(json.dumps(values, separators=(",", ":")) + "\n", "utf-8")


def versions_of(file: Path) -> tuple[str, ...]:
    """For which a file's predictions hold."""
    return tuple(read_json(file).get("versions", ()))


def least_work(file: Path) -> Work | None:
    """Work of an average step by the cheapest plan in a file of predictions, of any version; None: it holds none.

    Good for an estimate: what another version changes is the memory, hardly the arithmetic.
    """
    works = [Work(**each["work"]) for each in _read(file, None).values() if "work" in each]
    return min(works, key=lambda work: (work.macs, work.bytes_moved), default=None)


def _as_run(plan: Plan) -> Plan:
    """fp16 is run as bf16: both are two bytes wide, and loss scaling adds scalars; so one run answers for both."""
    if plan.precision.name != "fp16":
        return plan
    return replace(plan, precision=replace(plan.precision, name="bf16", dtype=torch.bfloat16))


def prediction_version() -> str:
    """Version of the predictions that hold now. A CPU build of torch predicts the same as a CUDA build."""
    return f"{VERSION}-torch-{str(torch.__version__).split('+')[0]}"


def torch_of(version: str) -> str:
    """The torch of a version of predictions."""
    return version.partition("-torch-")[2]


def _read(file: Path, version: str | None) -> dict[str, dict[str, Any]]:
    """A file's predictions; none if it is missing, of other versions, or damaged: they can be made again.

    Args:
        version: None: of any.
    """
    values = read_json(file)
    if values.get("format") != FORMAT or (version is not None and version not in values.get("versions", ())):
        return {}
    return dict(values["predictions"])
