"""Trained generators for Python: one way to call those of every family."""

from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.family import Drawing
from frugan.engine.state.working_weights import make_callable
from frugan.errors import BadInput, checked
from frugan.setup.networks import Weights, networks_from


class Generator(nn.Module):
    """A generator of pictures from latents, in evaluation mode, which is called in the same way in every family.

    Attributes:
        network: the family's own module.
        latent_size: numbers in a latent.
        classes: number of classes that can be chosen between; 0: there is no choice.
        class_names: names of the classes, in the order of their numbers; empty: none are known.
    """

    def __init__(self, network: nn.Module, drawing: Drawing, class_names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.network = network
        self.latent_size, self.classes, self.class_names = drawing.latent_size, drawing.classes, class_names
        self._has_styles, self._draw = drawing.psi, drawing.call

    def __call__(self, z: Tensor, classes: Tensor | None = None, *, psi: float = 1.0) -> Tensor:
        """Generate pictures, see `forward`."""
        return cast(Tensor, super().__call__(z, classes, psi=psi))

    def forward(self, z: Tensor, classes: Tensor | None = None, *, psi: float = 1.0) -> Tensor:
        """Generate pictures.

        Args:
            z: latents [N, latent_size], normal numbers of deviation 1.
            classes: class numbers [N], or shares of the classes [N, classes], which mix them. Not looked at if there is
                no choice of classes.
            psi: truncation of a network with styles: 1 leaves them as trained, 0 gives the mean picture.

        Returns:
            [N, C, R, R] in [-1, 1], fp32.

        Raises:
            BadInput: latents of another size, classes that there are not, none where there is a choice, or `psi` where
                there are no styles.
        """
        if not isinstance(z, Tensor):
            raise BadInput(f"z: {type(z).__name__}; expected a tensor of latents [N, {self.latent_size}]")
        if z.ndim != 2 or z.shape[1] != self.latent_size:
            raise BadInput(f"z: {list(z.shape)}; expected latents [N, {self.latent_size}]")
        inputs = [z]
        if self.classes:
            if classes is None:
                raise BadInput(f"classes: expected a number from 0 to {self.classes - 1} for each latent")
            if not isinstance(classes, Tensor):
                raise BadInput(f"classes: {type(classes).__name__}; expected a tensor [N]: torch.tensor([0, 1])")
            inputs.append(self._shares(classes, len(z)).to(z.dtype))
        if self._has_styles:
            inputs.append(torch.as_tensor(psi, dtype=z.dtype, device=z.device))
        elif psi != 1.0:
            raise BadInput(f"psi={psi}: this generator has no styles; multiply z by {psi} to truncate")
        return self._draw(*inputs)

    def _shares(self, classes: Tensor, samples: int) -> Tensor:
        """Shares of the classes in each of N samples, [N, classes]."""
        if classes.is_floating_point():
            if classes.shape != (samples, self.classes):
                raise BadInput(
                    f"classes: {list(classes.shape)} of {classes.dtype}; expected whole numbers [{samples}], or shares "
                    f"[{samples}, {self.classes}]"
                )
            return classes
        if classes.shape != (samples,):
            raise BadInput(f"classes: {list(classes.shape)}; expected a number for each of the {samples} latents")
        # numbers on a card are not looked at, as that would wait for it
        if classes.device.type == "cpu" and samples:
            least, most = int(classes.min()), int(classes.max())
            if least < 0 or most >= self.classes:
                raise BadInput(f"classes: {least} to {most}; expected 0 to {self.classes - 1}")
        return F.one_hot(classes, self.classes)


@checked
def load_generator(path: str | Path, device: torch.device | str = "cpu") -> Generator:
    """Load the averaged generator of a run, a checkpoint or a weights file.

    Raises:
        BadInput: it does not exist, is damaged, is not frugan's, or draws no pictures from latents.
    """
    weights = Weights.open(path)
    recipe = weights.recipe
    networks = networks_from(weights, device)
    drawing = recipe.kind.drawing(recipe.networks, networks)
    if drawing is None:
        raise BadInput(f"{path}: {recipe.family} draws no pictures from latents; frugan.load gives its networks")
    generator = Generator(networks[drawing.network], drawing, weights.class_names).eval()
    make_callable(generator)
    return generator
