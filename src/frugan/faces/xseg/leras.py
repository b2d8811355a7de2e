"""DeepFaceLab's XSeg folder: weights, optimizer state, options, iteration and loss history, in both directions.

There is one XSeg in a folder, without a name of its own. Weights by themselves are read too, with fresh statistics.
Arrays are laid out as SAEHD's are.

Source: DeepFaceLab's behaviour.
"""

import re
import shlex
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from frugan.contract.formats import (
    RECIPE_FILE,
    Conversion,
    Converted,
    FileFormat,
    Imported,
    MaskNetwork,
    OurSide,
    Say,
    Trained,
)
from frugan.errors import BadInput
from frugan.faces.saehd.leras_files import (
    as_original_reads,
    backup_of,
    plain,
    read_arrays,
    summary,
    unpickled,
    write_files,
)
from frugan.faces.saehd.leras_names import UPDATES, Arrays, faults, from_file, key_of, slot_keys, to_file, weight_keys
from frugan.faces.xseg.config import XSegNetworks
from frugan.faces.xseg.family import XSegFamily
from frugan.faces.xseg.networks import XSeg
from frugan.faces.xseg.phases import NETWORK
from frugan.safe_pickle.writer import dump_pickle
from frugan.wording import family_name, first_lines

FORMAT = "leras-xseg"
SCOPE = "XSeg"
"""Name of the network in the optimizer's keys and of all files."""
DATA, SUMMARY = f"{SCOPE}_data.dat", f"{SCOPE}_summary.txt"
SIDE = "faces"
"""Side whose losses the history has."""
LEARNING_RATE, DROPOUT = 1e-4, 0.3
DEFAULTS: Mapping[str, Any] = {"face_type": "wf", "pretrain": False, "batch_size": 4}
"""Options in the original's order."""


class LerasXSeg(FileFormat):
    """DeepFaceLab's own files of its mask network."""

    program = "DeepFaceLab's XSeg"
    reads = frozenset({"overrides"})
    writes = frozenset({"replace"})
    makes = frozenset({"run"})

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read the XSeg of a folder."""
        folder = conversion.source
        weights = weights_file(folder)
        arrays = _arrays(weights, conversion.say)
        iteration, options, history = _read_data(folder / DATA, conversion.say)
        recipe = ours.recipe(_recipe(arrays, options, iteration, weights), str(weights))
        network = XSegFamily().build(recipe.networks, "meta")[NETWORK]
        networks = {f"{NETWORK}.{key}": value for key, value in _parameters(weights, arrays, network).items()}
        optimizers: dict[str, torch.Tensor] = {}
        statistics = weights.with_name(f"{weights.stem}_opt.npy")
        if statistics.is_file():
            kept, _ = read_arrays(statistics)
            slots = slot_keys(SCOPE, network, "rmsprop")
            as_original_reads(kept, dict(slots.values()))
            if wrong := faults(statistics.name, kept, {UPDATES: (), **dict(slots.values())}):
                raise BadInput(f"{folder}: not the statistics of an XSeg:\n  {first_lines(wrong)}")
            optimizers = {f"{NETWORK}/updates": torch.tensor(int(kept[UPDATES]))}
            for (key, slot), (name, _) in slots.items():
                optimizers[f"{NETWORK}/{NETWORK}.{key}/{slot}"] = from_file(kept[name])
        else:
            conversion.say(f"{statistics.name} is not there; the optimizer's statistics start afresh")
        recipe_file = shlex.quote(str(conversion.out / RECIPE_FILE))
        return Imported(
            recipe,
            networks,
            {"run": str(conversion.out), "iteration": iteration},
            [
                f"{conversion.out}: XSeg at iteration {iteration:,}",
                f"Next: frugan train {recipe_file} --data FACES --out {shlex.quote(str(conversion.out))}",
            ],
            optimizers=optimizers,
            step=iteration,
            event={"format": FORMAT, "options": options, "loss_sides": [SIDE], "loss_history": history},
            name=SCOPE,
        )

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write a run as DeepFaceLab's XSeg, which that program goes on with."""
        trained, folder = ours.checkpoint(), conversion.out
        if (family := trained.recipe.values["family"]) != XSegFamily.name:
            raise BadInput(f"{conversion.source}: weights of {family_name(family)}; expected those of XSeg")
        if (folder.exists() and not folder.is_dir()) or ours.is_run(folder):
            raise BadInput(f"{folder}: expected DeepFaceLab's folder for models, such as WORKSPACE/model, or a new one")
        sizes = trained.recipe.networks
        if (sizes.resolution, sizes.base) != (256, 32):
            unreadable = f"{sizes.resolution} pixels and base {sizes.base}: DeepFaceLab itself knows 256 and 32 alone"
            if (folder / f"{SCOPE}_256.npy").exists():
                raise BadInput(f"{folder}: holds an XSeg that DeepFaceLab reads; choose a new folder. {unreadable}")
            conversion.say(f"{unreadable}, and does not read these files")
        contents = _contents(trained, conversion)
        old = [path.name for path in sorted(folder.glob(f"{SCOPE}_*")) if _is_of_it(path.name)]
        if old and not conversion.replace:
            raise BadInput(
                f"{folder}: holds {old[0]} already; choose another folder, or add --replace (replace=True in Python), "
                f"which moves the old files to {backup_of(folder, f'{SCOPE}_').name} in it"
            )
        backup = write_files(folder, contents.items(), old, f"{SCOPE}_")
        replaced = str(backup) if backup else None
        facts = {"folder": str(folder), "iteration": trained.step, "replaced": replaced}
        lines = [f"{folder}: XSeg at iteration {trained.step:,}"]
        lines += [f"The files that it replaced: {replaced}"] if replaced else []
        return Converted(folder, facts, lines, step=trained.step, backup=backup)

    def mask_network(self, source: Path, say: Say) -> MaskNetwork | None:
        """Open the XSeg of a folder, or a file of its weights."""
        if not is_original(source):
            return None
        networks, network, pretrains = open_original(source, say)
        weights = weights_file(source)
        says = "" if (weights.parent / DATA).is_file() else f", as {DATA} is not there to say"
        label = f"{weights} for face type {networks.face_type}{says}"
        return MaskNetwork(XSegFamily.name, networks, {NETWORK: network}, weights, label, pretrains)


def open_original(source: Path, say: Say) -> tuple[XSegNetworks, XSeg, bool]:
    """Open the original's XSeg for use, without a recipe.

    Args:
        source: its folder, or the file of its weights, which is enough.
        say: is told of what is not as usual.

    Returns:
        Options, network, and whether it draws grey pictures, as while pretraining. Without XSeg_data.dat the face type
        is the family's default.

    Raises:
        BadInput: no XSeg is there, or it is damaged.
    """
    weights = weights_file(source)
    data = weights.parent / DATA
    _, options, _ = _read_data(data, say) if data.is_file() else (0, DEFAULTS, [])
    arrays = _arrays(weights, say)
    try:
        networks = XSegNetworks.model_validate(_recipe(arrays, options, 0, weights)["networks"])
    except ValidationError as error:
        raise BadInput(f"{weights}: no XSeg that can be used: {error.errors()[0]['msg']}") from error
    network = XSeg(networks.resolution, networks.base)
    network.load_state_dict(_parameters(weights, arrays, network), strict=False)  # all but constants
    return networks, network.eval(), bool(options["pretrain"])


def is_original(source: Path) -> bool:
    """Whether a path is a file of the original's weights, or a folder with one."""
    return source.suffix == ".npy" if source.is_file() else any(source.glob(f"{SCOPE}_*.npy"))


def _is_of_it(name: str) -> bool:
    """Whether a file is one of the original's: weights or statistics of whatever size, data, or summary."""
    return name in (DATA, SUMMARY) or re.fullmatch(rf"{SCOPE}_\d+(_opt)?\.npy", name) is not None


def _arrays(weights: Path, say: Say) -> Arrays:
    arrays, is_half = read_arrays(weights)
    if is_half:
        say(f"{weights.name}: in half precision; it goes on in fp32 from there")
    return arrays


def _parameters(weights: Path, arrays: Arrays, network: nn.Module) -> dict[str, torch.Tensor]:
    """Parameter -> tensor, of arrays that are all there.

    Raises:
        BadInput: one is missing or misshapen.
    """
    expected = weight_keys(network)
    as_original_reads(arrays, dict(expected.values()))
    if wrong := faults(weights.name, arrays, dict(expected.values())):
        raise BadInput(f"{weights.parent}: not the arrays of an XSeg:\n  {first_lines(wrong)}")
    return {key: from_file(arrays[name]) for key, (name, _) in expected.items()}


def weights_file(source: Path) -> Path:
    """The one file of weights in a folder, or the file itself.

    Raises:
        BadInput: there is none, or several.
    """
    if source.is_file():
        if not source.stem.removeprefix(f"{SCOPE}_").isdigit():
            raise BadInput(f"{source}: expected weights of DeepFaceLab's XSeg under the name {SCOPE}_256.npy")
        return source
    folder = source
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; expected the folder of DeepFaceLab's XSeg, such as WORKSPACE/model")
    found = [path for path in sorted(folder.glob(f"{SCOPE}_*.npy")) if path.stem.removeprefix(f"{SCOPE}_").isdigit()]
    if len(found) != 1:
        what = "no file of weights" if not found else f"several: {', '.join(path.name for path in found)}"
        raise BadInput(f"{folder}: {what}; expected one, {SCOPE}_256.npy: copy it from where the others came")
    return found[0]


def _read_data(path: Path, say: Say) -> tuple[int, dict[str, Any], list[list[float]]]:
    """Iteration, options and loss history; those of a fresh model where the file is missing."""
    if not path.is_file():
        say(f"{path.name} is not there: iteration 0, and face type wf (another: networks.face_type=)")
        return 0, dict(DEFAULTS), []
    value = unpickled(path)
    if not isinstance(value, dict) or not isinstance(value.get("options"), dict):
        raise BadInput(f"{path}: expected iteration, options and loss history; this is no XSeg's data")
    iteration = plain(value.get("iter"), f"{path}: iter")
    if type(iteration) is not int or iteration < 0:
        raise BadInput(f"{path}: iter {iteration!r}: expected a number of iterations")
    options = {key: plain(option, f"{path}: option {key}") for key, option in value["options"].items()}
    history = plain(value.get("loss_history", []), f"{path}: loss_history")
    if not isinstance(history, list) or any(
        not isinstance(row, list) or len(row) != 1 or type(row[0]) not in (int, float) for row in history
    ):
        raise BadInput(f"{path}: loss_history: expected a list with one number for each iteration")
    return iteration, {**DEFAULTS, **options}, [[float(row[0])] for row in history]


def _recipe(arrays: Arrays, options: Mapping[str, Any], iteration: int, weights: Path) -> dict[str, Any]:
    first = arrays.get(key_of("conv01.conv.weight"))
    if first is None or first.ndim != 4:
        raise BadInput(f"{weights}: has no array conv01/conv/weight:0 of four dimensions; this is no XSeg")
    resolution = int(weights.stem.removeprefix(f"{SCOPE}_"))
    return {
        "family": XSegFamily.name,
        "about": {
            "summary": f"XSeg at {resolution} pixels, imported",
            "source": f"XSeg of DeepFaceLab at iteration {iteration:,}",
        },
        "networks": {"resolution": resolution, "face_type": options["face_type"], "base": first.shape[3]},
        "objective": {"pretrain": options["pretrain"]},
        "training": {"batch": options["batch_size"], "duration": "endless"},
        "optimizers": {"default": {"kind": "rmsprop", "learning_rate": LEARNING_RATE, "dropout": DROPOUT}},
    }


def _contents(trained: Trained, conversion: Conversion) -> dict[str, bytes]:
    """File -> its content."""
    recipe = trained.recipe
    network = XSegFamily().build(recipe.networks, "meta")[NETWORK]
    stem = f"{SCOPE}_{recipe.networks.resolution}"
    weights: Arrays = {
        name: to_file(trained.networks[f"{NETWORK}.{key}"]) for key, (name, _) in weight_keys(network).items()
    }
    contents = {f"{stem}.npy": dump_pickle(weights)}
    state = trained.optimizers() if trained.optimizers is not None else {}
    slots = slot_keys(SCOPE, network, "rmsprop")
    if all(f"{NETWORK}/{NETWORK}.{key}/{slot}" in state for key, slot in slots):
        statistics: Arrays = {UPDATES: np.int64(int(state[f"{NETWORK}/updates"]))}
        for (key, slot), (name, _) in slots.items():
            statistics[name] = to_file(state[f"{NETWORK}/{NETWORK}.{key}/{slot}"])
        contents[f"{stem}_opt.npy"] = dump_pickle(statistics)
    else:
        conversion.say("optimizer: not of rmsprop; DeepFaceLab starts with fresh statistics")
    _, losses = trained.losses().get(SIDE, ([], []))
    options = {
        "face_type": recipe.networks.face_type,
        "pretrain": recipe.objective.pretrain,
        "batch_size": np.int64(recipe.values["training"]["batch"]),
    }
    data = {
        "iter": trained.step,
        "options": options,
        "loss_history": [[float(loss)] for loss in losses if isfinite(loss)],
        "sample_for_preview": None,  # it chooses some when it is opened
        "choosed_gpu_indexes": None,  # of the machine that opens it
    }
    contents[DATA] = dump_pickle(data)
    contents[SUMMARY] = summary(SCOPE, trained.step, options).encode("utf-8")
    return contents
