"""DeepFaceLab's models and runs: networks, optimizer state, options, iteration and loss history, in both directions."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frugan.contract.family import Family
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
    SAEHD,
    LerasModel,
    ModelKind,
    as_original_reads,
    check_free,
    model_name,
    read_model,
    write_model,
)
from frugan.faces.saehd.leras_names import (
    OPTIMIZER_FILES,
    SCOPES,
    SLOTS,
    UPDATES,
    Arrays,
    faults,
    file_of,
    from_file,
    gan_misfit,
    key_of,
    misfits,
    slot_keys,
    to_file,
    weight_keys,
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

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Dialect:
    """Names, keys, options and checks by which the files of one kind of DeepFaceLab's face models differ."""

    format: str
    kind: ModelKind
    family: type[Family]
    # (name, iteration, options, folder) -> values of the recipe, and where they come from; see `imported_recipe`
    recipe: Callable[[str, int, Options, Path], tuple[dict[str, Any], str]]
    untold: Callable[[Options], list[str]]  # see `untold_options`
    # (recipe, options and recipe of the import) -> options and lines; see `exported_options`
    options: Callable[[RecipeValues, tuple[Options, RecipeValues] | None], tuple[dict[str, Any], list[str]]]
    misfits: Callable[[Any, Mapping[str, Arrays]], list[str]]  # see `misfits`
    scopes: Mapping[str, str]  # networks that the keys of optimizers call otherwise
    # (model, folder) -> networks' sizes as the arrays have them, which the options do not tell
    sizes: Callable[[LerasModel, Path], dict[str, Any]] | None = None
    optimizer: str | None = None  # kind of optimizer; None: as the options say
    # networks of the autoencoder that its optimizer's file has nothing of
    resting: frozenset[str] = frozenset()
    # network -> beginnings of its parameters' names in the order of its file, where that is not the network's own
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def optimizer_files(self) -> Mapping[str, str]:
        """Optimizer -> its file."""
        return {name: file for name, file in OPTIMIZER_FILES.items() if file in self.kind.optimizers}

    def weight_keys(self, name: str, network: nn.Module) -> dict[str, tuple[str, tuple[int, ...]]]:
        """See `weight_keys`; in the order of the network's file."""
        keys = weight_keys(network)
        return {parameter: keys[parameter] for parameter in self._in_order(name, list(keys))}

    def slot_keys(self, name: str, network: nn.Module, kind: str) -> dict[tuple[str, str], tuple[str, tuple[int, ...]]]:
        """See `slot_keys`; likewise."""
        keys, slots = slot_keys(name, network, kind, self.scopes), SLOTS[kind]
        names = self._in_order(name, [parameter for parameter, slot in keys if slot == slots[0]])
        return {(parameter, slot): keys[parameter, slot] for slot in slots for parameter in names}

    def _in_order(self, network: str, parameters: list[str]) -> list[str]:
        if network not in self.order:
            return parameters
        places = {first: place for place, first in enumerate(self.order[network])}
        return sorted(parameters, key=lambda name: places[name.split(".")[0].rstrip("0123456789")])


PATCH_ORDER = ("convs", "upconvs", "in_conv", "out_conv", "center_out", "center_conv")
"""Layers of the patch discriminator in the order of its file."""

SAEHD_FILES = Dialect(
    format="leras",
    kind=SAEHD,
    family=SAEHDFamily,
    recipe=imported_recipe,
    untold=untold_options,
    options=exported_options,
    misfits=misfits,
    scopes=SCOPES,
    order={"patch_discriminator": PATCH_ORDER},
)


class Leras(FileFormat):
    """DeepFaceLab's own: weights, optimizer state, options, iteration and loss history, in both directions."""

    dialect = SAEHD_FILES
    program = "a model of DeepFaceLab's"
    reads = frozenset({"overrides", "name"})
    writes = frozenset({"name", "data", "replace"})
    makes = frozenset({"run"})

    def read(self, conversion: Conversion, ours: OurSide) -> Imported:
        """Read a model; see `frugan.from_leras`."""
        dialect = self.dialect
        model = read_model(conversion.source, conversion.name, dialect.kind)
        values, where = dialect.recipe(model.name, model.iteration, model.options, conversion.source)
        if dialect.sizes is not None:
            values["networks"] = dialect.sizes(model, conversion.source)
        recipe = ours.recipe(values, where)
        conversion.say(f"model {model.name!r}: {recipe.summary}, iteration {model.iteration:,}")
        for line in dialect.untold(model.options):
            conversion.say(line)
        if model.half:
            conversion.say(f"{', '.join(model.half)}: in half precision; training goes on in fp32 from there")
        _say_duration(model, recipe, conversion.say)
        networks, optimizers = _Importer(conversion, model, recipe, dialect).tensors()
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
            "format": dialect.format,
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
        folder, dialect = conversion.out, self.dialect
        if ours.is_run(folder):
            raise BadInput(f"{folder}: is a run; expected DeepFaceLab's folder for models, or a new one")
        trained = open_faces(conversion, ours, dialect.family.name)
        imported = trained.imported()
        if imported is not None and (imported.get("format") != dialect.format or imported["step"] > trained.step):
            imported = None
        name = _name(conversion.name, imported, trained)
        check_free(folder, name, dialect.kind, replace=conversion.replace)
        if conversion.data:
            check_agreement(trained, ours, conversion.say)
        options = _options(trained, imported, ours, dialect, conversion.say)
        model = LerasModel(name, trained.step, options, [], kind=dialect.kind)
        model.loss_history = _history(trained, imported["step"] if imported else 0, conversion.say)
        of_options = "adabelief" if model.options.get("adabelief", True) else "rmsprop"
        exporter = _Exporter(trained, dialect.optimizer or of_options, dialect, conversion.say)
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
    if not recipe.values["objective"].get("pretrain"):
        return [f"Next: frugan train {recipe_file} --data WORKSPACE --out {run}"]
    return [
        "The model is in pretraining mode: it learns faces of many people, and swaps none yet.",
        f"To begin the swap: frugan train {recipe_file} {PRETRAINING_ENDS} --data WORKSPACE --out {run}",
        f"To pretrain on: frugan train {recipe_file} data.pretrain=FACES_OF_MANY --out {run}",
    ]


def _say_duration(model: LerasModel, recipe: RecipeValues, say: Say) -> None:
    if "target_iter" not in model.options and recipe.values["family"] != SAEHDFamily.name:
        return  # it has no such option
    if not model.options.get("target_iter"):
        say(f"target_iter 0: no end, which is training.duration = {recipe.values['training']['duration']} here")
    elif recipe.steps is not None and recipe.steps <= model.iteration:
        say(f"target_iter {recipe.steps:,} is reached: raise training.duration to go on")


class _Importer:
    """Carries a model's arrays over, every one of them accounted for.

    Args:
        conversion: its source is the model's folder; it is given a line for everything that does not simply go over.
        model: arrays are taken out of it one by one, because they may be gigabytes.
        recipe: made of the model's options.
        dialect: of the files.
    """

    def __init__(self, conversion: Conversion, model: LerasModel, recipe: RecipeValues, dialect: Dialect) -> None:
        self._folder = conversion.source
        self._say = conversion.say
        self._model = model
        self._recipe = recipe
        self._dialect = dialect
        self._built = dialect.family().build(recipe.networks, "meta")
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
        for name in self._dialect.optimizer_files():
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
                    as_original_reads(arrays, dict(self._dialect.slot_keys(name, network, kind).values()))

    def _check_autoencoder(self) -> None:
        lines: list[str] = []
        wrong = self._dialect.misfits(self._recipe.networks, self._model.networks)
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
            archi = self._recipe.values["networks"].get("archi", self._dialect.kind.title)
            self._say(f"{', '.join(sorted(left))}: not part of {archi}; left out")

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
        resting = self._dialect.resting
        moved = tuple(n for n in self._autoencoder if n not in resting) if name == AUTOENCODER else (name,)
        if arrays is None or not there.issuperset(moved):
            if name in self._recipe.optimizers_used:
                self._say(f"optimizer {name}: {file} is not there; its statistics start afresh")
            return {}
        kind = self._recipe.optimizers[name]["kind"]
        slots = SLOTS.get(kind, ("",))
        if not any(key.startswith(f"{slots[0]}_") for key in arrays):
            self._say(f"optimizer {name}: {file} is not of {kind}, as the options say; its statistics start afresh")
            return {}
        expected = {
            (n, *at): wanted for n in moved for at, wanted in self._dialect.slot_keys(n, self._built[n], kind).items()
        }
        if wrong := faults(file, arrays, {UPDATES: (), **dict(expected.values())}):
            raise self._unfit(wrong)
        found = {f"{name}/updates": torch.tensor(int(arrays[UPDATES]))}
        for (network, parameter, slot), (key, _) in expected.items():
            found[f"{name}/{network}.{parameter}/{slot}"] = from_file(arrays.pop(key))
        return found


def _options(
    trained: Trained, imported: Mapping[str, Any] | None, ours: OurSide, dialect: Dialect, say: Say
) -> dict[str, Any]:
    """The model's options; what has no counterpart among them is said."""
    before = None
    if imported is not None:
        before = imported["options"], ours.recipe(*dialect.recipe("", 0, imported["options"], Path()))
    options, lines = dialect.options(trained.recipe, before)
    for line in lines:
        say(line)
    if 0 < options.get("target_iter", 0) <= trained.step:
        say(
            f"target_iter {options['target_iter']:,} is reached: DeepFaceLab trains no further until it is raised there"
        )
    if later := trained.later_stages:
        say(f"stages from step {later[0]:,} on: DeepFaceLab has none; set these options there when their time comes")
    return options


def _name(requested: str | None, imported: Mapping[str, Any] | None, trained: Trained) -> str:
    if requested is None and imported is not None:
        return str(imported["name"])  # as in the files that it came from
    return model_name(requested or trained.run.absolute().name)


def _history(trained: Trained, imported_at: int, say: Say) -> list[list[float]]:
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


class _Exporter:
    """Lays out a checkpoint's tensors as DeepFaceLab has them; they are taken out of it, being perhaps gigabytes.

    Args:
        trained: the checkpoint.
        kind: of the optimizer that the options name.
        dialect: of the files.
        say: is given lines.
    """

    def __init__(self, trained: Trained, kind: str, dialect: Dialect, say: Say) -> None:
        self.trained = trained
        self.kind = kind
        self.dialect = dialect
        self.say = say
        self.built = dialect.family().build(trained.recipe.networks, "meta")

    def networks(self) -> dict[str, Arrays]:
        """File -> key -> array, of all networks that the checkpoint holds and the options fit."""
        arrays: dict[str, Arrays] = {}
        for name, network in list(self.built.items()):
            parameters = dict(network.named_parameters())
            shapes = {key: tuple(parameters[key].shape) for key in self.dialect.weight_keys(name, network)}
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
        for name, file in self.dialect.optimizer_files().items():
            others = (*OPTIMIZER_FILES, *self.dialect.resting)
            moved = [n for n in self.built if n not in others] if name == AUTOENCODER else [name]
            keys = [key for key in tensors if key.startswith(f"{name}/")]
            state = {key.removeprefix(f"{name}/"): tensors.pop(key) for key in keys}
            slots = {key.rsplit("/", 1)[1] for key in state if "/" in key}
            if not slots or not self.built.keys() >= set(moved):
                continue
            if slots - set(SLOTS[self.kind]):
                self.say(f"optimizer {name}: not of {self.kind}; DeepFaceLab starts with fresh statistics")
                continue
            found = {network: self._statistics(network, state) for network in moved}
            arrays[file] = {UPDATES: np.int64(int(state["updates"]))}
            for slot in SLOTS[self.kind]:  # all statistics of one kind, then all of the next, as the original has them
                for statistics in found.values():
                    arrays[file] |= {key: array for key, array in statistics.items() if key.startswith(f"{slot}_")}
        return arrays

    def _statistics(self, network: str, state: dict[str, Tensor]) -> Arrays:
        """A network's statistics; those of parameters that never moved are zeros, as the original has them."""
        return {
            key: to_file(state.pop(at))
            if (at := f"{network}.{parameter}/{slot}") in state
            else np.zeros(shape, np.float32)
            for (parameter, slot), (key, shape) in self.dialect.slot_keys(
                network, self.built[network], self.kind
            ).items()
        }
