"""StyleGAN3's pictures are moved by the coordinates that they are drawn in."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import frugan
from frugan.errors import BadInput
from frugan.families.stylegan3.config import StyleGAN3Networks
from frugan.families.stylegan3.family import StyleGAN3Family
from frugan.families.stylegan3.networks import Generator
from sampling.generators import MODELS, write, write_moving

FAMILY = StyleGAN3Family()
SIDE = 32


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_moving(tmp_path_factory.mktemp("weights") / "moving.safetensors")


def drawn(path: Path, translate: tuple[float, float] = (0.0, 0.0), rotate: float = 0.0) -> Tensor:
    generator = frugan.load(path)["G"]
    assert isinstance(generator, Generator)
    FAMILY.move({"G": generator}, translate, rotate)
    with torch.no_grad():
        picture: Tensor = generator(torch.randn(1, 8, generator=torch.Generator().manual_seed(1)))[0]
    return picture


def likeness(a: Tensor, b: Tensor) -> float:
    """Correlation of two pictures."""
    a, b = a.flatten() - a.mean(), b.flatten() - b.mean()
    return float(a @ b / (a.norm() * b.norm()))


def test_to_the_right_and_down(weights: Path) -> None:
    still, moved = drawn(weights), drawn(weights, (6 / SIDE, 3 / SIDE))
    assert likeness(moved[:, 3:, 6:], still[:, : SIDE - 3, : SIDE - 6]) > 0.99
    assert likeness(moved[:, 3:, 6:], still[:, 3:, 6:]) < 0.9


def test_to_the_left_by_a_quarter(weights: Path) -> None:
    still, turned = drawn(weights), drawn(weights, rotate=90)
    assert likeness(turned, still.rot90(1, (1, 2))) > 0.99
    assert likeness(turned, still.rot90(-1, (1, 2))) < 0.9


def test_a_turn_comes_before_the_translation() -> None:
    networks = StyleGAN3Networks(resolution=SIDE)
    generator = Generator(networks.model_copy(update={"generator_channel_max": 4}))
    generator.synthesis.input.move((0.25, 0.0), 30)
    place = generator.synthesis.input.transform @ torch.tensor([0.25, 0.0, 1.0])
    torch.testing.assert_close(place, torch.tensor([0.0, 0.0, 1.0]))  # the middle went where it was to go
    right = generator.synthesis.input.transform @ torch.tensor([0.25 + math.cos(math.pi / 6), -0.5, 1.0])
    torch.testing.assert_close(right, torch.tensor([1.0, 0.0, 1.0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (frugan.DrawRequest(translate=(0.0, 1e9)), "--translate 0,1e.09: expected picture widths"),
        (frugan.DrawRequest(rotate=math.inf), "--rotate inf: expected degrees"),
    ],
    ids=["far", "no number"],
)
def test_what_is_no_movement(request_: frugan.DrawRequest, message: str, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        frugan.sample(weights, tmp_path / "out", request_, device="cpu")


def test_other_families_refuse(tmp_path: Path) -> None:
    path = write(MODELS["stylegan2"], tmp_path / "style.safetensors")
    with pytest.raises(BadInput, match="--translate, --rotate: stylegan2 has no coordinates to move pictures by"):
        frugan.sample(path, tmp_path / "out", frugan.DrawRequest(translate=(0.1, 0.0), rotate=3), device="cpu")
    assert not (tmp_path / "out").exists()
