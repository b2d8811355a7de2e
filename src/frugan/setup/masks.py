"""Sources with the masks of a trained network, as `data.masks` asks for."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import torch

from frugan import registry
from frugan.contract.family import Family
from frugan.contract.formats import FileFormat, MaskNetwork
from frugan.engine.state.working_weights import make_callable
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.progress import Progress, Say
from frugan.setup.devices import use_device
from frugan.setup.networks import Weights, networks_from


def masked(sources: Mapping[str, Any], weights_of: str, say: Say, progress: Progress | None) -> dict[str, Any]:
    """Return opened sources with the masks that a run, a checkpoint, a weights file or another program's network finds.

    They are kept in the folder for prepared data, by the digests of weights and source.

    Raises:
        BadInput: there are no such weights, or they find no masks.
    """
    device, _ = use_device()
    try:
        network = mask_network(weights_of, device, say)
    except BadInput as error:
        raise BadInput(f"data.masks={weights_of}: {error}") from error
    if network.pretrains:
        raise BadInput(f"data.masks={weights_of}: this network is being pretrained, and finds no masks yet")
    with network.file.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    family: Family = registry.create(registry.FAMILIES, network.family)[0]
    found = {}
    for name, source in sources.items():
        # another program's file of weights does not say how its network is used
        key = sha256(f"{digest}/{network.networks!r}/{source.digest}".encode()).hexdigest()[:32]
        kept = Path(Folders.from_environment().prepared) / f"masks-{key}.zip"
        say(f"data {name}: masks of {network.label}{' (kept)' if kept.is_file() else ''}")
        found[name] = family.masked(network.networks, network.built, source, kept, say, progress)
    return found


def mask_network(source: str, device: torch.device, say: Say) -> MaskNetwork:
    """Open a network that finds masks: a run, a checkpoint, a weights file, or what some format of others recognises.

    Raises:
        BadInput: there is none, or it is damaged.
    """
    try:
        weights = Weights.open(source, say)
    except BadInput:
        for name in registry.names(registry.FORMATS):
            file_format: FileFormat = registry.create(registry.FORMATS, name)[0]
            if (found := file_format.mask_network(Path(source), say)) is not None:
                return replace(found, built={name: network.to(device) for name, network in found.built.items()})
        raise
    recipe = weights.recipe.at_step(weights.step)
    return MaskNetwork(
        family=recipe.family,
        networks=recipe.networks,
        built={name: make_callable(network.eval()) for name, network in networks_from(weights, device).items()},
        file=weights.path,
        label=f"{source} at step {weights.step:,}",
        pretrains=getattr(recipe.objective, "pretrain", False),
    )
