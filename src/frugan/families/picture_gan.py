"""Base of families with a generator of pictures from latents and classes, and a discriminator of pictures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from frugan.contract.family import Family, GridRequest
from frugan.contract.phase import Networks
from frugan.data.picture_needs import PictureNeeds
from frugan.nn.initialise import initialise_layers
from frugan.nn.latents import arc, class_ends, line


class PictureGan(Family):
    """Family of a generator "G" and a discriminator "D", with an optimizer for each.

    Both are built from a recipe's section `networks`, which has at least `resolution`, `channels`, `classes` (None: the
    networks know no classes) and `latent_size`. They are called with latents or pictures, and with labels or None.
    """

    generator_type: ClassVar[type[nn.Module]]
    discriminator_type: ClassVar[type[nn.Module]]
    optimizers = ("D", "G")
    class_tables = True

    def build(self, networks: Any, device: torch.device | str = "cpu") -> dict[str, nn.Module]:
        """Build generator "G" and discriminator "D"."""
        with torch.device(device):
            return {"G": self.generator_type(networks), "D": self.discriminator_type(networks)}

    def initialise(self, networks: Any, built: Networks, seed: Callable[[str], int]) -> None:
        """Draw each network's weights layer by layer, from a random stream of its own."""
        initialise_layers(built, seed)

    def sources(self, networks: Any, objective: Any) -> Mapping[str, PictureNeeds]:
        """One source of pictures, with classes where the networks know any."""
        return {"images": PictureNeeds(networks.resolution, networks.classes, networks.channels)}

    def forwards(self, networks: Any) -> Mapping[str, Callable[[nn.Module, int], object]]:
        """Run the generator on equal latents, and the discriminator on grey pictures, all of class 0."""
        shape = networks.channels, networks.resolution, networks.resolution

        def labels(network: nn.Module, samples: int) -> Tensor | None:
            if networks.classes is None:
                return None
            return torch.zeros(samples, dtype=torch.int64, device=next(network.buffers()).device)

        def generate(network: nn.Module, samples: int) -> Tensor:
            z = torch.ones(samples, networks.latent_size, device=next(network.buffers()).device)
            return cast(Tensor, network(z, labels(network, samples)))

        def discriminate(network: nn.Module, samples: int) -> Tensor:
            pictures = torch.zeros(samples, *shape, device=next(network.buffers()).device)
            return cast(Tensor, network(pictures, labels(network, samples)))

        return {"G": generate, "D": discriminate}


def latent_grid(
    generate: Callable[[Tensor, Tensor], Tensor],
    conditions: Callable[[Tensor], Tensor],
    request: GridRequest,
    rows: Sequence[int],
    *,
    classes: int,
    latent_size: int,
) -> Tensor:
    """Draw a grid [rows, columns, C, R, R] on the host, `micro_batch` pictures at a time.

    Without interpolation each row is a class and each picture has its own latent. Rows of an interpolation go in a
    straight line (or latents along an arc), ends included, from one class to another with one latent, from one latent
    to another in one class, or both.

    Args:
        generate: latents [N, latent_size] and conditions, on the host -> pictures [N, C, R, R].
        conditions: labels [N] -> class conditions of the generator [N, any] that can be mixed, fp32 on the host.
        request: contents of the grid.
        rows: class of each row, where nothing is interpolated.
        classes: number of classes that the ends of interpolations are drawn from, at least 1.
        latent_size: size of a latent.
    """
    random = torch.Generator().manual_seed(request.seed)
    columns = request.columns

    def latents(*shape: int) -> Tensor:
        return torch.randn(*shape, latent_size, generator=random) * request.truncation

    if request.interpolate is None:
        z = latents(len(rows), columns)  # [rows, columns, Z]
        y = conditions(torch.tensor(rows))[:, None].expand(-1, columns, -1)
    else:
        start, end = class_ends(request.classes, request.rows, classes, random)  # [rows] each
        z_start, z_end = latents(2, len(start))
        if request.interpolate == "class":
            z_end = z_start
        if request.interpolate == "latent":
            end = start
        z = (arc if request.spherical else line)(z_start, z_end, columns)
        y = line(conditions(start), conditions(end), columns)
    parts = zip(z.flatten(0, 1).split(request.micro_batch), y.flatten(0, 1).split(request.micro_batch), strict=True)
    grid = torch.cat([generate(part_z, part_y).cpu() for part_z, part_y in parts])  # [rows * columns, C, R, R]
    return grid.view(*z.shape[:2], *grid.shape[1:])
