"""The full self-test: all that a first card can settle in minutes, most important first; a second call goes on."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from frugan.accelerator.base import Accelerator
from frugan.accelerator.device import disable_reduced_precision
from frugan.accelerator.precision import DTYPES, resolve_precision
from frugan.doctor.card_memory import (
    LARGE_HELD,
    SMALL_HELD,
    copies,
    held_under_a_limit,
    same_weights_after_running_out,
)
from frugan.doctor.cards import CardTools, Driver, ask_driver, tools_of
from frugan.doctor.checks import SAME_STEP, SAME_STEPS, family_checks
from frugan.doctor.finding import Check, Finding, judged, out_of_time
from frugan.doctor.full_checks import launches_and_waits
from frugan.doctor.machine import examine
from frugan.doctor.real_size import COUNTED, REAL_SIZE_RECIPES, Sized, real_size_on_a_card
from frugan.doctor.selftest import FORMAT, SelfTest, Tell, record, run_check
from frugan.doctor.trial import FP32, half_precisions
from frugan.doctor.whole_runs import features, scores, two_ranks
from frugan.errors import BadInput
from frugan.families import families
from frugan.files import Folders, atomic_file, read_json
from frugan.planning.predictions import prediction_version
from frugan.progress import Say, quiet
from frugan.setup.devices import use_device
from frugan.stepmemory.calibration import (
    choose_card,
    load_calibration,
    measure_latency,
    random_matrix,
    seconds_per_operation,
)
from frugan.stepmemory.cards import Card
from frugan.version import __version__

MINUTES = 8.0
"""Default time limit, which only the check in progress may exceed."""
CALIBRATION_MACS = 2.5e12
"""Multiply-accumulates of `calibrate` in each precision: mostly three products of matrices of 8192 rows."""
CALIBRATION_SHARE = 0.25
"""Share of the time that calibrating a card may take."""
QUICK_MATRIX = {"side": 256, "most": 4096}
LONG_ENOUGH_SECONDS = 2e-3
TRIES = 2
"""Times that a piece may end the process before it is left alone."""
NUMBERS = (SAME_STEPS, SAME_STEP, "fp32 against float64", "fp16 against fp32", "bf16 against fp32")

Try = Callable[[float], Finding | list[Finding]]
"""Is given the seconds that are left."""


@dataclass(frozen=True)
class Piece:
    """Checks that run and are recorded together."""

    name: str  # tells it from the others: a second call leaves out what a first one has settled
    check: str  # its first one's name, if it breaks
    subject: str
    attempt: Try


Origin = Mapping[str, str | int | None]
"""Conditions of the figures: the card, and the versions of the software on it."""


def origin_of(card: Accelerator, driver: Driver) -> dict[str, str | int | None]:
    """Return the card and the versions that the figures of this call belong to."""
    return {
        "card": card.name,
        "card memory": card.total_bytes,
        "driver": driver.version,
        "torch": str(torch.__version__),
        "frugan": __version__,
        "predictions": prediction_version(),
    }


@dataclass
class SavedRecord:
    """Outcomes of earlier calls and of this one so far."""

    file: Path
    origin: Origin  # origin of all outcomes
    outcomes: dict[str, list[Finding]] = field(default_factory=dict)  # by piece
    begun: dict[str, int] = field(default_factory=dict)  # piece -> calls that began it and did not come back from it
    took: dict[str, float] = field(default_factory=dict)  # piece -> seconds
    seconds: float = 0.0  # duration of earlier calls

    @classmethod
    def of(cls, file: Path, origin: Origin) -> "SavedRecord":
        """Read a file; a missing file gives an empty record.

        Args:
            origin: of what is to be added.

        Raises:
            BadInput: the file is another one, or of another card or version, whose figures do not go with these.
        """
        if not file.exists():
            return cls(file, origin)

        def other(why: str) -> BadInput:
            return BadInput(f"{file}: {why}; expected a record of frugan doctor --selftest --full. Name another file")

        values = read_json(file, other)
        if values.get("format") != FORMAT or not isinstance(values.get("full"), dict):
            raise other("no record of a full self-test")
        full = values["full"]
        there = full.get("origin") if isinstance(full.get("origin"), dict) else {}
        others = [f"{name} {there.get(name)}, now {now}" for name, now in origin.items() if there.get(name) != now]
        if others:
            raise BadInput(
                f"{file}: is of {'; '.join(others)}. What was found there and what is found now would be one record: "
                "name another file, or delete this one"
            )
        try:
            saved = cls(
                file, origin, begun=dict(full["begun"]), took=dict(full["seconds"]), seconds=float(values["seconds"])
            )
            for entry in values["outcomes"]:
                outcome = Finding(
                    entry["check"], entry["verdict"], entry["line"], None, entry["figures"], entry["subject"]
                )
                saved.outcomes.setdefault(entry["piece"], []).append(outcome)
        except (LookupError, TypeError, ValueError) as error:
            raise other(f"damaged ({type(error).__name__}: {error})") from error
        return saved

    def settled(self, piece: Piece) -> bool:
        """Return whether all checks of a piece are done."""
        outcomes = self.outcomes.get(piece.name)
        return outcomes is not None and not any("left_seconds" in outcome.values for outcome in outcomes)

    @property
    def all(self) -> list[Finding]:
        """Return all outcomes."""
        return [outcome for outcomes in self.outcomes.values() for outcome in outcomes]


@dataclass
class Session:
    """A call of the full self-test, with its time limit and the record that it adds to."""

    device: str  # its name
    saved: SavedRecord
    findings: list[Finding]  # about the machine
    end: float  # time at which the session must end, by `time.perf_counter`
    tell: Tell = quiet
    began: float = field(default_factory=time.perf_counter)

    @property
    def left_seconds(self) -> float:
        """Until the time is over."""
        return self.end - time.perf_counter()

    def record(self) -> dict[str, Any]:
        """Return the record to write: that of a self-test, and what a second call needs."""
        saved = self.saved
        seconds = saved.seconds + time.perf_counter() - self.began
        values = record(self.device, self.findings, saved.all, seconds)
        pieces = [piece for piece, outcomes in saved.outcomes.items() for _ in outcomes]
        outcomes = [{**outcome, "piece": piece} for outcome, piece in zip(values["outcomes"], pieces, strict=True)]
        full = {"origin": dict(saved.origin), "begun": saved.begun, "seconds": saved.took}
        return _nameless({**values, "outcomes": outcomes, "full": full})

    def write(self) -> None:
        """Write it whole, or not at all."""
        with atomic_file(self.saved.file) as beside:
            beside.write_text(json.dumps(self.record(), indent=1, ensure_ascii=False) + "\n", "utf-8")

    def settle(self, piece: Piece, card: CardTools) -> None:
        """Try a piece, unless that is done, or there is no time for it, or it ends the process every time."""
        saved = self.saved
        if saved.settled(piece):
            return
        if saved.begun.get(piece.name, 0) >= TRIES:
            line = f"the process ended in it {TRIES} times"
            self._settled(piece, [judged(piece.check, piece.subject, line, passed=False)])
        elif (left := self.left_seconds) <= 0:
            self._settled(piece, [out_of_time(piece.check, piece.subject, None, left)])
        else:
            saved.begun[piece.name] = saved.begun.get(piece.name, 0) + 1
            self.write()
            began = time.perf_counter()
            try:
                outcomes = run_check(piece.check, piece.subject, partial(piece.attempt, left), card.device)
            except (KeyboardInterrupt, SystemExit):  # ended from outside: it did not end the process itself
                saved.begun.pop(piece.name)
                self.write()
                raise
            saved.took[piece.name] = round(time.perf_counter() - began, 1)
            self._settled(piece, outcomes)

    def _settled(self, piece: Piece, outcomes: list[Finding]) -> None:
        self.saved.begun.pop(piece.name, None)
        self.saved.outcomes[piece.name] = outcomes
        self.write()
        for outcome in outcomes:
            self.tell(outcome)


def _nameless(values: dict[str, Any]) -> dict[str, Any]:
    """Without the home folder's name, which stands in what compilers and other processes say of their files."""
    text, home = (json.dumps(value, ensure_ascii=False) for value in (values, str(Path.home())))
    nameless: dict[str, Any] = json.loads(text.replace(home[1:-1], "~")) if len(home) > len('"/"') else values
    return nameless


def run_full_self_test(
    device: str,
    runs: Path | None,
    file: Callable[[str], Path],
    minutes: float = MINUTES,
    *,
    say: Say = quiet,
    tell: Tell = quiet,
) -> SelfTest:
    """Try on a card all that only a card can show, most important first, and write each thing down as it is found.

    Args:
        device: auto, cuda or cuda:N.
        runs: folder that runs will be written to; None: the usual one.
        file: of the record, by the device's name; one that is there is gone on with.
        minutes: that it may take.
        say: is told what takes long.
        tell: is given each outcome as it is found.

    Raises:
        BadInput: no such device, or no card; the file is another one.
    """
    if not (minutes > 0):
        raise BadInput(f"--minutes {minutes}: expected more than 0, such as {MINUTES:.0f}")
    end = time.perf_counter() + 60 * minutes
    driver = ask_driver()  # before CUDA is set up, and takes memory itself
    chosen, _ = use_device(device)
    card = tools_of(chosen)
    if card is None:
        raise BadInput(
            f"--full: tries what only a card can show, and this is {chosen}; --selftest alone tries the rest"
        )
    name = card.card.name
    saved = SavedRecord.of(file(name), origin_of(card.card, driver))
    disable_reduced_precision()
    figures = load_calibration(name, Folders.from_environment().cache)
    if figures is None:
        say("measuring roughly how fast the card is")
        figures = quick_figures(card)
    measures = (
        CALIBRATION_MACS * sum(1 / macs for macs in figures.macs_per_s.values()) < 60 * minutes * CALIBRATION_SHARE
    )
    findings = examine(device, runs, driver=driver, measures=measures, say=say)
    figures = load_calibration(name, Folders.from_environment().cache) or figures
    session = Session(name, saved, findings, end, tell)
    for piece in pieces(card, figures):
        session.settle(piece, card)
        if not _answers(card):
            say(f"{chosen} answers this process no more; the same command goes on where this one stopped")
            break
    session.write()
    return SelfTest(name, findings, saved.all, session.record())


def _answers(card: CardTools) -> bool:
    """Return whether a card still computes: after some faults it no longer serves the process."""
    try:
        torch.zeros(1, device=card.device).add_(1)
        card.wait()
    except RuntimeError:
        return False
    return True


def quick_figures(card: CardTools) -> Card:
    """Estimate the speed of a card that was never measured, in a second, to see what there is time for."""
    device = card.device
    reached = {precision.name: _macs_per_s(precision.dtype, device) for precision in (FP32, *half_precisions(device))}
    of_all = {name: min(reached.values()) for name in DTYPES} | reached
    operation_seconds = seconds_per_operation(device)
    return replace(choose_card(None, device), macs_per_s=of_all, seconds_per_operation=operation_seconds)


def _macs_per_s(dtype: torch.dtype, device: torch.device) -> float:
    """By products of matrices that double until one takes long enough to be timed."""
    side = QUICK_MATRIX["side"]
    while True:
        a = random_matrix(side, dtype, device)
        seconds = measure_latency(partial(torch.mm, a, a), device, budget_seconds=0.1)
        if seconds > LONG_ENOUGH_SECONDS or side >= QUICK_MATRIX["most"]:
            return side**3 / seconds
        side *= 2


def pieces(card: CardTools, figures: Card) -> Iterator[Piece]:
    """Yield the pieces in the order in which they run.

    Args:
        figures: what is known of the card.
    """
    numbers, others = list[Piece](), list[Piece]()
    for name, family in families().items():
        for number, (label, check) in enumerate(family_checks(family, card.device, card)):
            piece = Piece(f"{name}: {label or number}", label, name, _whenever(check))
            (numbers if label.startswith(NUMBERS) else others).append(piece)
    yield from numbers
    yield from (_recipe(sized, card, figures) for sized in REAL_SIZE_RECIPES)
    for sized in COUNTED:
        counted = partial(launches_and_waits, sized, card, figures)
        yield Piece(f"launches {sized.recipe}", "launches and waits", sized.recipe, counted)
    for sized, large in ((LARGE_HELD, True), (SMALL_HELD, False)):
        held = partial(held_under_a_limit, sized, card, figures, large=large)
        yield Piece(f"held {sized.recipe}", "held under a limit", sized.recipe, held)
    yield Piece("runs out", "out of memory under a limit", "biggan", partial(same_weights_after_running_out, card))
    yield Piece("ranks", "two ranks train as one", "biggan", partial(two_ranks, card))
    yield Piece("scores", "scores as on the processor", "biggan", partial(scores, card))
    yield Piece("features", "features of pictures", "Inception", partial(features, card, figures))
    yield Piece("copies", "copies to and from the host", "the card", partial(copies, card, figures))
    yield from others


def _whenever(check: Check) -> Try:
    """A check so small that there is always time for it."""
    return lambda _: check()


def _recipe(sized: Sized, card: CardTools, figures: Card) -> Piece:
    def attempt(left_seconds: float) -> list[Finding]:
        precision = resolve_precision(sized.precision, card.device)
        return real_size_on_a_card(
            sized.training, card, figures, precision, saver=sized.saver, left_seconds=left_seconds
        )

    return Piece(f"recipe {sized.recipe}", "recipe of ordinary size", sized.recipe, attempt)
