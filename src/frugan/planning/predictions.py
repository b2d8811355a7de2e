"""Predictions of one training's plans: each is run once, and kept in files as long as it holds."""

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch

from frugan.engine.plan import Plan
from frugan.engine.run.training import Stage, Training
from frugan.files import atomic_file, read_json
from frugan.planning.prediction import Prediction, Target, predict
from frugan.stepmemory.dataless import Dataless
from frugan.stepmemory.work import Work
from frugan.wording import first_line

FORMAT = 3

VERSION = 16
"""Version of the predictions. Raise it with a change that moves what a step takes, and make those that ship anew
(`make predictions`); tests/planning/test_shipped_predictions.py fails where one was forgotten."""

IN_KEYS: Mapping[Target, str] = MappingProxyType({"cpu": "cpu", "card": "cuda"})
"""Target -> its word among what the keys in files are made of."""

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
        """Return the next outcome, in the order of the jobs; None: the process is gone."""

    def close(self) -> None:
        """End the process."""


def why_refused(error: RuntimeError) -> str:
    """Why a step cannot be run without data, and at which line of code that is not frugan's or torch's, if it is."""
    reason = first_line(error)
    if "_local_scalar_dense" in reason:
        reason = "a forward or a part looks at a tensor's value (.item(), float(), `if`); in a plan tensors have none"
    if "'lengths' argument" in reason:
        reason = (
            "pack_padded_sequence reads lengths, and in a plan tensors have no values: plan the step without packing, "
            "which takes as much as a batch without padding does"
        )
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _is_ours(Path(frame.filename))]
    return f"{reason} ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else reason


def _is_ours(file: Path) -> bool:
    """Whether a line is frugan's, torch's or Python's own."""
    return bool({TORCH, OWN} & {*file.parents}) or file.parent == PYTHON or file.name.startswith("<")


@dataclass
class Predictions:
    """Runs plans of one training without data, once each."""

    training: Training  # what a card does of what is trained
    target: Target  # what is predicted for
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
        """Predictions found so far, here or in the files, by key."""
        return self._known

    def __call__(self, plan: Plan, stage: Stage, *, rough: bool) -> Prediction:
        """A plan's prediction for a stage.

        Raises:
            RuntimeError: torch refuses the plan.
        """
        plan = _as_run(plan)
        key = self._key(plan, stage, rough=rough)
        if key not in self._known:
            self._known[key] = self.outcome((plan, stage, rough))
        kept = self._known[key]
        if "refused" in kept:
            raise RuntimeError(kept["refused"])
        return Prediction.from_json(kept)

    def ahead(self, jobs: Sequence[Job]) -> None:
        """Run what will be asked for, with the helper's help; what it fails to do is done when it is asked for."""
        as_run = [(_as_run(plan), stage, rough) for plan, stage, rough in jobs]
        new = {self._key(plan, stage, rough=rough): (plan, stage, rough) for plan, stage, rough in as_run}
        keys = [key for key in new if key not in self._known]
        if self.helper is None or len(keys) < 2:
            return
        run_seconds = self.expected_seconds() if self._seconds is None else self._seconds
        if run_seconds * len(keys) < HELPFUL_SECONDS:
            return
        theirs = keys[1::2]
        for key in theirs:
            self.helper.submit(new[key])
        for key in keys[0::2]:
            self._known[key] = self.outcome(new[key])
        for key in theirs:
            if (outcome_of := self.helper.take()) is None:
                self.helper.close()
                self.helper = None
                return
            self._tell()
            self._known[key] = outcome_of

    def outcome(self, job: Job) -> dict[str, Any]:
        """Run a plan and return its prediction as JSON, or why torch refuses the plan."""
        plan, stage, rough = job
        self._tell()
        begun = time.perf_counter()
        try:
            return predict(self.training, plan, self.target, stage, rough=rough, dataless=self._dataless).as_json()
        except RuntimeError as error:
            return {"refused": why_refused(error)}
        finally:
            self._seconds = time.perf_counter() - begun

    def learn(self, other: "Predictions") -> None:
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
            "target": IN_KEYS[self.target],
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
    works = [Work(**values["work"]) for values in _read(file, None).values() if "work" in values]
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
