"""A checkpoint of BigGAN-PyTorch becomes a run that training goes on with, or weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from frugan.api.convert.biggan.release_recipe import release_recipe, say_what_differs
from frugan.api.convert.biggan.verification import Verified, verify
from frugan.api.convert.many_faults import first_of
from frugan.api.convert.overridden import overridden
from frugan.api.convert.written import WEIGHTS_SUFFIX, free_for_a_run, write_run, write_weights_file
from frugan.api.progress import Say
from frugan.api.setup import setup_of
from frugan.engine.checkpoint import load_networks
from frugan.engine.layout import in_layout_of
from frugan.engine.optimizers import named_parameters
from frugan.engine.plan import Plan
from frugan.engine.precision import resolve_precision
from frugan.engine.state import TrainingState
from frugan.errors import BadInput
from frugan.families.biggan.release import STATE, ReleaseCheckpoint, averaged_statistics, read_checkpoint, release_table
from frugan.families.biggan.release_recipe import DEFAULTS
from frugan.recipe.recipe import Recipe

CPU = torch.device("cpu")

FORMAT = "biggan-pytorch"


@dataclass(frozen=True)
class ImportedCheckpoint:
    """What `from_biggan_pytorch` made.

    Attributes:
        path: the run, or the weights file.
        recipe: of it; in a run also as `recipe.toml`.
        networks: that were in the checkpoint.
        step: iterations done.
        verified: what running the networks showed; None: they were not run.
    """

    path: Path
    recipe: Recipe
    networks: tuple[str, ...]
    step: int
    verified: Verified | None


def from_biggan_pytorch(
    source: str | Path,
    out: str | Path,
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
    raw: bool = False,
    verified: bool = False,
    say: Say = print,
) -> ImportedCheckpoint:
    """Convert a checkpoint folder of BigGAN-PyTorch; nothing in it is run.

    Args:
        source: the experiment's folder, with G.pth, D.pth, state_dict.pth in it.
        out: a new or empty folder for a run, which needs both networks; or a new .safetensors file with the averaged
            generator, and the discriminator if there is one.
        name: of the set of files: "copy0", "best1"; None: the newest.
        overrides: `key.sub=value` words for the recipe.
        raw: in a file: the generator as it was trained, not its average.
        verified: run the networks before anything is written.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: files are missing, damaged, hostile, or of networks or a training that are not built here; or `out`
            is there. Nothing is written then.
        OSError: the disk is full or `out` cannot be written; nothing is left then.
    """
    source, out = Path(source), Path(out)
    to_file = out.suffix == WEIGHTS_SUFFIX
    if to_file and out.exists():
        raise BadInput(f"{out}: is there already; choose a new file ending in {WEIGHTS_SUFFIX}")
    if raw and not to_file:
        raise BadInput(f"--raw is for a file ending in {WEIGHTS_SUFFIX}; a run has both, the generator and its average")
    run = None if to_file else free_for_a_run(out)
    checkpoint = _complete(read_checkpoint(source, name or "", optimizers=not to_file), say)
    if not to_file and (missing := [n for n in ("G", "D") if n not in checkpoint.networks]):
        raise BadInput(
            f"{checkpoint.file(missing[0])}: missing; training goes on with both networks. Weights alone become a "
            f"file: frugan convert {source} weights{WEIGHTS_SUFFIX} --from {FORMAT}"
        )
    recipe = overridden(release_recipe(checkpoint, trains=not to_file), overrides)
    say(f"{recipe.about.summary}; {', '.join(checkpoint.networks)} at iteration {checkpoint.counters['itr']:,}")
    say_what_differs(recipe, checkpoint, say, trains=not to_file)
    if run is None:
        tensors = _weights(checkpoint, recipe, say, raw=raw)
        checked = verify(recipe, tensors, source) if verified else None
        write_weights_file(out, tensors, recipe)
    else:
        state = _state(checkpoint, recipe, say)
        averaged = {f"G.{key}": value for key, value in state.ema.networks["G"].state_dict().items()}
        discriminator = {f"D.{key}": value for key, value in state.networks["D"].state_dict().items()}
        checked = verify(recipe, averaged | discriminator, source) if verified else None
        imported = {"options": checkpoint.options, "counters": checkpoint.counters, "set": checkpoint.suffix}
        write_run(run, recipe, state, {"format": FORMAT, **imported})
    return ImportedCheckpoint(out, recipe, tuple(checkpoint.networks), int(checkpoint.counters["itr"]), checked)


def _complete(checkpoint: ReleaseCheckpoint, say: Say) -> ReleaseCheckpoint:
    """The checkpoint with all options: what an older version of that program did not write is as by default."""
    if missing := [name for name in DEFAULTS if name not in checkpoint.options]:
        shown = ", ".join(f"{name} {DEFAULTS[name]}" for name in missing)
        say(f"{checkpoint.file(STATE)}: says nothing of some options, which are taken as by default: {shown}")
    return replace(checkpoint, options={**DEFAULTS, **checkpoint.options})


def _weights(checkpoint: ReleaseCheckpoint, recipe: Recipe, say: Say, *, raw: bool) -> dict[str, Tensor]:
    """Tensors "network.parameter" of the generator, and of the discriminator if there is one."""
    wanted, other = ("G", "G_ema") if raw else ("G_ema", "G")
    generator = wanted if wanted in checkpoint.networks else other
    if generator not in checkpoint.networks:
        raise BadInput(f"{checkpoint.folder}: holds no generator (G_ema.pth or G.pth); nothing could be drawn with it")
    if generator != wanted:
        say(f"{checkpoint.file(wanted)} is not there: {generator} is used instead")
    tensors = _translated(checkpoint, generator, recipe)
    if "D" not in checkpoint.networks:
        say(f"{checkpoint.file('D')} is not there: in training it starts afresh")
        return tensors
    return tensors | _translated(checkpoint, "D", recipe)


def _translated(checkpoint: ReleaseCheckpoint, name: str, recipe: Recipe) -> dict[str, Tensor]:
    """Tensors "network.parameter" of a network, all of which must be the recipe's.

    Raises:
        BadInput: names are missing or left over, or shapes are others.
    """
    ours = "G" if name == "G_ema" else name
    network = recipe.kind.build(recipe.networks, "meta")[ours]
    expected = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    table = release_table(own_batch_norm=checkpoint.options["mybn"] is True)
    found = table.to_ours(averaged_statistics(checkpoint.networks[name]), expected)
    if found.faults:
        raise BadInput(
            f"{checkpoint.file(name)}: not the network that its options stand for:\n  {first_of(found.faults)}"
        )
    tensors = {f"{ours}.{key}": value.float() for key, value in found.tensors.items()}
    load_networks({ours: network}, tensors, str(checkpoint.file(name)))  # copies nothing: there is no data on "meta"
    return tensors


def _state(checkpoint: ReleaseCheckpoint, recipe: Recipe, say: Say) -> TrainingState:
    """The training state at the checkpoint's iteration."""
    setup = setup_of(recipe)
    plan = Plan(setup.batch, resolve_precision("fp32", CPU))
    state = setup.state(setup.used(recipe.kind.build(recipe.networks)), plan, CPU)
    state.step = int(checkpoint.counters["itr"])
    state.loss_scales.clear()  # the precision, and with it the scale, is chosen where training goes on
    trained = {key: value for name in ("G", "D") for key, value in _translated(checkpoint, name, recipe).items()}
    load_networks(state.networks, trained, str(checkpoint.folder))
    average = "G_ema" if "G_ema" in checkpoint.networks else "G"
    if average == "G" and checkpoint.options["ema"] is True:
        say(f"{checkpoint.file('G_ema')} is not there: the average starts as a copy of G")
    load_networks(state.ema.networks, _translated(checkpoint, average, recipe), str(checkpoint.file(average)))
    for name in ("G", "D"):
        _take_optimizer(checkpoint, name, state, say)
    return state


def _take_optimizer(checkpoint: ReleaseCheckpoint, name: str, state: TrainingState, say: Say) -> None:
    file = checkpoint.file(f"{name}_optim")
    adam = checkpoint.optimizers.get(name)
    if adam is None:
        say(f"{file} is not there: the optimizer's statistics start afresh")
        return
    table = release_table(own_batch_norm=checkpoint.options["mybn"] is True)
    parameters = named_parameters(state.networks, (name,))
    optimizer = state.optimizers[name]
    for key, slots in adam.slots.items():
        (ours,) = table.to_ours({key: slots["exp_avg"]}).tensors
        of = parameters[f"{name}.{ours}"]
        for slot, value in slots.items():
            placed = value if slot == "step" else in_layout_of(of, value.float())
            optimizer.state[of][slot].copy_(placed)
    if unmoved := parameters.keys() - {f"{name}.{key}" for key in adam.slots}:
        say(f"{file}: has no state for {first_of(sorted(unmoved), ', ')}, which starts afresh")
