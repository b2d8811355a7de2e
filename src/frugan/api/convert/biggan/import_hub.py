"""A generator of TensorFlow Hub becomes weights that sampling and training start from."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from frugan.api.convert.biggan.fine_tuning import fine_tuning
from frugan.api.convert.biggan.verification import Verified, verify
from frugan.api.convert.written import WEIGHTS_SUFFIX, write_weights_file, write_weights_folder
from frugan.api.progress import Say
from frugan.engine.checkpoint import load_networks
from frugan.errors import BadInput
from frugan.families.biggan.hub import HubModule, HubShape, hub_networks, hub_table, means_of_sums, read_module
from frugan.recipe.loading import parse_recipe
from frugan.recipe.recipe import Recipe

MOST_SHOWN = 8


@dataclass(frozen=True)
class ImportedGenerator:
    """What `from_biggan_tfhub` made.

    Attributes:
        path: the weights file, or the folder.
        recipe: of the networks; in a folder also as `recipe.toml`.
        averaged: whether the module brought an average.
        verified: what running the generator showed; None: it was not run.
    """

    path: Path
    recipe: Recipe
    averaged: bool
    verified: Verified | None


def from_biggan_tfhub(
    source: str | Path, out: str | Path, *, raw: bool = False, verified: bool = False, say: Say = print
) -> ImportedGenerator:
    """Convert a module of TensorFlow Hub (biggan-128, -256, -512), without TensorFlow; nothing in it is run.

    Args:
        source: the module's folder, its folder `variables`, or the .index file there.
        out: a new .safetensors file with the generator, averaged or as trained; or a new folder with both, and a recipe
            to fine-tune it by.
        raw: in a file: the generator as it was trained, not its average.
        verified: run the generator before anything is written.
        say: is given a line for everything that does not simply go over.

    Raises:
        BadInput: another model, damaged or cut off; or `out` is there. Nothing is written then.
        OSError: the disk is full or `out` cannot be written; nothing is left then.
    """
    source, out = Path(source), Path(out)
    if out.exists():
        raise BadInput(f"{out}: is there already; choose a new file ending in {WEIGHTS_SUFFIX}, or a new folder")
    to_file = out.suffix == WEIGHTS_SUFFIX
    if raw and not to_file:
        raise BadInput(f"--raw is for a file ending in {WEIGHTS_SUFFIX}; a folder has both, as trained and averaged")
    module = read_module(source)
    if not module.has_average:
        say("the module has no EMA: the generator as it was trained is used instead")
    recipe, shape = _recipe(module)
    say(f"{recipe.about.summary}, from {module.index}")
    published = recipe.kind.build(recipe.networks, "meta")["G"]
    expected = {key: tuple(value.shape) for key, value in published.state_dict().items()}

    def generator(*, averaged: bool) -> dict[str, Tensor]:
        read = means_of_sums(module.read(averaged=averaged))
        found = hub_table(shape).to_ours(read, expected)
        if found.faults:
            shown = found.faults[:MOST_SHOWN] + (["…"] if len(found.faults) > MOST_SHOWN else [])
            raise BadInput(f"{module.index}: not the generator that it looks like:\n  " + "\n  ".join(shown))
        tensors = {f"G.{key}": value.float().contiguous() for key, value in found.tensors.items()}
        load_networks({"G": published}, tensors, str(module.index))  # copies nothing: there is no data on "meta"
        return tensors

    chosen = generator(averaged=not raw)
    checked = verify(recipe, chosen, source if source.is_dir() else source.parent) if verified else None
    if to_file:
        write_weights_file(out, chosen, recipe)
    else:
        write_weights_folder(out, generator(averaged=False), chosen, recipe)
    return ImportedGenerator(out, recipe, module.has_average, checked)


def _recipe(module: HubModule) -> tuple[Recipe, HubShape]:
    try:
        networks, shape = hub_networks(module.shapes)
    except BadInput as error:
        raise BadInput(f"{module.index}: {error}") from error
    about = {
        "summary": f"BigGAN at {networks['resolution']} pixels, imported",
        "source": f"TensorFlow Hub's module {module.index.parent.parent.name}",
    }
    values = {"family": "biggan", "about": about, "networks": networks, **fine_tuning()}
    return parse_recipe(values, str(module.index)), shape
