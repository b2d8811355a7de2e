"""The generator: mapping and synthesis."""

from typing import cast

import torch
from torch import Tensor, nn

from frugan.families.stylegan2.config import StyleGAN2Networks
from frugan.families.stylegan2.mapping import Mapping
from frugan.families.stylegan2.synthesis import Noise, Synthesis


class Generator(nn.Module):
    """StyleGAN2's generator."""

    def __init__(self, config: StyleGAN2Networks) -> None:
        super().__init__()
        self.latent_size, self.styles = config.latent_size, config.styles
        self.mapping = Mapping(
            config.latent_size,
            config.classes,
            config.style_size,
            config.mapping_layers,
            rate=config.mapping_rate,
            tracked=True,
        )
        self.synthesis = Synthesis(config)

    def styles_of(self, z: Tensor, classes: Tensor | None) -> Tensor:
        """Latents [N, latent_size] and classes [N] from the host to styles [N, style], fp32, on the host."""
        device = next(self.buffers()).device
        w = self.mapping(z.to(device), None if classes is None else classes.to(device))
        return cast(Tensor, w.float().cpu())

    def broadcast(self, w: Tensor, psi: float = 1.0, cutoff: int | None = None) -> Tensor:
        """One style for all layers, moved towards the mean style in the first of them.

        Args:
            w: [N, style].
            psi: 1: as it is; 0: the mean.
            cutoff: layers that are moved; None: all.

        Returns:
            [N, styles, style].
        """
        whole = w[:, None].expand(-1, self.styles, -1)
        if psi == 1:
            return whole
        near = self.mapping.truncated(w, psi)[:, None].expand(-1, self.styles, -1)
        if cutoff is None or cutoff >= self.styles:
            return near
        return torch.cat([near[:, :cutoff], whole[:, cutoff:]], 1)

    def forward(
        self,
        z: Tensor,
        classes: Tensor | None = None,
        *,
        psi: float = 1.0,
        cutoff: int | None = None,
        noise: Noise = "const",
    ) -> Tensor:
        """Generate pictures.

        Args:
            z: latents [N, latent_size].
            classes: class numbers [N], if the networks know classes.
            psi, cutoff: see `broadcast`.
            noise: see `Synthesis`.

        Returns:
            Pictures [N, colours, R, R], about in [-1, 1], fp32.
        """
        ws = self.broadcast(self.mapping(z, classes), psi, cutoff)
        return cast(Tensor, self.synthesis(ws, noise))
