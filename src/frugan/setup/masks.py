"""Sources with the masks of a trained network, as `data.masks` asks for."""

from collections.abc import Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from frugan.engine.state.working_weights import make_callable
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.progress import Progress, Say
from frugan.setup.devices import use_device
from frugan.setup.networks import Weights, networks_from


def masked(sources: Mapping[str, Any], weights_of: str, say: Say, progress: Progress | None) -> dict[str, Any]:
    """Return opened sources with the masks that a run, checkpoint or weights file finds.

    They are kept in the folder for prepared data, by the digests of weights and source.

    Raises:
        BadInput: there are no such weights, or they find no masks.
    """
    try:
        weights = Weights.open(weights_of, say)
        recipe = weights.recipe.at_step(weights.step)
    except BadInput as error:
        raise BadInput(f"data.masks={weights_of}: {error}") from error
    if getattr(recipe.objective, "pretrain", False):
        raise BadInput(f"data.masks={weights_of}: this network is being pretrained, and finds no masks yet")
    with weights.path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    device, _ = use_device()
    built = {name: make_callable(network.eval()) for name, network in networks_from(weights, device).items()}
    found = {}
    for name, source in sources.items():
        key = sha256(f"{digest}/{source.digest}".encode()).hexdigest()[:32]
        kept = Path(Folders.from_environment().prepared) / f"masks-{key}.zip"
        say(f"data {name}: masks of {weights_of} at step {weights.step:,}{' (kept)' if kept.is_file() else ''}")
        found[name] = recipe.kind.masked(recipe.networks, built, source, kept, say, progress)
    return found
