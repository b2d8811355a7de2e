"""DeepFaceLab's models and runs: networks, optimizer state, options, iteration and loss history, in both directions."""

import shlex
from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frugan.contract.formats import (
    RECIPE_FILE,
    Conversion,
    Converted,
    FileFormat,
    Imported,
    OurSide,
    RecipeValues,
    Say,
    Trained,
)
from frugan.errors import BadInput
from frugan.faces.saehd.config import PRETRAINING_ENDS
from frugan.faces.saehd.family import SAEHDFamily
from frugan.faces.saehd.leras_files import (
    OPTIMIZER_FILES,
    SLOTS,
    UPDATES,
    Arrays,
    LerasModel,
    as_original_reads,
    check_free,
    faults,
    file_of,
    from_file,
    gan_misfit,
    in_files_order,
    key_of,
    misfits,
    model_name,
    read_model,
    slot_keys,
    to_file,
    weight_keys,
    write_model,
)
from frugan.faces.saehd.leras_options import (
    AUTOENCODER,
    check_agreement,
    exported_options,
    imported_recipe,
    open_faces,
    untold_options,
)
from frugan.wording import count, first_lines, storable

FORMAT = "leras"


class Leras(FileFormat):
    """DeepFaceLab's own: weights, optimizer state, options, iteration and loss history, in both directions."""

    program = "a model of DeepFaceLab's"
    reads = frozenset({"overrides", "name"})
    writes = frozenset({"name", "data", "replace"})
    makes = frozenset({"run"})

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read a model; see `frugan.from_leras`."""
        model = read_model(conversion.source, conversion.name)
        recipe = ours.recipe(*imported_recipe(model.name, model.iteration, model.options, conversion.source))
        conversion.say(f"model {model.name!r}: {recipe.summary}, iteration {model.iteration:,}")
        for line in untold_options(model.options):
            conversion.say(line)
        if model.half:
            conversion.say(f"{', '.join(model.half)}: in half precision; training goes on in fp32 from there")
        _say_duration(model, recipe, conversion.say)
        networks, optimizers = Importer(conversion, model, recipe, _built(recipe)).tensors()
        recipe_file = conversion.out / RECIPE_FILE
        facts = {
            "run": str(conversion.out),
            "recipe": str(recipe_file),
            "name": model.name,
            "iteration": model.iteration,
        }
        lines = [
            f"{conversion.out}: model {model.name!r} at iteration {model.iteration:,}",
            *_next_commands(recipe, shlex.quote(str(recipe_file)), shlex.quote(str(conversion.out))),
        ]
        event = {
            "format": FORMAT,
            "name": storable(model.name).replace("?", "_"),
            "options": model.options,
            "loss_sides": ["src", "dst"],
            "loss_history": model.loss_history,
        }
        return Imported(
            recipe,
            networks,
            facts,
            lines,
            optimizers=optimizers,
            step=model.iteration,
            event=event,
            name=model.name,
        )

    def write(self, conversion: Conversion, ours: OurSide) -> Converted:
        """Write a run as a model; see `frugan.to_leras`."""
        folder = conversion.out
        if ours.is_run(folder):
            raise BadInput(f"{folder}: is a run; expected DeepFaceLab's folder for models, or a new one")
        trained = open_faces(conversion, ours)
        imported = trained.imported()
        if imported is not None and (imported.get("format") != FORMAT or imported["step"] > trained.step):
            imported = None
        name = exported_name(conversion.name, imported, trained)
        check_free(folder, name, replace=conversion.replace)
        if conversion.data:
            check_agreement(trained, ours, conversion.say)
        model = LerasModel(name, trained.step, _options(trained, imported, ours, conversion.say), [])
        model.loss_history = loss_history(trained, imported["step"] if imported else 0, conversion.say)
        exporter = Exporter(
            trained, "adabelief" if model.options["adabelief"] else "rmsprop", conversion.say, _built(trained.recipe)
        )
        model.networks = exporter.networks()
        model.optimizers = exporter.optimizers()
        backup = write_model(folder, model, replace=conversion.replace)
        replaced = str(backup) if backup else None
        facts = {"folder": str(folder), "name": name, "iteration": trained.step, "replaced": replaced}
        lines = [f"{folder}: model {name!r} at iteration {trained.step:,}"]
        lines += [f"The files that it replaced: {replaced}"] if replaced else []
        return Converted(folder, facts, lines, name=name, step=trained.step, backup=backup)


def _next_commands(recipe: RecipeValues, recipe_file: str, run: str) -> list[str]:
    """Return a line with the command that trains on; of a model in pretraining mode one for each way."""
    if not recipe.objective.pretrain:
        return [f"Next: frugan train {recipe_file} --data WORKSPACE --out {run}"]
    return [
        "The model is in pretraining mode: it learns faces of many people, and swaps none yet.",
        f"To begin the swap: frugan train {recipe_file} {PRETRAINING_ENDS} --data WORKSPACE --out {run}",
        f"To pretrain on: frugan train {recipe_file} data.pretrain=FACES_OF_MANY --out {run}",
    ]


def _say_duration(model: LerasModel, recipe: RecipeValues, say: Say) -> None:
    if not model.options.get("target_iter"):
        say(f"target_iter 0: no end, which is training.duration = {recipe.values['training']['duration']} here")
    elif recipe.steps is not None and recipe.steps <= model.iteration:
        say(f"target_iter {recipe.steps:,} is reached: raise training.duration to go on")


def _built(recipe: RecipeValues) -> Mapping[str, nn.Module]:
    return SAEHDFamily().build(recipe.networks, "meta")


class Importer:
    """Carries a model's arrays over, every one of them accounted for.

    Args:
        conversion: its source is the model's folder; it is given a line for everything that does not simply go over.
        model: arrays are taken out of it one by one, because they may be gigabytes.
        recipe: made of the model's options.
        built: the recipe's networks, on device meta.
    """

    def __init__(
        self, conversion: Conversion, model: LerasModel, recipe: RecipeValues, built: Mapping[str, nn.Module]
    ) -> None:
        self._folder = conversion.source
        self._say = conversion.say
        self._model = model
        self._recipe = recipe
        self._built = built
        self._autoencoder = tuple(name for name in self._built if name not in OPTIMIZER_FILES)

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tensors of networks and optimizers, as a checkpoint names them.

        Raises:
            BadInput: an array is missing or misshapen.
        """
        self._reshape()
        self._check_autoencoder()
        networks: dict[str, Tensor] = {}
        for name in self._built:
            networks |= self._network(name)
        there = {key.partition(".")[0] for key in networks}
        fresh = self._recipe.used - there  # freshly initialised, so they have optimizer state too
        optimizers: dict[str, Tensor] = {}
        for name in OPTIMIZER_FILES:
            optimizers |= self._optimizer(name, there | fresh)
        return networks, optimizers

    def _reshape(self) -> None:
        """Read flat arrays, and others of as many numbers, as the original does."""
        for name, network in self._built.items():
            file = file_of(name)
            changed = as_original_reads(self._model.networks.get(file, {}), dict(weight_keys(network).values()))
            if changed:
                self._say(
                    f"{self._model.file(file)}: {count(changed, 'array')} of other shapes, reshaped as in the original"
                )
            for kind in SLOTS:
                for arrays in self._model.optimizers.values():
                    as_original_reads(arrays, dict(slot_keys(name, network, kind).values()))

    def _check_autoencoder(self) -> None:
        lines: list[str] = []
        wrong = misfits(self._recipe.networks, self._model.networks)
        for name in self._autoencoder:
            file, arrays = self._model.file(file_of(name)), self._model.networks.get(file_of(name))
            if arrays is not None:
                lines += faults(file, arrays, dict(weight_keys(self._built[name]).values()))
            elif not wrong:
                raise BadInput(
                    f"{self._folder / file}: missing. Copy it from where the others came; if it was removed to make "
                    "the network start afresh, let DeepFaceLab train one iteration first, which writes it"
                )
        if wrong or lines:
            raise self._unfit([*wrong, *lines])
        if left := self._model.networks.keys() - {file_of(name) for name in self._built}:
            self._say(f"{', '.join(sorted(left))}: not part of {self._recipe.networks.letters}; left out")

    def _unfit(self, lines: list[str]) -> BadInput:
        model = self._model.name
        return BadInput(f"{self._folder}: options and arrays of model {model!r} do not agree:\n  {first_lines(lines)}")

    def _network(self, name: str) -> dict[str, Tensor]:
        """Return a network's tensors; empty if it is initialised afresh, now or when it is switched on."""
        file, arrays = self._model.file(file_of(name)), self._model.networks.pop(file_of(name), None)
        if arrays is None:
            if name in self._recipe.used:
                self._say(f"{name}: {file} is not there; it starts with fresh weights")
            return {}
        keys = weight_keys(self._built[name])
        if faults(file, arrays, dict(keys.values())):
            self._leave_out(name, arrays)
            return {}
        if extra := arrays.keys() - {key for key, _ in keys.values()}:
            self._say(f"{file}: {', '.join(sorted(extra))}: unknown here; left out")
        if name not in self._recipe.used:
            self._say(f"{name}: not used at present; kept as it is")
        return {f"{name}.{parameter}": from_file(arrays.pop(key)) for parameter, (key, _) in keys.items()}

    def _leave_out(self, name: str, arrays: Arrays) -> None:
        """Refuse a misfitting discriminator that is in use; leave out one that is not, as the original would."""
        file = file_of(name)
        why = gan_misfit(self._recipe.networks, {file: arrays}) if name == "patch_discriminator" else []
        why += faults(self._model.file(file), arrays, dict(weight_keys(self._built[name]).values()))
        if name in self._recipe.used:
            raise self._unfit(why)
        self._say(f"{name}: left out, because it would start afresh when it is switched on: {why[0]}")
        self._model.optimizers.pop(OPTIMIZER_FILES[name], None)

    def _optimizer(self, name: str, there: set[str]) -> dict[str, Tensor]:
        """Return an optimizer's statistics; empty if they start afresh."""
        file, arrays = self._model.file(OPTIMIZER_FILES[name]), self._model.optimizers.pop(OPTIMIZER_FILES[name], None)
        moved = self._autoencoder if name == AUTOENCODER else (name,)
        if arrays is None or not there.issuperset(moved):
            if name in self._recipe.optimizers_used:
                self._say(f"optimizer {name}: {file} is not there; its statistics start afresh")
            return {}
        kind = self._recipe.optimizers[name]["kind"]
        slots = SLOTS.get(kind, ("",))
        if not any(key.startswith(f"{slots[0]}_") for key in arrays):
            self._say(f"optimizer {name}: {file} is not of {kind}, as the options say; its statistics start afresh")
            return {}
        expected = {(n, *at): wanted for n in moved for at, wanted in slot_keys(n, self._built[n], kind).items()}
        if wrong := faults(file, arrays, {UPDATES: (), **dict(expected.values())}):
            raise self._unfit(wrong)
        found = {f"{name}/updates": torch.tensor(int(arrays[UPDATES]))}
        for (network, parameter, slot), (key, _) in expected.items():
            found[f"{name}/{network}.{parameter}/{slot}"] = from_file(arrays.pop(key))
        return found


def _options(trained: Trained, imported: Mapping[str, Any] | None, ours: OurSide, say: Say) -> dict[str, Any]:
    """The model's options; what has no counterpart among them is said."""
    before = None
    if imported is not None:
        before = imported["options"], ours.recipe(*imported_recipe("", 0, imported["options"]))
    options, lines = exported_options(trained.recipe, before)
    for line in lines:
        say(line)
    if 0 < options["target_iter"] <= trained.step:
        say(
            f"target_iter {options['target_iter']:,} is reached: DeepFaceLab trains no further until it is raised there"
        )
    if later := trained.later_stages:
        say(f"stages from step {later[0]:,} on: DeepFaceLab has none; set these options there when their time comes")
    return options


def exported_name(requested: str | None, imported: Mapping[str, Any] | None, trained: Trained) -> str:
    if requested is None and imported is not None:
        return str(imported["name"])  # as in the files that it came from
    return model_name(requested or trained.run.absolute().name)


def loss_history(trained: Trained, imported_at: int, say: Say) -> list[list[float]]:
    """[src, dst] for each step that was trained, imported ones first. A skipped step repeats the one before it."""
    losses = trained.losses()
    steps, sources = losses.get("src", ([], []))
    _, destinations = losses.get("dst", ([], []))
    trained_steps = trained.step - imported_at
    if (missing := trained_steps - sum(step > 0 for step in steps)) > 0:
        say(f"loss history: {missing:,} of {trained_steps:,} steps made here are not in the run's events")
    history: list[list[float]] = []
    for src, dst in zip(sources, destinations, strict=False):
        if isfinite(src) and isfinite(dst):
            history.append([src, dst])
        elif history:
            history.append(list(history[-1]))
    return history


class Exporter:
    """Lays out a checkpoint's tensors as DeepFaceLab has them; they are taken out of it, being perhaps gigabytes.

    Args:
        trained: the checkpoint.
        kind: of the optimizer that the options name.
        say: is given lines.
        built: the recipe's networks, on device meta.
    """

    def __init__(self, trained: Trained, kind: str, say: Say, built: Mapping[str, nn.Module]) -> None:
        self.trained = trained
        self.kind = kind
        self.say = say
        self.built = dict(built)

    def networks(self) -> dict[str, Arrays]:
        """File -> key -> array, of all networks that the checkpoint holds and the options fit."""
        arrays: dict[str, Arrays] = {}
        for name, network in list(self.built.items()):
            shapes = {key: tuple(p.shape) for key, p in in_files_order(network)}
            tensors = {key: self.trained.networks.pop(f"{name}.{key}", None) for key in shapes}
            if all(tensor is not None and tuple(tensor.shape) == shapes[key] for key, tensor in tensors.items()):
                arrays[file_of(name)] = {key_of(key): to_file(t) for key, t in tensors.items() if t is not None}
                continue
            del self.built[name]
            if name not in OPTIMIZER_FILES:
                raise BadInput(f"{self.trained.path.parent}: its {name} is not that of its recipe")
            if any(tensor is not None for tensor in tensors.values()):
                self.say(f"{name}: left out, it does not fit the options any more and would start afresh anyway")
        return arrays

    def optimizers(self) -> dict[str, Arrays]:
        """File -> key -> array, of the statistics that are of the kind that the options name."""
        tensors = self.trained.optimizers() if self.trained.optimizers is not None else {}
        arrays: dict[str, Arrays] = {}
        for name, file in OPTIMIZER_FILES.items():
            moved = [n for n in self.built if n not in OPTIMIZER_FILES] if name == AUTOENCODER else [name]
            keys = [key for key in tensors if key.startswith(f"{name}/")]
            state = {key.removeprefix(f"{name}/"): tensors.pop(key) for key in keys}
            slots = {key.rsplit("/", 1)[1] for key in state if "/" in key}
            if not slots or not self.built.keys() >= set(moved):
                continue
            if slots - set(SLOTS[self.kind]):
                self.say(f"optimizer {name}: not of {self.kind}; DeepFaceLab starts with fresh statistics")
                continue
            arrays[file] = {UPDATES: np.int64(int(state["updates"]))}
            for network in moved:
                arrays[file] |= self._statistics(network, state)
        return arrays

    def _statistics(self, network: str, state: dict[str, Tensor]) -> Arrays:
        """A network's statistics; those of parameters that never moved are zeros, as the original has them."""
        return {
            key: to_file(state.pop(at))
            if (at := f"{network}.{parameter}/{slot}") in state
            else np.zeros(shape, np.float32)
            for (parameter, slot), (key, shape) in slot_keys(network, self.built[network], self.kind).items()
        }
