"""The mapping network of all generations of StyleGAN, and what their generators share."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from frugan.contract.elementwise import second_moment_norm
from frugan.contract.family import Noise
from frugan.contract.layers import Stateful
from frugan.families.stylegan2.config import StyledNetworks
from frugan.nn.equalised import EqualisedLinear


class MappingNetwork(Stateful):
    """Fully connected layers from normalised latents and embedded classes to a style, in fp32.

    Args:
        latent: size of z; 0: classes are the only input, as in the discriminator.
        classes: number of classes; None: classes are no input.
        style: size of w, of the embedding, and of every layer.
        layers: number of layers.
        rate: factor on the learning rate.
        mean_decay: weight of the mean of w so far, buffer `w_avg`, when an update moves it; None: no mean is kept.

    Source: Karras et al. 2018 (arXiv 1812.04948), section 2; classes as Karras et al. 2020 (arXiv 2006.06676).
    """

    w_avg: Tensor

    def __init__(
        self, latent: int, classes: int | None, style: int, layers: int, *, rate: float, mean_decay: float | None
    ) -> None:
        super().__init__()
        self.classes, self.layers, self.mean_decay = classes, layers, mean_decay
        if classes is not None:
            self.embed = EqualisedLinear(classes, style)
        sizes = [latent + (style if classes is not None else 0), *(style for _ in range(layers))]
        for i in range(layers):
            self.add_module(f"fc{i}", EqualisedLinear(sizes[i], sizes[i + 1], activate=True, rate=rate))
        if mean_decay is not None:
            self.register_buffer("w_avg", torch.zeros(style))

    def committed(self, buffer: str, observed: Tensor) -> Tensor:
        """Move the mean style towards the mean of the observed ones."""
        return torch.lerp(observed, getattr(self, buffer), cast(float, self.mean_decay))

    def forward(self, z: Tensor | None, classes: Tensor | None, *, observed: int | None = None) -> Tensor:
        """Map latents and classes to styles.

        Args:
            z: latents [N, latent]; None: they are no input.
            classes: class numbers [N], or shares of the classes [N, classes]; None: they are no input.
            observed: in training, number of styles, from the first on, that move the mean; None: all; 0: none.

        Returns:
            w [N, style], fp32.
        """
        inputs: list[Tensor] = []
        dtype = next(self.parameters()).dtype
        if z is not None:
            inputs.append(second_moment_norm(z.to(dtype)))
        if self.classes is not None:
            if classes is None:
                raise ValueError(f"no classes: these networks tell {self.classes} apart; give a number for each sample")
            if not classes.is_floating_point():
                # One-hot by comparison: torch's own looks at the values, for which it waits for a card.
                classes = classes[:, None] == torch.arange(self.classes, device=classes.device)  # [N, classes]
            inputs.append(second_moment_norm(self.embed(classes.to(dtype))))
        w = torch.cat(inputs, 1)
        for i in range(self.layers):
            w = self.get_submodule(f"fc{i}")(w)
        if self.mean_decay is not None and self.training and observed != 0:
            self.observe("w_avg", w[:observed].mean(0), len(w[:observed]))
        return w

    def truncated(self, w: Tensor, psi: float | Tensor) -> Tensor:
        """Move styles [N, style] towards the mean one: psi 1 leaves them, 0 gives the mean, below 0 goes beyond it."""
        return torch.lerp(self.w_avg.to(w.dtype), w, psi)


class StyledGenerator(nn.Module):
    """A generator with a mapping network, whose layers take styles."""

    def __init__(self, config: StyledNetworks) -> None:
        super().__init__()
        self.latent_size, self.styles = config.latent_size, config.styles
        self.mapping = MappingNetwork(
            config.latent_size,
            config.classes,
            config.style_size,
            config.mapping_layers,
            rate=config.mapping_rate,
            mean_decay=config.mean_style_decay,
        )

    @property
    def affines_by_style(self) -> Mapping[int, Sequence[EqualisedLinear]]:
        """Number of a style -> the affine layers that take it."""
        raise NotImplementedError(f"{type(self).__name__} must define affines_by_style")

    def draw(self, ws: Tensor, noise: Noise, random: torch.Generator | None) -> Tensor:
        """Draw pictures.

        Args:
            ws: styles [N, styles, style].
            noise: kind of noise, for layers that add some.
            random: generator of random noise, on the host.

        Returns:
            [N, colours, R, R], about in [-1, 1], fp32.
        """
        raise NotImplementedError(f"{type(self).__name__} must define draw")

    def styles_of(self, z: Tensor, classes: Tensor | None) -> Tensor:
        """Map latents [N, latent_size] and classes [N] to styles [N, style], fp32; all of them on the host."""
        device = next(self.buffers()).device
        w = self.mapping(z.to(device), None if classes is None else classes.to(device))
        return cast(Tensor, w.float().cpu())

    def broadcast(self, w: Tensor, psi: float = 1.0, cutoff: int | None = None) -> Tensor:
        """Repeat styles for all layers, moved towards the mean style in the first of these.

        Args:
            w: [N, style].
            psi: see `MappingNetwork.truncated`.
            cutoff: number of layers whose style is moved; None: all.

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
