"""ADA's pipeline: what holds for any picture; its numbers are held to the original's in tests/parity."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from frugan.augment.ada import Ada, add_noise, compose, cut_out, filter_bands
from frugan.augment.resampling import resample

EVERY = Ada(("blit", "geometry", "colour", "filter", "noise", "cutout"))
ROUNDING = 1e-5


def pictures(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=dtype) * 2 - 1


def draws(count: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(2)
    uniforms = torch.rand(count, Ada.uniforms, generator=random, dtype=dtype)
    return uniforms, torch.randn(count, Ada.normals, generator=random, dtype=dtype)


def noise(x: Tensor) -> Tensor:
    """The same for a picture whatever comes after it."""
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)


def share(value: float) -> Tensor:
    return torch.tensor(value)


def moved_by(x: float, y: float) -> Tensor:
    """[1, 3, 3]."""
    return torch.tensor([[[1, 0, x], [0, 1, y], [0, 0, 1]]])


def scaled_by(x: float, y: float) -> Tensor:
    """[1, 3, 3]."""
    return torch.tensor([[[x, 0, 0], [0, y, 0], [0, 0, 1]]])


QUARTER_TURN = torch.tensor([[[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]])  # [1, 3, 3]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("split", [1, 3])
def test_a_split_batch_gives_the_same_pictures(channels: int, split: int) -> None:
    """Even beside a picture that reaches far beyond its border."""
    x, (uniforms, normals) = pictures(5, channels, 16, 12), draws(5)
    normals[0] *= 6
    whole = EVERY(x, uniforms, normals, share(0.9), noise(x))
    parts = zip(*(numbers.split(split) for numbers in (x, uniforms, normals, noise(x))), strict=True)
    made = torch.cat([EVERY(x, uniform, normal, share(0.9), white) for x, uniform, normal, white in parts])
    torch.testing.assert_close(made, whole, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("operations", [(), ("blit",), ("geometry",), ("colour",), ("filter",), EVERY.operations])
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1, 9, 33), (1, 3, 64, 20)])
def test_nothing_changes_at_probability_0(operations: tuple[str, ...], shape: tuple[int, ...]) -> None:
    x = pictures(*shape)
    made = Ada(operations)(x, *draws(shape[0]), share(0.0), noise(x))
    torch.testing.assert_close(made, x, rtol=0, atol=ROUNDING)


def test_a_picture_repeats_with_twice_its_side_less_2() -> None:
    """So what comes in from outside is its reflection, however far away."""
    x = pictures(1, 3, 8, 11)
    extended = torch.cat([x, x.flip(3)[..., 1:-1]], 3)  # [1, 3, 8, 20]
    for moved in (-1003, -20, -3, 5, 17, 40):
        made = resample(x, moved_by(moved, 0))
        columns = (torch.arange(11) + moved) % 20
        torch.testing.assert_close(made, extended[..., columns], rtol=0, atol=1e-4)
        upright = resample(x.mT, moved_by(0, moved))
        torch.testing.assert_close(upright.mT, made, rtol=0, atol=ROUNDING)


def test_geometry_of_a_picture_that_is_not_square() -> None:
    """A wave keeps its direction and length, turned by a quarter about the picture's centre."""
    rows, columns = torch.arange(40.0) - 19.5, torch.arange(24.0) - 11.5
    x = torch.sin(rows / 3)[None, None, :, None].expand(1, 1, 40, 24)
    made = resample(x, QUARTER_TURN)
    inside = slice(10, -10)  # near the short sides the reflection comes in
    expected = torch.sin(columns / 3).expand(40, 24)
    torch.testing.assert_close(made[0, 0, inside], expected[inside], rtol=0, atol=0.02)


def test_scale_of_a_wave() -> None:
    at = torch.arange(32.0) - 15.5
    x = torch.cos(at / 4).expand(1, 3, 32, 32)
    doubled = resample(x, scaled_by(0.5, 1))
    torch.testing.assert_close(doubled, torch.cos(at / 8).expand(1, 3, 32, 32), rtol=0, atol=0.02)


def test_matrices_act_from_the_last_to_the_first() -> None:
    point = torch.tensor([1.0, 0.0, 1.0])
    maps = [moved_by(1, 1), QUARTER_TURN, scaled_by(2, 1), scaled_by(3, 1)]
    made = compose(torch.stack(maps, 1))[0] @ point
    assert made.tolist() == [1.0, 7.0, 1.0]  # to (3, 0), to (6, 0), to (0, 6), to (1, 7)


def test_an_operation_acts_with_the_given_probability() -> None:
    """Brightness, whose effect says whether it acted."""
    uniforms, normals = draws(2000)
    grey = torch.zeros(2000, 1, 8, 8)
    changed = (Ada(("colour",))(grey, uniforms, normals, share(0.3)) != 0).flatten(1).all(1)
    assert float(changed.float().mean()) == pytest.approx(0.3, abs=0.03)
    assert bool((Ada(("colour",))(grey, uniforms, normals, share(1.7)) != 0).all())


def test_probability_above_1_is_no_error_of_geometry() -> None:
    x = pictures(3, 3, 8, 8)
    made, at_1 = (EVERY(x, *draws(3), share(p), noise(x)) for p in (1.5, 1.0))
    assert torch.equal(made, at_1)


def test_operations_have_columns_of_their_own() -> None:
    """Leaving one out changes no other's draws: together they are each after the other."""
    x, numbers = pictures(4, 3, 16, 16), draws(4)
    together = Ada(EVERY.operations[1:])(x, *numbers, share(0.8), noise(x))
    for operation in EVERY.operations[1:]:
        x = Ada((operation,))(x, *numbers, share(0.8), noise(x))
    assert torch.equal(together, x)


@pytest.mark.parametrize("column", range(Ada.uniforms + Ada.normals))
def test_every_number_matters(column: int) -> None:
    """At first all operations act."""
    first = torch.full((1, Ada.uniforms + Ada.normals), 0.7)

    def made(value: float) -> Tensor:
        numbers = first.index_fill(1, torch.tensor([column]), value)
        uniforms, normals = numbers.split([Ada.uniforms, Ada.normals], 1)
        x = pictures(1, 3, 16, 16)
        return EVERY(x, uniforms, normals, share(0.95), noise(x))

    assert max(float((made(value) - made(0.7)).abs().max()) for value in (0.2, 0.97)) > 1e-2


@pytest.mark.parametrize("channels", [1, 3])
def test_first_and_second_derivative(channels: int) -> None:
    uniforms, normals = draws(1, torch.float64)
    x = pictures(1, channels, 8, 9, dtype=torch.float64).requires_grad_()

    def made(x: Tensor) -> Tensor:
        return EVERY(x, uniforms, normals, share(0.9), noise(x)).square()

    assert torch.autograd.gradcheck(made, x, fast_mode=True)
    assert torch.autograd.gradgradcheck(made, x, fast_mode=True)


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_runs_on_tensors_without_data(device: str) -> None:
    """With the double backward of R1, on fake tensors and on meta ones: no look at a value anywhere."""
    with FakeTensorMode() if device == "cpu" else nullcontext(), torch.device(device):
        x = torch.rand(2, 3, 16, 16, requires_grad=True)
        uniforms, normals = torch.rand(2, Ada.uniforms), torch.randn(2, Ada.normals)
        made = EVERY(x, uniforms, normals, torch.tensor(0.5), torch.randn(2, 3, 16, 16))
        assert made.shape == x.shape
        weight = torch.rand_like(made, requires_grad=True)
        (gradient,) = torch.autograd.grad((made * weight).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), weight)
        assert second.device.type == device


@pytest.mark.parametrize("side", [8, 22, 40])
def test_bands_of_a_wave(side: int) -> None:
    """The fastest wave is the highest band's, a constant the lowest's; the others leave them alone."""
    normals = torch.tensor([[0.0, 0.0, 0.0, 1.5]])
    fastest, constant = (torch.full((1, 1, side, side), 0.5) * value for value in ((-1.0) ** torch.arange(side), 1.0))
    louder = 2**1.5 / (1 + (2**3 - 1) / 13) ** 0.5
    filtered = [filter_bands(x, torch.zeros(1, 4), normals, share(1.0)) for x in (fastest, constant)]
    quieter = louder / 2**1.5
    torch.testing.assert_close(filtered[0], fastest * louder * quieter, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(filtered[1], constant * quieter**2, rtol=0, atol=ROUNDING)


def test_noise_is_as_strong_as_said_and_everywhere_its_own() -> None:
    x, strength = torch.zeros(2, 3, 64, 64), torch.tensor([[2.0], [-0.5]])
    made = add_noise(x, torch.zeros(2, 1), strength, noise(x), share(1.0))
    assert made.std((1, 2, 3)).tolist() == pytest.approx([0.2, 0.05], rel=0.05)
    assert not torch.allclose(made[:, 0], made[:, 1])


def test_a_cut_out_square() -> None:
    """A quarter of a picture's area where it lies inside; the column comes first."""
    made = cut_out(torch.ones(1, 3, 16, 8), torch.tensor([[0.5, 0.25, 0.0]]), share(1.0))
    expected = torch.ones(16, 8)
    expected[0:8, 2:6] = 0
    assert torch.equal(made, expected.expand(1, 3, 16, 8))
