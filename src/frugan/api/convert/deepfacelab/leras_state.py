"""The arrays of a DeepFaceLab model as a training state, every one of them accounted for."""

from pathlib import Path

import torch

from frugan.api.convert.deepfacelab.leras_recipe import AUTOENCODER
from frugan.api.convert.many_faults import first_of
from frugan.api.networks import build_networks
from frugan.api.progress import Say
from frugan.api.setup import setup_of
from frugan.engine.checkpoint import NETWORKS_FILE, OPTIMIZERS_FILE, load_networks
from frugan.engine.layout import in_layout_of
from frugan.engine.optimizers import named_parameters
from frugan.engine.piecewise_optimizers import PiecewiseOptimizer
from frugan.engine.plan import Plan
from frugan.engine.precision import resolve_precision
from frugan.engine.state import TrainingState
from frugan.errors import BadInput
from frugan.families.saehd import SAEHDNetworks
from frugan.families.saehd.leras_files import Arrays, LerasModel
from frugan.families.saehd.leras_names import (
    OPTIMIZER_FILES,
    SLOTS,
    UPDATES,
    faults,
    file_of,
    from_file,
    gan_misfit,
    misfits,
    slot_keys,
    weight_keys,
)
from frugan.recipe.recipe import Recipe

CPU = torch.device("cpu")


class Importer:
    """Carries a model's arrays over.

    Args:
        folder: the model's, for messages.
        model: its arrays are taken out of it one by one, because they may be gigabytes.
        recipe: made of its options.
        say: is given a line for everything that does not simply go over.
    """

    def __init__(self, folder: Path, model: LerasModel, recipe: Recipe, say: Say) -> None:
        assert isinstance(recipe.networks, SAEHDNetworks)
        self._folder = folder
        self._model = model
        self._recipe = recipe
        self._config = recipe.networks
        self._say = say
        self._built = recipe.kind.build(recipe.networks, "meta")
        self._autoencoder = tuple(name for name in self._built if name not in OPTIMIZER_FILES)

    def state(self) -> TrainingState:
        """The state at the model's iteration. What no phase uses at present is parked, as the engine does itself.

        Raises:
            BadInput: an array is missing or misshapen.
        """
        self._check_autoencoder()
        state = self._fresh_state()
        for name in self._built:
            self._take_network(name, state)
        for name in OPTIMIZER_FILES:
            self._take_optimizer(name, state)
        return state

    def _check_autoencoder(self) -> None:
        lines: list[str] = []
        wrong = misfits(self._config, self._model.networks)
        for name in self._autoencoder:
            file, found = self._model.file(file_of(name)), self._model.networks.get(file_of(name))
            if found is not None:
                lines += faults(file, found, dict(weight_keys(self._built[name]).values()))
            elif not wrong:
                raise BadInput(
                    f"{self._folder / file}: missing. Copy it from where the others came; if it was removed to make "
                    "the network start afresh, let DeepFaceLab train one iteration first, which writes it"
                )
        if wrong or lines:
            raise self._unfit([*wrong, *lines])
        if left := self._model.networks.keys() - {file_of(name) for name in self._built}:
            self._say(f"{', '.join(sorted(left))}: not part of {self._config.archi}; left out")

    def _unfit(self, lines: list[str]) -> BadInput:
        model = self._model.name
        return BadInput(f"{self._folder}: options and arrays of model {model!r} do not agree:\n  {first_of(lines)}")

    def _fresh_state(self) -> TrainingState:
        setup = setup_of(self._recipe)
        plan = Plan(setup.batch, resolve_precision("fp32", CPU))
        state = setup.state(setup.used(build_networks(self._recipe)), plan, CPU)
        state.step = self._model.iteration
        state.loss_scales.clear()  # the precision, and with it the scale, is chosen where training goes on
        state.parked.update({NETWORKS_FILE: {}, OPTIMIZERS_FILE: {}})
        return state

    def _take_network(self, name: str, state: TrainingState) -> None:
        file, arrays = self._model.file(file_of(name)), self._model.networks.pop(file_of(name), None)
        if arrays is None:
            if name in state.networks:
                self._say(f"{name}: {file} is not there; it starts with fresh weights")
            return
        keys = weight_keys(self._built[name])
        if faults(file, arrays, dict(keys.values())):
            self._leave_out(name, arrays, state)
            return
        if extra := arrays.keys() - {key for key, _ in keys.values()}:
            self._say(f"{file}: {', '.join(sorted(extra))}: unknown here; left out")
        tensors = {f"{name}.{parameter}": from_file(arrays[key]) for parameter, (key, _) in keys.items()}
        if name in state.networks:
            load_networks({name: state.networks[name]}, tensors, file)
        else:
            state.parked[NETWORKS_FILE] |= tensors
            self._say(f"{name}: not used at present; kept as it is")

    def _leave_out(self, name: str, arrays: Arrays, state: TrainingState) -> None:
        """Refuse a discriminator that is used; one that is not would start anew in the original, too."""
        file = file_of(name)
        why = gan_misfit(self._config, {file: arrays}) if name == "patch_discriminator" else []
        why += faults(self._model.file(file), arrays, dict(weight_keys(self._built[name]).values()))
        if name in state.networks:
            raise self._unfit(why)
        self._say(f"{name}: left out, because it would start afresh when it is switched on: {why[0]}")
        self._model.optimizers.pop(OPTIMIZER_FILES[name], None)

    def _take_optimizer(self, name: str, state: TrainingState) -> None:
        file, arrays = self._model.file(OPTIMIZER_FILES[name]), self._model.optimizers.pop(OPTIMIZER_FILES[name], None)
        moved = self._autoencoder if name == AUTOENCODER else (name,)
        optimizer = state.optimizers.get(name)
        there = {*state.networks, *(key.split(".")[0] for key in state.parked[NETWORKS_FILE])}
        if arrays is None or not there.issuperset(moved):
            if optimizer is not None:
                self._say(f"optimizer {name}: {file} is not there; its statistics start afresh")
            return
        kind = self._recipe.optimizers["default"].kind
        if not any(key.startswith(f"{SLOTS[kind][0]}_") for key in arrays):
            self._say(f"optimizer {name}: {file} is not of {kind}, as the options say; its statistics start afresh")
            return
        expected = {(n, *at): wanted for n in moved for at, wanted in slot_keys(n, self._built[n], kind).items()}
        if wrong := faults(file, arrays, {UPDATES: (), **dict(expected.values())}):
            raise self._unfit(wrong)
        updates = torch.tensor(int(arrays[UPDATES]))
        if not isinstance(optimizer, PiecewiseOptimizer):
            statistics = {
                f"{name}/{n}.{p}/{slot}": from_file(arrays[key]) for (n, p, slot), (key, _) in expected.items()
            }
            state.parked[OPTIMIZERS_FILE] |= {f"{name}/updates": updates, **statistics}
            return
        optimizer.updates.copy_(updates)
        parameters = named_parameters(state.networks, moved)
        for (network, parameter, slot), (key, _) in expected.items():
            of = parameters[f"{network}.{parameter}"]
            optimizer.state[of][slot] = in_layout_of(of, from_file(arrays.pop(key)))
