"""What published trainings took on real cards, beside what the planner predicts for the same ones of this project.

    python benchmarks/published_costs.py [ROW ...]

Runs a step without data at the batch and the precision that its authors used, with no memory savings but theirs, and
adds what it finds to `benchmarks/results/published-costs.json`: a row takes a minute or a few. Prints the rows asked
for, or all that are recorded so far; `all` runs those that are not. Published figures are in `benchmarks/published`.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from frugan.accelerator.precision import DTYPES, Precision
from frugan.engine.plan import Plan
from frugan.engine.run.training import Training as Described
from frugan.faces.saehd import networks as faces
from frugan.planning.prediction import predict
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import training_of
from frugan.stepmemory.cards import named_card
from frugan.stepmemory.work import Work
from frugan.wording import GIB
from machine import describe_machine

HERE = Path(__file__).parent
RECORD = HERE / "results" / "published-costs.json"


@dataclass(frozen=True)
class Training:
    """A published training."""

    recipe: Recipe  # one card's share of it
    micro_batch: int  # of the share
    precision: Precision  # as published; fp16 throughout stands for the same mixture as here
    recompute: bool  # whether its authors saved memory so
    gib: float | None  # highest memory allocated on a card, as published; None: not told
    seconds: Mapping[str, tuple[float, float]]  # card -> least and most seconds published
    steps: float  # that those seconds hold
    beside: "BesideFp32 | None" = None  # what the same authors say of half precision beside fp32; None: nothing


@dataclass(frozen=True)
class BesideFp32:
    """What half precision took on a card, as a share of what fp32 took at an equal batch."""

    seconds: float  # of its time
    memory: float  # of its memory
    busy: tuple[float, float]  # share of the time that the card was busy in half precision, least and most
    busy_fp32: float  # and in fp32


def trainings() -> dict[str, Training]:
    """All that are published, by name."""
    known = {name: _stylegan2(row) for name, row in _rows("stylegan2-costs.json").items()}
    known |= {name: _stylegan3(row) for name, row in _rows("stylegan3-costs.json").items()}
    for name, row in _rows("other-costs.json").items():
        seconds = {card: (least, most) for card, (least, most) in row["seconds"].items()}
        recipe = load_recipe(row["recipe"], row["fields"])
        precision = _precision(row["precision"])
        beside = None
        if (shares := row.get("half_beside_fp32")) is not None:
            beside = BesideFp32(shares["seconds"], shares["memory"], tuple(shares["busy"]), shares["busy_fp32"])
        known[name] = Training(recipe, row["micro_batch"], precision, row["recompute"], None, seconds, 1, beside)
    return known


def _rows(file: str) -> dict[str, Any]:
    rows: dict[str, Any] = json.loads((HERE / "published" / file).read_text("utf-8"))["rows"]
    return rows


def _precision(name: str) -> Precision:
    return Precision(name, DTYPES[name], "as published")  # type: ignore[arg-type]


def _stylegan2(row: Mapping[str, Any]) -> Training:
    """The authors' programs do by default what a row's options do not say."""
    options, side, batch = row["options"], row["resolution"], row["batch_per_card"]
    auto = options["cfg"] == "auto"
    base = (16384 if side < 512 else 32768) if auto else int(options.get("cbase", 32768))
    words = [
        f"networks.resolution={side}",
        f"networks.channel_base={base}",
        f"networks.mapping_layers={2 if auto else int(options.get('map-depth', 8))}",
        f"training.batch={batch}",
        f"training.normalisation_batch={min(batch, int(options.get('mbstd-group', 4)))}",
    ]
    words += ["objective.augmentation.method=ada"] if row["augmented"] else []
    return Training(
        recipe=load_recipe("stylegan2-ffhq-256", words),
        micro_batch=batch,
        precision=_precision("fp16"),
        recompute=False,
        gib=row["gpu_memory_gb"],
        seconds=_seconds(row),
        steps=1000 / (batch * int(options["gpus"])),
    )


def _seconds(row: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Card -> least and most seconds for 1000 pictures."""
    seconds = {}
    for card in ("v100", "a100"):
        if (published := row.get(f"seconds_per_kimg_{card}")) is not None:
            least, most = published if isinstance(published, list) else (published, published)
            seconds[card] = (least, most)
    return seconds


def _stylegan3(row: Mapping[str, Any]) -> Training:
    """Our recipe at the authors' micro-batch; they too see a batch of 32 on one card."""
    words = [f"networks.resolution={row['resolution']}", "objective.augmentation.method=ada"]
    return Training(
        recipe=load_recipe(f"stylegan3-{row['kind']}-256", [*words, f"training.batch={row['batch']}"]),
        micro_batch=row["micro_batch"],
        precision=_precision("fp16"),
        recompute=False,
        gib=row["gpu_memory_gb"],
        seconds=_seconds(row),
        steps=1000 / row["batch"],
    )


def run(training: Training) -> dict[str, Any]:
    """One card's share of a step without data: memory and counts of work."""
    begun = time.perf_counter()
    found = _predicted(training, training.precision)
    if training.beside is not None:
        fp32 = _precision("fp32")
        found["fp32"] = _predicted(training, fp32)
        with _written_plainly():
            found["program_fp32"] = _predicted(training, fp32)
            with _autocast(conversions := Conversions()):
                found["program"] = _predicted(training, fp32)
        found["program"]["converted_bytes"] = conversions.bytes_moved
    return found | {"ran_seconds": round(time.perf_counter() - begun)}


def _predicted(training: Training, precision: Precision) -> dict[str, Any]:
    # Sheets are made in small batches there: never the peak.
    described: Described = replace(training_of(training.recipe), make_grids=None)
    blocks = described.recomputable(described.build("meta")) if training.recompute else {}
    plan = Plan(training.micro_batch, precision, blocks)
    prediction = predict(described, plan, "card", described.stages[0])
    return {
        "allocated_bytes": prediction.live_bytes,
        "reserved_bytes": prediction.reserved_bytes,
        "place": prediction.place,
        "by_phase": prediction.by_phase,
        "categories": prediction.categories,
        "work": asdict(prediction.work),
    }


# The program of the face model's owner, as far as it is known: torch, operation by operation, in fp32 or under
# autocast, without channels-last.


@contextmanager
def _written_plainly() -> Iterator[None]:
    """Activations make new tensors, as they are usually written, and do not work in place."""

    def spread(x: Tensor, slope: float) -> Tensor:
        return faces.depth_to_space(F.leaky_relu(x, slope))

    def activate(self: faces.Activation, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.slope)

    with (
        mock.patch.object(faces, "spread_leaky_relu", spread),
        mock.patch.object(faces.Activation, "forward", activate),
    ):
        yield


@dataclass
class Conversions:
    """Of tensors that are not channels-last: half-precision kernels have what they read turned round, and the result.

    Attributes:
        bytes_moved: by them.
    """

    bytes_moved: int = 0

    def watch(self, x: Tensor, out: Tensor) -> None:
        """A convolution, and its backward pass, which has both gradients made from one of the result."""
        self.bytes_moved += 2 * (x.nbytes + out.nbytes)
        if out.requires_grad:
            out.register_hook(lambda gradient: self._add(2 * (2 * x.nbytes + gradient.nbytes)))

    def _add(self, size_bytes: int) -> None:
        self.bytes_moved += size_bytes


@contextmanager
def _autocast(conversions: Conversions) -> Iterator[None]:
    """Convolutions and products cast what they are given to half precision, and give that; all else stays as it is.

    Done by hand, because torch's own autocast leaves tensors without data alone.
    """

    def cast(value: Any) -> Any:
        return value.to(torch.bfloat16) if isinstance(value, Tensor) and value.dtype == torch.float32 else value

    def casting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            x = cast(x)
            out = function(x, *map(cast, args), **{name: cast(value) for name, value in kwargs.items()})
            if x.ndim == 4:
                conversions.watch(x, out)
            return out

        return call

    with ExitStack() as stack:
        for name in ("conv2d", "conv_transpose2d", "linear"):
            stack.enter_context(mock.patch.object(F, name, casting(getattr(F, name))))
        yield


def program_seconds(training: Training, found: Mapping[str, Any]) -> tuple[float, float]:
    """How long the modelled program keeps the card busy, in half precision and in fp32.

    Its optimizer updates parameter by parameter in five operations (those of torch's RMSprop without fusing), and under
    autocast its gradients are unscaled before.
    """
    parameters = [p for network in training_of(training.recipe).build("meta").values() for p in network.parameters()]
    size_bytes = sum(4 * p.numel() for p in parameters)
    update = Work(bytes_moved=13 * size_bytes, operations=5 * len(parameters))
    unscaled = Work(bytes_moved=2 * size_bytes, operations=1)
    half, full = found["program"], found["program_fp32"]
    converted = Work(bytes_moved=half["converted_bytes"])
    card = named_card(next(iter(training.seconds)))
    return (
        card.seconds(Work(**half["work"]) + update + unscaled + converted, training.precision),
        card.seconds(Work(**full["work"]) + update, _precision("fp32")),
    )


def lines_beside_fp32(training: Training, found: Mapping[str, Any]) -> Iterator[str]:
    """Rows of the second table: half precision beside fp32, as published, of the modelled program, and of ours."""
    assert training.beside is not None
    (card, (least, most)), said = next(iter(training.seconds.items())), training.beside
    theirs, theirs_fp32 = program_seconds(training, found)
    on, fp32 = named_card(card), _precision("fp32")
    ours = on.seconds(Work(**found["work"]), training.precision)
    ours_fp32 = on.seconds(Work(**found["fp32"]["work"]), fp32)
    busy = f"{least * said.busy[0]:.1f} to {most * said.busy[1]:.1f}"
    busy_fp32 = " to ".join(f"{each / said.seconds * said.busy_fp32:.1f}" for each in (least, most))
    yield f"| card busy in half precision, s | {busy} | {theirs:.2f} | {ours:.2f} |"
    yield f"| card busy in fp32, s | {busy_fp32} | {theirs_fp32:.2f} | {ours_fp32:.2f} |"
    waiting = theirs / (sum(said.busy) / 2) / (theirs_fp32 / said.busy_fp32)
    yield f"| time beside fp32 | {said.seconds:.2f} | {waiting:.2f} | {ours / ours_fp32:.2f} |"
    memory = found["program"]["allocated_bytes"] / found["program_fp32"]["allocated_bytes"]
    own = found["allocated_bytes"] / found["fp32"]["allocated_bytes"]
    yield f"| memory beside fp32 | {said.memory:.2f} | {memory:.2f} | {own:.2f} |"


def lines(name: str, training: Training, predicted: Mapping[str, Any]) -> Iterator[str]:
    """Rows of the table, one for each card."""
    ours, memory = predicted["allocated_bytes"] / GIB, training.gib
    about_memory = (
        ["", f"{ours:.2f}", ""] if memory is None else [f"{memory:.1f}", f"{ours:.2f}", f"{ours / memory - 1:+.0%}"]
    )
    for card, (least, most) in training.seconds.items():
        seconds = named_card(card).seconds(Work(**predicted["work"]), training.precision) * training.steps
        off = seconds / most - 1 if seconds > most else min(seconds / least - 1, 0.0)
        published = f"{least:g}" + (f" to {most:g}" if most > least else "")
        cells = [f"`{name}`", *about_memory, card, published, f"{seconds:.3g}", f"{round(off, 2) + 0.0:+.0%}"]
        yield "| " + " | ".join(cells) + " |"
        about_memory = ["", "", ""]


def main() -> None:
    """Run what is asked for, write, print."""
    known, recorded = trainings(), {}
    if RECORD.is_file():
        recorded = json.loads(RECORD.read_text("utf-8"))["rows"]
    asked = sys.argv[1:]
    if unknown := [name for name in asked if name not in known and name != "all"]:
        sys.exit(f"row {unknown[0]!r}: not among those published: {', '.join(known)}")
    for name in [name for name in known if name not in recorded] if asked == ["all"] else asked:
        recorded[name] = run(known[name])
        print(f"{name}: {recorded[name]['ran_seconds']} s", file=sys.stderr, flush=True)
        kept = {each: recorded[each] for each in known if each in recorded}
        result = {"machine": describe_machine(), "rows": kept}
        RECORD.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print("| row | published GiB | ours | off | card | published s | ours | off |")
    print("|---" * 8 + "|")
    for name in asked if asked and asked != ["all"] else recorded:
        print("\n".join(lines(name, known[name], recorded[name])))
    for name in asked if asked and asked != ["all"] else recorded:
        if known[name].beside is not None:
            print(f"\n| `{name}` | published | its program, modelled | ours |")
            print("|---" * 4 + "|")
            print("\n".join(lines_beside_fp32(known[name], recorded[name])))


if __name__ == "__main__":
    main()
