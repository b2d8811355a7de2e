"""Other programs that show trainings: TensorBoard and Weights & Biases, as readers of the same events."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from PIL import Image

from frugan.engine.events import Event
from frugan.engine.run_folder import RunFolder
from frugan.errors import BadInput

Follow = Callable[[Event], None]

_OF_A_PHASE = ("gradient_norm", "loss_scale", "skipped", "learning_rate")


def has_tensorboard() -> bool:
    """Whether TensorBoard is installed."""
    return find_spec("tensorboard") is not None


@contextmanager
def following(run: Path, *, tensorboard: bool, wandb_project: str | None) -> Iterator[Follow]:
    """Pass events on while the block is open.

    Args:
        run: folder; TensorBoard's files go into its folder `tensorboard`.
        tensorboard: write them.
        wandb_project: on Weights & Biases; None: send nothing there.

    Raises:
        BadInput: what is asked for is not installed.
    """
    with ExitStack() as opened:
        followers: list[Follow] = []
        if tensorboard:
            followers.append(opened.enter_context(_tensorboard(run)))
        if wandb_project is not None:
            followers.append(opened.enter_context(_wandb(run, wandb_project)))

        def follow(event: Event) -> None:
            for each in followers:
                each(event)

        yield follow


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of an event by name ("D/real", "scores/fid"); what is not finite is left out."""
    found: dict[str, Any] = {}
    if event.get("event") == "step":
        for phase, entry in event["phases"].items():
            found |= {f"{phase}/{term}": value for term, value in entry["terms"].items()}
            found |= {f"{phase}/{name}": entry[name] for name in _OF_A_PHASE if name in entry}
        found |= {name: event[name] for name in ("images_per_second", "memory_bytes") if event.get(name)}
        found |= event.get("carried", {})
        found |= {f"singular values/{layer}": value for layer, value in event.get("singular_values", {}).items()}
    elif event.get("event") == "metrics":
        found = {f"scores/{name}": value for name, value in event["scores"].items()}
    elif event.get("event") == "variety" and event["mean"]:
        found = {f"variety/{name}": fmean(event[name].values()) for name in ("mean", "nearest")}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


@contextmanager
def _tensorboard(run: Path) -> Iterator[Follow]:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise BadInput("--tensorboard: TensorBoard is not installed: pip install 'frugan[report]'") from error
    writer = SummaryWriter(str(run / "tensorboard"))

    def follow(event: Event) -> None:
        for name, value in scalars(event).items():
            writer.add_scalar(name, value, event["step"])
        for path in _sheets(run, event):
            with Image.open(path) as sheet:
                pixels = np.asarray(sheet.convert("RGB"))
            writer.add_image(_kind(path), pixels, event["step"], dataformats="HWC")

    try:
        yield follow
    finally:
        writer.close()


@contextmanager
def _wandb(run: Path, project: str) -> Iterator[Follow]:
    try:
        import wandb  # noqa: PLC0415  (an extra of its own)
    except ImportError as error:
        raise BadInput(f"--wandb {project}: Weights & Biases is not installed: pip install wandb") from error
    session = wandb.init(project=project, name=run.name, dir=str(run), id=_wandb_id(run), resume="allow")

    def follow(event: Event) -> None:
        if event.get("event") == "start":
            session.config.update(event["recipe"], allow_val_change=True)
        values: dict[str, Any] = dict(scalars(event))
        values |= {_kind(path): wandb.Image(str(path)) for path in _sheets(run, event)}
        if values:
            session.log({**values, "step": event["step"]})

    try:
        yield follow
    finally:
        session.finish()


def _wandb_id(run: Path) -> str:
    """What a run is called there, whenever it goes on: kept in its folder, as another folder may have its name."""
    file = RunFolder(run).wandb_id
    try:
        return file.read_text("utf-8").strip()
    except FileNotFoundError:
        made = secrets.token_hex(8)
        file.write_text(made + "\n", "utf-8")
        return made


def _sheets(run: Path, event: Mapping[str, Any]) -> list[Path]:
    return [run / name for name in event.get("paths", ())] if event.get("event") == "snapshot" else []


def _kind(path: Path) -> str:
    """ "step-000000200-samples.png" -> "samples"."""
    return path.stem.split("-", 2)[-1]
