"""Files of StyleGAN2's authors, as `convert` asks for them."""

from frugan.api.convert.stylegan.export_stylegan import to_stylegan_safetensors
from frugan.api.convert.stylegan.import_stylegan import ImportedSnapshot, from_stylegan_pickle
from frugan.contract.formats import Conversion, Converted
from frugan.errors import BadInput
from frugan.recipe.loading import load_recipe
from frugan.recipe.toml import RECIPE_FILE
from frugan.recipes import built_in


class StyleGANPickle:
    """A network snapshot; it cannot be written, because it would have to contain their program."""

    program = "a snapshot of StyleGAN2"
    reads: frozenset[str] | None = frozenset()
    writes: frozenset[str] | None = None

    def read(self, asked: Conversion) -> Converted:
        """Make weights of a snapshot; see `from_stylegan_pickle`."""
        made = from_stylegan_pickle(asked.source, asked.out, say=asked.say)
        resolution = made.recipe.networks.model_dump()["resolution"]
        facts = {"path": str(made.path), "resolution": resolution, "networks": list(made.networks)}
        lines = [f"{made.path}: StyleGAN2 at {resolution} pixels", f"Next: frugan sample {made.path} --out samples"]
        return Converted(facts, [*lines, _training(made, resolution)])

    def write(self, asked: Conversion) -> Converted:
        """There is no such thing.

        Raises:
            BadInput: always.
        """
        raise BadInput(f"{asked.out}: a snapshot pickle cannot be written; --to stylegan-safetensors is what there is")


class StyleGANSafetensors:
    """State dicts with the authors' names."""

    program = "weights under the names of StyleGAN2's authors"
    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = frozenset({"replace"})

    def read(self, asked: Conversion) -> Converted:
        """They say too little of the networks that they are of.

        Raises:
            BadInput: always.
        """
        raise BadInput(f"{asked.source}: is not converted; `frugan train RECIPE --init {asked.source}` starts from it")

    def write(self, asked: Conversion) -> Converted:
        """Write state dicts; see `to_stylegan_safetensors`."""
        made = to_stylegan_safetensors(asked.source, asked.out, replace=asked.replace, say=asked.say)
        facts = {"file": str(made.path), "networks": list(made.networks)}
        return Converted(facts, [f"{made.path}: {', '.join(made.networks)} under the authors' names"])


def _training(made: ImportedSnapshot, resolution: int) -> str:
    """How to fine-tune it: by the recipe beside it, or by a shipped one of the same networks."""
    if made.path.is_dir():
        return f"Or: frugan train {made.path / RECIPE_FILE} --init {made.path} --data PICTURES --out RUN"
    name = f"stylegan2-finetune-{resolution}"
    if name in built_in():
        ours, theirs = load_recipe(name).networks.model_dump(), made.recipe.networks.model_dump()
        if all(ours[key] == value for key, value in theirs.items() if key != "frozen_discriminator_layers"):
            return f"Or: frugan train {name} --init {made.path} --data PICTURES --out RUN"
    return "To fine-tune it, convert it to a folder (a name without .safetensors): its recipe.toml has these networks"
