"""The mapping network: a latent and a class to a style."""

import torch
from torch import Tensor

from frugan.contract.layers import Stateful
from frugan.nn.equalised import EqualisedLinear
from frugan.nn.second_moment import second_moment_norm

MEAN_DECAY = 0.995


class Mapping(Stateful):
    """Fully connected layers from normalised latents and embedded classes to a style, in fp32.

    Args:
        latent: size of z; 0: of classes alone, as the discriminator has it.
        classes: number of classes; None: none are given.
        style: size of w, of the embedding, and of every layer.
        layers: how many.
        rate: how fast it learns, of other layers' rate.
        tracked: whether the mean of w is kept, as buffer `w_avg`.

    Source: Karras et al. 2018 (arXiv 1812.04948), section 2; classes as Karras et al. 2020 (arXiv 2006.06676).
    """

    w_avg: Tensor

    def __init__(
        self, latent: int, classes: int | None, style: int, layers: int, *, rate: float, tracked: bool
    ) -> None:
        super().__init__()
        self.classes, self.layers, self.tracked = classes, layers, tracked
        if classes is not None:
            self.embed = EqualisedLinear(classes, style)
        sizes = [latent + (style if classes is not None else 0), *(style for _ in range(layers))]
        for i in range(layers):
            self.add_module(f"fc{i}", EqualisedLinear(sizes[i], sizes[i + 1], activate=True, rate=rate))
        if tracked:
            self.register_buffer("w_avg", torch.zeros(style))

    def committed(self, buffer: str, observed: Tensor) -> Tensor:
        """Move the mean style by 0.005 towards what was seen."""
        return torch.lerp(observed, getattr(self, buffer), MEAN_DECAY)

    def forward(self, z: Tensor | None, classes: Tensor | None, *, observed: int | None = None) -> Tensor:
        """Map.

        Args:
            z: latents [N, latent]; None where there are none.
            classes: class numbers [N]; None where there are none.
            observed: in training, how many styles, from the first on, move the mean; None: all.

        Returns:
            w [N, style], fp32.
        """
        given: list[Tensor] = []
        dtype = next(self.parameters()).dtype
        if z is not None:
            given.append(second_moment_norm(z.to(dtype)))
        if self.classes is not None:
            if classes is None:
                raise ValueError(f"no classes: these networks tell {self.classes} apart; give a number for each sample")
            # One-hot by comparison: torch's own looks at the values, for which a card would have to be waited for.
            one_hot = classes[:, None] == torch.arange(self.classes, device=classes.device)  # [N, classes]
            given.append(second_moment_norm(self.embed(one_hot.to(dtype))))
        w = torch.cat(given, 1)
        for i in range(self.layers):
            w = self.get_submodule(f"fc{i}")(w)
        if self.tracked and self.training:
            self.observe("w_avg", w[:observed].mean(0), len(w[:observed]))
        return w

    def truncated(self, w: Tensor, psi: float) -> Tensor:
        """Move styles [N, style] towards the mean: psi 1 as they are, 0 the mean, below 0 to its other side."""
        return torch.lerp(self.w_avg.to(w.dtype), w, psi)
