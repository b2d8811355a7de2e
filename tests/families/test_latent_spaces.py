"""What families say of their latent spaces: which linear maps take latents, and what the first block makes of them."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from frugan.nn.batch_norm import ConditionalBatchNorm
from frugan.sampling.explorer import explore
from sampling.generators import MODELS, write


def biggan_outputs(generator: Any, z: Tensor, condition: Tensor) -> Tensor:
    """What the layers that see latents make of them, one after the other [N, outputs]."""
    first, conditions = generator._first_map(z, condition)
    found = [first.flatten(1)]
    if generator.deep or generator.hierarchical:
        for stage, given in zip(generator.blocks, conditions, strict=True):
            norms = [norm for norm in stage.modules() if isinstance(norm, ConditionalBatchNorm)]
            found += [of(given) for norm in norms for of in (norm.gain, norm.bias)]
    return torch.cat(found, 1)


@pytest.mark.parametrize("name", ["biggan", "biggan-deep", "tables of classes"])
def test_biggan_names_every_map_that_takes_latents(name: str, tmp_path: Path) -> None:
    with explore(write(MODELS[name], tmp_path / "w.safetensors"), device="cpu") as explorer, explorer.in_full():
        generator: Any = explorer.opened.networks["G"]
        one, other = torch.randn(2, 3, generator.latent_size, generator=torch.Generator().manual_seed(0))
        condition = generator.embed(torch.tensor([1, 4, 2]))
        with torch.no_grad():
            outputs = [biggan_outputs(generator, z, condition) for z in (one, other)]
        torch.testing.assert_close(
            (one - other) @ explorer.space.maps((0,)).T, outputs[0] - outputs[1], atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("layers", [(0,), (1, 2), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_stylegan2_names_the_maps_of_its_layers(layers: tuple[int, ...], tmp_path: Path) -> None:
    with explore(write(MODELS["stylegan2"], tmp_path / "w.safetensors"), device="cpu") as explorer, explorer.in_full():
        synthesis = cast(Any, explorer.opened.networks["G"]).synthesis
        size, count = explorer.space.size, explorer.space.layers
        step = torch.randn(1, size, generator=torch.Generator().manual_seed(0))
        still = torch.zeros(1, count, size)
        moved = still.clone()
        moved[:, list(layers)] = step
        with torch.no_grad():
            changes = [a - b for a, b in zip(synthesis._styles(moved)[0], synthesis._styles(still)[0], strict=True)]
        # in another order: by style, not by block
        expected = torch.cat([change.flatten() for change in changes if bool(change.any())])
        found = (explorer.space.maps(layers) @ step[0]).flatten()
    torch.testing.assert_close(found.sort().values, expected.sort().values, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["biggan", "r3gan", "r3gan without classes"])
def test_first_blocks_are_those_of_a_whole_forward(name: str, tmp_path: Path) -> None:
    with explore(write(MODELS[name], tmp_path / "w.safetensors"), device="cpu") as explorer, explorer.in_full():
        generator: Any = explorer.opened.networks["G"]
        block = generator.blocks[0][-1] if hasattr(generator, "blocks") else generator.b4
        seen: list[Tensor] = []
        block.register_forward_hook(lambda _, __, made: seen.append(made))
        points = explorer.seeds((1, 2), (1,))
        explorer.draw(points)
        assert explorer.space.activations is not None
        with torch.no_grad():
            explorer.space.activations(points.vectors[:, 0], points.shares)
    torch.testing.assert_close(seen[0], seen[1])
