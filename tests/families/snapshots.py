"""Network snapshots as the authors' programs write them, made of networks built here, and hostile ones."""

import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from frugan.families.stylegan2.config import StyleGAN2Networks

GOLDEN = Path(__file__).parents[1] / "golden" / "stylegan2" / "snapshot"
SCRUBBED = GOLDEN / "network-snapshot-scrubbed.pkl"
NOT_TO_RUN = "raise RuntimeError('embedded source must never be executed')\n"


def _reconstruct_persistent_obj(meta: Any) -> Any:
    raise AssertionError("called")


class EasyDict(dict[str, Any]):
    """A dict as the programs have it."""


class Persistent:
    """Pickled as the programs pickle a module: one call with all that it is made of."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self.meta = dict(meta)

    def __reduce__(self) -> Any:
        return _reconstruct_persistent_obj, (self.meta,)


def module(class_name: str, own: Mapping[str, Any] | None = None, **more: Any) -> Persistent:
    """A module of no parameters but those in its `own` state; `more` stands in place of what the call is given."""
    parts: dict[str, Any] = {"_parameters": OrderedDict(), "_buffers": OrderedDict(), "_modules": OrderedDict()}
    whole = {"training": False, **parts, "_non_persistent_buffers_set": set(), **(own or {})}
    return Persistent(
        {"type": "class", "version": 6, "module_src": NOT_TO_RUN, "class_name": class_name, "state": whole} | more
    )


def persistent(network: nn.Module, class_name: str, settings: Mapping[str, Mapping[str, Any]], at: str = "") -> Any:
    """A network as the programs would pickle it.

    Args:
        settings: plain attributes by the path of a module.
    """
    return module(
        class_name,
        {
            "_parameters": OrderedDict(network._parameters),
            "_buffers": OrderedDict(network._buffers),
            "_modules": OrderedDict(
                (name, persistent(inner, type(inner).__name__, settings, f"{at}.{name}" if at else name))
                for name, inner in network.named_children()
            ),
            **settings.get(at, {}),
        },
    )


def settings_of(config: StyleGAN2Networks) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Attributes of the generator's and the discriminator's modules."""
    pictures = {"img_resolution": config.resolution, "img_channels": config.channels, "c_dim": config.classes or 0}
    clamp = None if config.convolution_clamp is None else int(config.convolution_clamp)
    generator: dict[str, dict[str, Any]] = {
        "": {"z_dim": config.latent_size, "w_dim": config.style_size, **pictures},
        "mapping": {"num_layers": config.mapping_layers},
        "synthesis": pictures,
    }
    discriminator: dict[str, dict[str, Any]] = {"": pictures}
    for side in config.sides:
        generator[f"synthesis.b{side}"] = {
            "architecture": config.generator_architecture,
            "use_fp16": config.half_at(side),
        }
        generator[f"synthesis.b{side}.conv1"] = {"conv_clamp": clamp, "activation": "lrelu"}
        discriminator[f"b{side}"] = {"architecture": config.discriminator_architecture}
    discriminator["b4.mbstd"] = {"group_size": 4, "num_channels": config.minibatch_std_channels}
    return generator, discriminator


def write_snapshot(
    path: Path, config: StyleGAN2Networks, built: Mapping[str, nn.Module], protocol: int = 4, *, alone: bool = False
) -> Path:
    """Write a snapshot in which the average is the generator; `alone`: with nothing but the average."""
    generator, discriminator = settings_of(config)
    drawn = persistent(built["G"], "Generator", generator)
    judge = persistent(built["D"], "Discriminator", discriminator)
    return write(path, {"G_ema": drawn} if alone else {"G": drawn, "D": judge, "G_ema": drawn}, protocol)


def write(path: Path, networks: Mapping[str, Any], protocol: int = 4) -> Path:
    """Write a snapshot of whatever networks."""
    whole = {"training_set_kwargs": EasyDict(path="pictures.zip", xflip=True), "augment_pipe": None, **networks}
    with programs():
        path.write_bytes(pickle.dumps(whole, protocol))
    return path


@contextmanager
def programs() -> Iterator[None]:
    """Let pickle find the programs' names, which it looks up as it writes them."""
    there: dict[str, Any] = {"torch_utils.persistence": _reconstruct_persistent_obj, "dnnlib.util": EasyDict}
    before = [(what, what.__module__) for what in there.values()]
    modules = {name: ModuleType(name) for name in ("torch_utils", "dnnlib", *there)}
    for name, what in there.items():
        what.__module__ = name
        setattr(modules[name], what.__name__, what)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        for what, name in before:
            what.__module__ = name
