"""Distances between pictures that follow what people see, and what may be named to measure them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from frugan.errors import BadInput
from frugan.metrics.perceptual import SMALL, PictureDistance, choose_distance

CPU = torch.device("cpu")


def stripes(shift: int = 0, channels: int = 3, side: int = 32) -> Tensor:
    """[1, C, R, R]."""
    row = torch.where((torch.arange(side) + shift) % 16 < 8, 1.0, -1.0)
    return row.expand(1, channels, side, side).contiguous()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> PictureDistance:
    return choose_distance(SMALL, tmp_path_factory.getbasetemp(), CPU)


@pytest.mark.parametrize("channels", [1, 3])
def test_nearer_pictures_are_nearer(small: PictureDistance, channels: int) -> None:
    distance = small.to(stripes(channels=channels))
    given = torch.cat([stripes(shift, channels) for shift in (0, 1, 3, 8)])
    far = distance(given).tolist()
    assert far[0] == pytest.approx(0, abs=1e-6)
    assert far == sorted(far)
    assert far[1] > 0.01
    blurred = torch.nn.functional.avg_pool2d(stripes(0, channels), 5, 1, 2)
    assert 0.01 < float(distance(blurred)) < far[3]


def test_it_leads_back_by_its_gradient(small: PictureDistance) -> None:
    distance, random = small.to(stripes()), torch.Generator().manual_seed(0)
    picture = (0.3 * torch.randn(1, 3, 32, 32, generator=random)).requires_grad_()
    before = float(distance(picture.detach()))
    optimizer = torch.optim.Adam([picture], 0.05)
    for _ in range(40):
        optimizer.zero_grad()
        distance(picture).sum().backward()
        optimizer.step()
    assert float(distance(picture.detach())) < before / 3


class OfFeatures(torch.nn.Module):
    """As the file that StyleGAN2's projector uses is called."""

    def forward(self, img: Tensor, resize_images: bool = True, return_lpips: bool = False) -> Tensor:
        """Means of colours, as far as it is asked as it should be."""
        assert return_lpips
        assert not resize_images
        return img.mean((2, 3)) / 255


class OfTwo(torch.nn.Module):
    """A file that measures itself."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return (one - other).abs().mean((1, 2, 3))


class OfThree(torch.nn.Module):
    def forward(self, one: Tensor, other: Tensor, third: Tensor) -> Tensor:
        return one + other + third


def script(module: torch.nn.Module, path: Path) -> str:
    torch.jit.script(module).save(str(path))
    return str(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_files(tmp_path: Path) -> None:
    features = choose_distance(script(OfFeatures(), tmp_path / "features.pt"), tmp_path, CPU)
    assert features.name == "features.pt"
    white, black = torch.ones(1, 3, 8, 8), -torch.ones(2, 3, 8, 8)
    torch.testing.assert_close(features.to(white)(black), torch.tensor([3.0, 3.0]))
    two = choose_distance(script(OfTwo(), tmp_path / "two.pt"), tmp_path, CPU)
    torch.testing.assert_close(two.to(white[:, :1])(black[:, :1]), torch.tensor([2.0, 2.0]))
    with pytest.raises(BadInput, match="takes one, other, third; expected one that takes pictures, or two"):
        choose_distance(script(OfThree(), tmp_path / "three.pt"), tmp_path, CPU)


def test_what_measures_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"x")
    with pytest.raises(BadInput, match="no TorchScript file"):
        choose_distance(str(tmp_path / "x.pt"), tmp_path, CPU)
    with pytest.raises(BadInput, match="--features nothing: expected small, inception"):
        choose_distance("nothing", tmp_path, CPU)
