"""Files of the programs that BigGAN comes from, as `convert` asks for them."""

import shlex
from pathlib import Path

from frugan.api.convert.biggan.export_release import to_biggan_pytorch
from frugan.api.convert.biggan.fine_tuning import RECIPE, differing_networks
from frugan.api.convert.biggan.import_hub import from_biggan_tfhub
from frugan.api.convert.biggan.import_release import from_biggan_pytorch
from frugan.api.convert.written import WEIGHTS_SUFFIX
from frugan.contract.formats import Conversion, Converted
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe
from frugan.recipe.toml import RECIPE_FILE


class BigGANPyTorch:
    """A checkpoint folder of the PyTorch release."""

    program = "a checkpoint of BigGAN-PyTorch"
    reads: frozenset[str] | None = frozenset({"overrides", "name", "raw", "verify"})
    writes: frozenset[str] | None = frozenset({"replace"})

    def read(self, asked: Conversion) -> Converted:
        """Make a run, or weights, of a checkpoint; see `from_biggan_pytorch`."""
        made = from_biggan_pytorch(
            asked.source,
            asked.out,
            name=asked.name,
            overrides=asked.overrides,
            raw=asked.raw,
            verified=asked.verify,
            say=asked.say,
        )
        facts = {"path": str(made.path), "networks": list(made.networks), "step": made.step}
        lines = [f"{made.path}: {made.recipe.about.summary}, iteration {made.step:,}"]
        if made.verified is not None:
            facts["difference"] = made.verified.difference
            lines.append(made.verified.line)
        if made.path.suffix == WEIGHTS_SUFFIX:
            return Converted(facts, [*lines, *_next(made.path, made.recipe, discriminator="D" in made.networks)])
        recipe = made.path / RECIPE_FILE
        return Converted(facts, [*lines, f"Next: frugan train {recipe} --data PICTURES --out {made.path}"])

    def write(self, asked: Conversion) -> Converted:
        """Write a run, or weights, as a checkpoint folder; see `to_biggan_pytorch`."""
        made = to_biggan_pytorch(asked.source, asked.out, replace=asked.replace, say=asked.say)
        facts = {"folder": str(made.folder), "files": list(made.files), "step": made.step}
        where = f"--weights_root {made.folder.parent} --experiment_name {made.folder.name}"
        return Converted(
            facts,
            [
                f"{made.folder}: {', '.join(made.files)} at iteration {made.step:,}",
                f"In that program: train.py --resume {where}, with the options in state_dict.pth",
            ],
        )


class BigGANHub:
    """A generator of TensorFlow Hub."""

    program = "a generator of TensorFlow Hub"
    reads: frozenset[str] | None = frozenset({"raw", "verify"})
    writes: frozenset[str] | None = None

    def read(self, asked: Conversion) -> Converted:
        """Make weights of a module; see `from_biggan_tfhub`."""
        made = from_biggan_tfhub(asked.source, asked.out, raw=asked.raw, verified=asked.verify, say=asked.say)
        resolution = made.recipe.networks.model_dump()["resolution"]
        facts = {"path": str(made.path), "resolution": resolution, "averaged": made.averaged and not asked.raw}
        lines = [f"{made.path}: BigGAN at {resolution} pixels"]
        if made.verified is not None:
            facts["difference"] = made.verified.difference
            lines.append(made.verified.line)
        return Converted(facts, [*lines, *_next(made.path, made.recipe, discriminator=False)])

    def write(self, asked: Conversion) -> Converted:
        """There is no such thing.

        Raises:
            BadInput: always.
        """
        raise BadInput(
            f"{asked.out}: modules of TensorFlow Hub cannot be written; --to biggan-pytorch is what there is"
        )


def _next(path: Path, recipe: Recipe, *, discriminator: bool) -> list[str]:
    """What to do with weights now; to fine-tune them, by a recipe whose networks are made theirs."""
    lines = [f"Next: frugan sample {path} --out samples"]
    started = f"--init {path} --init-classes mean --data PICTURES --out RUN"
    if path.suffix != WEIGHTS_SUFFIX:
        return [*lines, f"Or: frugan train {path / RECIPE_FILE} networks.classes=N {started}"]
    words = [f"networks.{name}={value}" for name, value in differing_networks(recipe, discriminator=discriminator)]
    return [*lines, f"Or: frugan train {shlex.join([RECIPE, 'networks.classes=N', *words])} {started}"]
