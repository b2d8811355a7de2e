"""A run becomes a DeepFaceLab model, which that program goes on with: the inverse of `from_leras`."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
from torch import Tensor

from frugan.api.convert.deepfacelab.face_agreement import check_agreement
from frugan.api.convert.deepfacelab.leras_recipe import AUTOENCODER, exported_options
from frugan.api.convert.deepfacelab.trained_faces import TrainedFaces, find_trained_faces
from frugan.api.data.sources import Data
from frugan.api.progress import Say
from frugan.api.train.loss_history import LossHistory
from frugan.engine.checkpoint import OPTIMIZERS_FILE
from frugan.engine.events import Event, read_events
from frugan.engine.run_folder import RunFolder
from frugan.engine.tensor_files import read_tensors
from frugan.errors import BadInput
from frugan.families.saehd.leras_files import Arrays, LerasModel, check_free, model_name, write_model
from frugan.families.saehd.leras_names import (
    OPTIMIZER_FILES,
    SLOTS,
    UPDATES,
    file_of,
    key_of,
    slot_keys,
    to_file,
)


@dataclass(frozen=True)
class ExportedModel:
    """What `to_leras` wrote.

    Attributes:
        folder: where.
        name: of the model.
        iteration: steps done.
        backup: where the files of a model that it replaced are now; None: there was none.
    """

    folder: Path
    name: str
    iteration: int
    backup: Path | None


def to_leras(
    source: str | Path,
    folder: str | Path,
    *,
    name: str | None = None,
    replace: bool = False,
    data: Data | None = None,
    say: Say = print,
) -> ExportedModel:
    """Write a run as a DeepFaceLab SAEHD model.

    Args:
        source: run or checkpoint.
        folder: DeepFaceLab's folder for models; made if missing.
        name: of the model; None: as it was imported, else the name of the run folder.
        replace: a model of that name may be there; its files are moved to a folder in `folder`.
        data: faces to compare with the options, as for training.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: nothing to write, the faces do not fit, or a model of that name is there.
        OSError: the disk is full or the folder cannot be written.
    """
    folder = Path(folder)
    if RunFolder(folder).exists:
        raise BadInput(f"{folder}: is a run; expected DeepFaceLab's folder for models, or a new one")
    trained = find_trained_faces(Path(source), say)
    imported = next((e for e in _events(trained) if e["event"] == "imported" and e["step"] <= trained.step), None)
    name = _name(name, imported, trained)
    check_free(folder, name, replace=replace)
    if data:
        check_agreement(trained.recipe, data, trained.trained_on, say)
    options, lines = exported_options(trained.recipe, imported["options"] if imported else None)
    for line in lines:
        say(line)
    if 0 < options["target_iter"] <= trained.step:
        say(
            f"target_iter {options['target_iter']:,} is reached: DeepFaceLab trains no further until it is raised there"
        )
    if later := [step for step in trained.weights.recipe.stage_steps() if step > trained.step]:
        say(f"stages from step {later[0]:,} on: DeepFaceLab has none; set these options there when their time comes")
    model = LerasModel(name, trained.step, options, _history(trained, imported["step"] if imported else 0, say))
    exporter = _Exporter(trained, "adabelief" if options["adabelief"] else "rmsprop", say)
    model.networks = exporter.networks()
    model.optimizers = exporter.optimizers()
    backup = write_model(folder, model, replace=replace)
    return ExportedModel(folder, name, trained.step, backup)


def _name(asked: str | None, imported: Event | None, trained: TrainedFaces) -> str:
    if asked is None and imported is not None:
        return str(imported["name"])  # as in the files that it came from
    return model_name(asked or trained.run.path.absolute().name)


def _events(trained: TrainedFaces) -> Iterator[Event]:
    """The run's events one by one: of a long run they are gigabytes."""
    return read_events(trained.run.events) if trained.run.events.is_file() else iter(())


def _history(trained: TrainedFaces, imported_at: int, say: Say) -> list[list[float]]:
    """[src, dst] for each step that was trained, imported ones first. A skipped step repeats the one before it."""
    history = LossHistory()
    for event in _events(trained):
        if event.get("step", 0) <= trained.step:
            history.add(event)
    made = trained.step - imported_at
    if (missing := made - sum(step > 0 for step in history.steps.get("src", []))) > 0:
        say(f"loss history: {missing:,} of {made:,} steps made here are not in the run's events")
    found: list[list[float]] = []
    for src, dst in zip(history.curves.get("src", []), history.curves.get("dst", []), strict=False):
        if isfinite(src) and isfinite(dst):
            found.append([src, dst])
        elif found:
            found.append(list(found[-1]))
    return found


class _Exporter:
    """Lays out a checkpoint's tensors as DeepFaceLab has them; they are taken out of it, being perhaps gigabytes.

    Args:
        trained: the checkpoint.
        kind: of the optimizer that the options name.
        say: is given lines.
    """

    def __init__(self, trained: TrainedFaces, kind: str, say: Say) -> None:
        self.trained = trained
        self.kind = kind
        self.say = say
        self.built = trained.recipe.kind.build(trained.recipe.networks, "meta")

    def networks(self) -> dict[str, Arrays]:
        """File -> key -> array, of all networks that the checkpoint holds and the options fit."""
        found: dict[str, Arrays] = {}
        for name, network in list(self.built.items()):
            shapes = {key: tuple(p.shape) for key, p in network.named_parameters()}
            tensors = {key: self.trained.weights.tensors.pop(f"{name}.{key}", None) for key in shapes}
            if all(tensor is not None and tuple(tensor.shape) == shapes[key] for key, tensor in tensors.items()):
                found[file_of(name)] = {key_of(key): to_file(t) for key, t in tensors.items() if t is not None}
                continue
            del self.built[name]
            if name not in OPTIMIZER_FILES:
                raise BadInput(f"{self.trained.checkpoint.path}: its {name} is not that of its recipe")
            if any(tensor is not None for tensor in tensors.values()):
                self.say(f"{name}: left out, it does not fit the options any more and would start afresh anyway")
        return found

    def optimizers(self) -> dict[str, Arrays]:
        """File -> key -> array, of the statistics that are of the kind that the options name."""
        tensors, _ = read_tensors(self.trained.checkpoint.path / OPTIMIZERS_FILE)
        found: dict[str, Arrays] = {}
        for name, file in OPTIMIZER_FILES.items():
            moved = [n for n in self.built if n not in OPTIMIZER_FILES] if name == AUTOENCODER else [name]
            keys = [key for key in tensors if key.startswith(f"{name}/")]
            own = {key.removeprefix(f"{name}/"): tensors.pop(key) for key in keys}
            slots = {key.rsplit("/", 1)[1] for key in own if "/" in key}
            if not slots or not self.built.keys() >= set(moved):
                continue
            if slots - set(SLOTS[self.kind]):
                self.say(f"optimizer {name}: not of {self.kind}; DeepFaceLab starts with fresh statistics")
                continue
            found[file] = {UPDATES: np.int64(int(own["updates"]))}
            for network in moved:
                found[file] |= self._statistics(network, own)
        return found

    def _statistics(self, network: str, own: dict[str, Tensor]) -> Arrays:
        """A network's statistics; those of parameters that never moved are zeros, as the original has them."""
        return {
            key: to_file(own.pop(at)) if (at := f"{network}.{parameter}/{slot}") in own else np.zeros(shape, np.float32)
            for (parameter, slot), (key, shape) in slot_keys(network, self.built[network], self.kind).items()
        }
