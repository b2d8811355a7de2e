"""Checkpoints: everything a run needs to go on (bit for bit on a CPU), in one directory, whole or not there.

A checkpoint is written beside its final name, flushed, and renamed. Every file has a digest in MANIFEST.json; one that
does not agree is named, and the checkpoint before it is used. Random streams are functions of seed and step, so the
step is their whole state.
"""

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from frugan.engine.run.tensor_files import digest, flush_folder, read_tensors, write_json, write_tensors
from frugan.engine.state.loss_scale import LossScale
from frugan.engine.state.optimizer_settings import named_parameters
from frugan.engine.state.state import TrainingState
from frugan.errors import BadInput
from frugan.files import read_json
from frugan.wording import first_lines

FORMAT = 1
MANIFEST_FILE = "MANIFEST.json"
NETWORKS_FILE = "networks.safetensors"
EMA_FILE = "ema.safetensors"
OPTIMIZERS_FILE = "optimizers.safetensors"
STATE_FILE = "state.json"
UNFINISHED = ".unfinished-"
DAMAGED = "damaged-"
DIVERGED = "diverged-"
EARLIER = "earlier-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path  # its directory
    step: int  # steps done


class DamagedCheckpoint(Exception):
    """A checkpoint whose files do not agree with its manifest."""


def _optimizer_tensors(state: TrainingState) -> dict[str, Tensor]:
    """Optimizer state by optimizer and parameter name, which other programs can be given too."""
    tensors: dict[str, Tensor] = {}
    for name, optimizer in state.optimizers.items():
        tensors |= {f"{name}/{count}": value for count, value in optimizer.counts.items()}
        for key, parameter in named_parameters(state.networks, state.moves[name]).items():
            for slot, value in optimizer.whole_state(parameter).items():
                tensors[f"{name}/{key}/{slot}"] = value
    return tensors


def network_tensors(networks: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Tensors of networks as weights files name them, "network.parameter"; not copied."""
    return {f"{name}.{key}": value for name, network in networks.items() for key, value in network.state_dict().items()}


def checkpoint_tensors(state: TrainingState) -> Iterator[Tensor]:
    """Every tensor that goes into a checkpoint of a state."""
    for parked in state.parked.values():
        yield from parked.values()
    for networks in (state.networks, state.ema.networks):
        yield from network_tensors(networks).values()
    yield from _optimizer_tensors(state).values()


def save_checkpoint(
    folder: Path, state: TrainingState, metadata: Mapping[str, str], extra: Mapping[str, Any]
) -> Checkpoint:
    """Write a checkpoint into `folder`.

    Args:
        metadata: goes into every tensor file (recipe, so that a weights file needs nothing else).
        extra: JSON values that the loop wants back on resume.

    Raises:
        OSError: the disk is full, for example; earlier checkpoints are untouched and nothing is left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / checkpoint_name(state.step)
    if final.exists():
        return Checkpoint(final, state.step)
    beside = folder / f"{UNFINISHED}{final.name}"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir()
        parked = state.parked
        # networks first: reading them waits for the card, and with it for statistics that are on their way to the host
        write_tensors(beside / NETWORKS_FILE, network_tensors(state.networks) | parked.get(NETWORKS_FILE, {}), metadata)
        if state.ema.networks:
            write_tensors(beside / EMA_FILE, network_tensors(state.ema.networks), metadata)
        write_tensors(beside / OPTIMIZERS_FILE, _optimizer_tensors(state) | parked.get(OPTIMIZERS_FILE, {}), {})
        write_json(
            beside / STATE_FILE,
            {
                "format": FORMAT,
                "step": state.step,
                "loss_scales": {
                    name: [scale.scale.item(), scale.good.item(), scale.found]
                    for name, scale in state.loss_scales.items()
                },
                "carried": {name: value.tolist() for name, value in state.carried.items()},
                "skipped": {phase: int(count) for phase, count in state.skipped.items()},
                "torch": str(torch.__version__),
                **extra,
            },
        )
        files = sorted(p.name for p in beside.iterdir())
        write_json(beside / MANIFEST_FILE, {name: digest(beside / name) for name in files})
        flush_folder(beside)
        beside.replace(final)
        flush_folder(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return Checkpoint(final, state.step)


def checkpoint_name(step: int) -> str:
    """Name of a step's checkpoint in its folder."""
    return f"step-{step:09d}"


def step_in_name(path: Path) -> int | None:
    """The step that a checkpoint's folder is named for; None: its name is no checkpoint's."""
    number = path.name.removeprefix("step-")
    return int(number) if number != path.name and number.isdigit() else None


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Checkpoints in a folder, oldest first; what was not finished does not count."""
    if not folder.is_dir():
        return []
    checkpoints = [
        Checkpoint(path, step)
        for path in folder.iterdir()
        if (step := step_in_name(path)) is not None and path.is_dir()
    ]
    return sorted(checkpoints, key=lambda checkpoint: checkpoint.step)


def keep_newest(folder: Path, count: int, also: Collection[int] = ()) -> None:
    """Delete all but the newest `count` checkpoints and those of the steps in `also`, and what was left unfinished."""
    for old in list_checkpoints(folder)[:-count]:
        if old.step not in also:
            shutil.rmtree(old.path)
    for left in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)


@dataclass(frozen=True)
class BackupLimits:
    """Limits of how many backups are kept, and of their size; the newest always is."""

    number: int | None = None  # None: any
    total_bytes: int | None = None  # of the disk; None: any

    def apply(self, folder: Path, newest: int) -> None:
        """Delete the oldest backups beyond the limits.

        Args:
            newest: step of the one that was just written, which stays whatever others say.
        """
        taken_bytes = 0
        backups = sorted(list_checkpoints(folder), key=lambda backup: (backup.step == newest, backup.step))
        for age, backup in enumerate(reversed(backups)):
            taken_bytes += sum(path.stat().st_size for path in backup.path.rglob("*") if path.is_file())
            too_many = self.number is not None and age >= self.number
            too_large = self.total_bytes is not None and taken_bytes > self.total_bytes
            if age > 0 and (too_many or too_large):
                shutil.rmtree(backup.path)


def set_aside_newer(folder: Path, than: Checkpoint, prefix: str = DAMAGED) -> list[Path]:
    """Rename checkpoints that are newer than the one a run goes on from: they are damaged, or training diverged there.

    Left in place, they would block new checkpoints of the same steps, and still count as the newest.

    Args:
        prefix: of their new names.

    Returns:
        Where they are now.
    """
    return [set_aside(newer, prefix) for newer in list_checkpoints(folder) if newer.step > than.step]


def set_aside(checkpoint: Checkpoint, prefix: str) -> Path:
    """Rename one checkpoint, so that it no longer counts as one, and return where it is."""
    names = (f"{prefix}{checkpoint.path.name}{again}" for again in ("", *(f"-{n}" for n in range(2, 1000))))
    to = next(path for name in names if not (path := checkpoint.path.with_name(name)).exists())
    checkpoint.path.replace(to)
    return to


def verify(checkpoint: Checkpoint, without: Collection[str] = ()) -> dict[str, Any]:
    """Check every file against its digest and return the JSON state.

    Args:
        without: files that are not needed, nor looked at.

    Raises:
        DamagedCheckpoint: naming the file and what is wrong with it.
    """
    manifest = checkpoint.path / MANIFEST_FILE
    digests = _read(manifest)
    if missing := sorted({NETWORKS_FILE, OPTIMIZERS_FILE, STATE_FILE} - digests.keys() - set(without)):
        raise DamagedCheckpoint(f"{manifest}: lists no {', '.join(missing)}")
    for name, expected in digests.items():
        if name in without:
            continue
        path = checkpoint.path / name
        if not path.is_file():
            raise DamagedCheckpoint(f"{path}: missing")
        try:
            actual = digest(path)
        except OSError as error:
            raise DamagedCheckpoint(f"{path}: {error.strerror}") from error
        if actual != expected:
            raise DamagedCheckpoint(f"{path}: its digest is not the manifest's")
    state = _read(checkpoint.path / STATE_FILE)
    if (number := state.get("format")) != FORMAT:
        raise BadInput(f"{checkpoint.path}: format {number}, expected {FORMAT}: written by a newer frugan")
    return state


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, lambda why: DamagedCheckpoint(f"{path}: {why}"))


def newest_whole(folder: Path, without: Collection[str] = ()) -> tuple[Checkpoint, dict[str, Any], list[str]] | None:
    """The newest checkpoint whose files are whole, its JSON state, and what is wrong with the newer ones.

    Args:
        without: files that are not needed.
    """
    damage: list[str] = []
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            return checkpoint, verify(checkpoint, without), damage
        except DamagedCheckpoint as error:
            damage.append(str(error))
    if damage:
        cures = [
            f"{checkpoint.path}: without its {MANIFEST_FILE} nothing of it can be checked; named itself in place of "
            "the run, it is sampled from, or started from by --init, as it is"
            for checkpoint in list_checkpoints(folder)
            if not (checkpoint.path / MANIFEST_FILE).exists() and (checkpoint.path / NETWORKS_FILE).is_file()
        ]
        cures += ["restore one from backups/ if there are any, or begin a new run"]
        with suppress(BadInput):  # of this very kind
            weights = None if without else newest_whole(folder, (OPTIMIZERS_FILE,))
            if weights is not None:
                cures.append(
                    f"the networks of {weights[0].path} are whole: --init {weights[0].path} with another --out starts "
                    "a new run from them, with fresh statistics of the optimizers"
                )
        raise BadInput("\n".join(["no checkpoint is whole:", *damage, *cures]))
    return None


def load_networks(networks: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], where: str) -> list[str]:
    """Load "network.parameter" tensors into networks of the same shapes.

    Returns:
        Names that were loaded.

    Raises:
        BadInput: a tensor is missing, unknown or of another shape; nothing has been changed then.
    """
    refuse_others(networks, tensors, where)
    expected = network_tensors(networks)
    with torch.no_grad():
        for key, value in expected.items():
            value.copy_(tensors[key])
    return sorted(expected)


def refuse_others(networks: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse "network.parameter" tensors that are not those of these networks, on "meta" for example.

    Raises:
        BadInput: a tensor is missing, unknown or of another shape.
    """
    expected = network_tensors(networks)
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    wrong = [
        f"{k}: {tuple(tensors[k].shape)}, expected {tuple(expected[k].shape)}"
        for k in sorted(expected.keys() & tensors.keys())
        if tensors[k].shape != expected[k].shape
    ]
    if missing or unknown or wrong:
        faults = [f"missing {k}" for k in missing] + [f"unknown {k}" for k in unknown] + wrong
        raise BadInput(f"{where}: these weights are of another network than the recipe's:\n  {first_lines(faults)}")


def restore(
    checkpoint: Checkpoint,
    saved: Mapping[str, Any],
    state: TrainingState,
    restarts: Collection[str] = (),
    *,
    reinitialised: Collection[str] = (),
) -> list[str]:
    """Put a verified checkpoint into a freshly created state.

    A network that the checkpoint does not know yet (a discriminator that is switched on now) starts fresh. One that no
    phase uses at present is parked: kept as it is, and saved again.

    Args:
        restarts: networks that start fresh though the checkpoint holds them, with their optimizer state.
        reinitialised: networks that do so and keep their optimizer state.

    Returns:
        A line for everything that is not resumed unchanged.

    Raises:
        BadInput: the checkpoint is of another network or objective.
    """
    path = checkpoint.path
    fresh, lines = _restore_networks(path, state, {*restarts, *reinitialised})
    if state.ema.networks:
        load_networks(state.ema.networks, read_tensors(path / EMA_FILE)[0], str(path))
    lines += restore_optimizers(path, state, (fresh | set(restarts)) - set(reinitialised))
    try:
        _restore_numbers(saved, state, fresh)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
        raise BadInput(
            f"{path / STATE_FILE}: not what a training keeps ({error}); delete {path}, or restore it"
        ) from error
    if (before := saved.get("torch")) != str(torch.__version__):
        lines.append(
            f"{path} was written with torch {before}; with {torch.__version__} it goes on, but not bit for bit"
        )
    state.step = checkpoint.step
    return lines


def _restore_networks(path: Path, state: TrainingState, restarts: Collection[str]) -> tuple[set[str], list[str]]:
    """Load the networks that go on and park those that no phase uses: which start fresh, and what there is to tell."""
    tensors = read_tensors(path / NETWORKS_FILE)[0]
    known = {key.split(".")[0] for key in tensors}
    fresh = {name for name in state.networks if name in restarts or name not in known}
    if fresh == set(state.networks):
        raise BadInput(f"{path}: holds none of the networks {', '.join(state.networks)}; it is of another recipe")
    going_on = {name: network for name, network in state.networks.items() if name not in fresh}
    load_networks(going_on, {k: v for k, v in tensors.items() if k.split(".")[0] in going_on}, str(path))
    # What starts anew is not worth keeping: its old weights may not even fit any more.
    away = set(state.networks) | set(restarts)
    state.parked[NETWORKS_FILE] = {k: v for k, v in tensors.items() if k.split(".")[0] not in away}
    lines = [f"{name}: starts with fresh weights" for name in sorted(fresh)]
    lines += [f"{name}: not used at present; kept as it is" for name in sorted(known - away)]
    return fresh, lines


def _restore_numbers(saved: Mapping[str, Any], state: TrainingState, fresh: Collection[str]) -> None:
    for name, (scale, good, was_found) in saved["loss_scales"].items():
        if name in state.loss_scales and not set(state.moves[name]) <= set(fresh):
            _restore_scale(state.loss_scales[name], float(scale), float(good), was_found=bool(was_found))
    for name, value in saved["carried"].items():
        if name in state.carried:  # else no phase has it at present
            state.carried[name].copy_(torch.tensor(value))
    for phase, count in saved["skipped"].items():
        if phase in state.skipped:
            state.skipped[phase].fill_(count)


def _restore_scale(into: LossScale, scale: float, good: float, *, was_found: bool) -> None:
    """Only fp16 has a loss scale: a run that leaves fp16 drops it, one that returns searches for it again."""
    if not into.dynamic or (scale, good) == (1.0, 0.0):
        return
    into.scale.fill_(scale)
    into.good.fill_(good)
    into.found = was_found


def restore_optimizers(path: Path, state: TrainingState, fresh: Collection[str]) -> list[str]:
    """Put a checkpoint's optimizer state into a freshly created one; see `load_optimizers`."""
    return load_optimizers(read_tensors(path / OPTIMIZERS_FILE)[0], state, fresh, str(path))


def load_optimizers(tensors: dict[str, Tensor], state: TrainingState, fresh: Collection[str], where: str) -> list[str]:
    """Put optimizer state into a freshly created one; what no phase uses at present is parked.

    Args:
        tensors: named as a checkpoint names them; taken out of it.
        fresh: networks whose state starts anew.
        where: they come from, for messages.

    Returns:
        A line for every optimizer whose state could not be taken over.

    Raises:
        BadInput: a tensor is of another shape than its parameter's.
    """
    lines: list[str] = []
    for name, optimizer in state.optimizers.items():
        optimizer_tensors = {key: tensors.pop(key) for key in list(tensors) if key.startswith(f"{name}/")}
        slots = {key.rsplit("/", 1)[1] for key in optimizer_tensors if not _counts(key)}
        if slots and slots != {*optimizer.slots, *optimizer.steps}:
            lines.append(f"optimizer {name}: another kind than before ({', '.join(sorted(slots))}); its state is fresh")
        elif not set(state.moves[name]) <= set(fresh):
            _load_optimizer(name, optimizer_tensors, state, fresh, where)
    state.parked[OPTIMIZERS_FILE] = _to_park(tensors, fresh)
    return lines


def _load_optimizer(
    name: str, tensors: Mapping[str, Tensor], state: TrainingState, fresh: Collection[str], where: str
) -> None:
    """Put one optimizer's counts and statistics into it, but those of networks that start anew."""
    optimizer = state.optimizers[name]
    for count, value in optimizer.counts.items():
        if (kept := tensors.get(f"{name}/{count}")) is not None and kept.shape == value.shape:
            value.copy_(kept)
    for parameter_key, parameter in named_parameters(state.networks, state.moves[name]).items():
        if parameter_key.split(".")[0] in fresh:
            continue
        prefix = f"{name}/{parameter_key}/"
        for key, value in tensors.items():
            if key.startswith(prefix) and not optimizer.load_statistic(parameter, key.removeprefix(prefix), value):
                raise BadInput(f"{where}: {key} is {tuple(value.shape)}, which fits no statistic of this parameter")


def _to_park(tensors: Mapping[str, Tensor], fresh: Collection[str]) -> dict[str, Tensor]:
    """Statistics of networks that do not start anew, and counts of updates, which stay with what they count."""
    left = {key for key in tensors if not _counts(key) and key.split("/")[1].split(".")[0] not in fresh}
    owners = {key.split("/")[0] for key in left}
    left |= {key for key in tensors if _counts(key) and key.split("/")[0] in owners}
    return {key: value for key, value in tensors.items() if key in left}


def _counts(key: str) -> bool:
    """Return whether a key names a count of a whole optimizer ("G/updates"), not a statistic of a parameter."""
    return key.count("/") == 1
