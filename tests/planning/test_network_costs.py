"""What a network's forward costs, against hand counts and the reference's sizes."""

import math
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frugan.contract.layers import Observer
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import make_callable, working_weights
from frugan.families.biggan.config import BigGANNetworks
from frugan.families.biggan.family import BigGANFamily
from frugan.families.biggan.networks import Generator
from frugan.nn.spectral_norm import SpectralNorm, stackable
from frugan.planning.network_costs import Cost, arithmetic_intensity, bound_by, network_cost
from frugan.stepmemory.work import MacCounter, SavedActivations, TrafficCounter

CIFAR = BigGANNetworks(
    resolution=32,
    classes=10,
    generator_channels=64,
    discriminator_channels=64,
    latent_size=128,
    shared_embedding=None,
    hierarchical_latent=False,
    generator_attention=(),
    discriminator_attention=(),
)


def run_generator(network: nn.Module, samples: int) -> object:
    """One forward of a generator."""
    generator = cast(Generator, network)
    return generator(torch.zeros(samples, generator.latent_size), generator.embed(torch.zeros(samples).long()))


def run_discriminator(side: int, network: nn.Module, samples: int) -> object:
    """One forward of a discriminator."""
    return network(torch.zeros(samples, 3, side, side), torch.zeros(samples, dtype=torch.int64))


class Small(nn.Module):
    """A convolution, a ReLU, and a linear layer, for counts by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.linear = nn.Linear(4 * 6 * 6, 5)

    def forward(self, x: Tensor) -> Tensor:
        """[B, 2, 6, 6] -> [B, 5]."""
        return self.linear(F.relu(self.convolution(x)).flatten(1))  # type: ignore[no-any-return]


def run_small(network: nn.Module, samples: int) -> object:
    return network(torch.empty(samples, 2, 6, 6))


def test_counts_of_a_small_network_are_those_by_hand() -> None:
    cost = network_cost(Small(), run_small)
    pixels, features = 36, 144
    assert cost.parameters == 2 * 4 * 9 + 4 + features * 5 + 5
    assert cost.per_sample.macs == pixels * 2 * 4 * 9 + features * 5
    # Convolution: 72 in, 144 out; ReLU: 144 in, 144 out; flatten is a view; linear: 144 in, 5 out.
    assert cost.per_sample.bytes_moved == 4 * (72 + 144 + 144 + 144 + 144 + 5)
    # Kept: the convolution's input, and the ReLU's output, which the linear layer keeps too.
    assert cost.per_sample.saved_activation_bytes == 4 * (72 + 144)
    assert cost.per_call == Cost(macs=0, bytes_moved=4 * cost.parameters, saved_activation_bytes=0)
    assert cost.at(3).macs == 3 * cost.per_sample.macs


def test_half_precision_halves_traffic_and_activations() -> None:
    def run(network: nn.Module, samples: int) -> object:
        return network(torch.empty(samples, 2, 6, 6, dtype=torch.bfloat16))

    full = network_cost(Small(), run_small)
    half = network_cost(Small(), run, layout=Layout(torch.bfloat16))
    assert half.per_sample.bytes_moved * 2 == full.per_sample.bytes_moved
    assert half.per_sample.saved_activation_bytes * 2 == full.per_sample.saved_activation_bytes
    assert half.per_sample.macs == full.per_sample.macs


def test_a_copy_that_a_memory_format_forces_is_counted() -> None:
    plain, last = (network_cost(Small(), run_small, layout=Layout(channels_last=c)) for c in (False, True))
    # `flatten` of a channels-last tensor is no view: 144 values read and written, and the copy is kept.
    assert last.per_sample.bytes_moved - plain.per_sample.bytes_moved >= 4 * 2 * 144
    assert last.per_sample.saved_activation_bytes - plain.per_sample.saved_activation_bytes == 4 * 144


def test_products_that_torch_leaves_out_are_counted() -> None:
    query, key = torch.randn(2, 1, 64, 16), torch.randn(2, 1, 16, 16)
    for device in ("cpu", "meta"):  # the fused kernel, and two matrix products
        with MacCounter() as counter:
            F.scaled_dot_product_attention(query.to(device), key.to(device), key.to(device), scale=1.0)
        assert counter.macs() == 2 * 64 * 16 * (16 + 16)
    with MacCounter() as counter:
        torch.mv(torch.randn(3, 4), torch.randn(4))
    assert counter.macs() == 12


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_grouped_convolutions_backward_takes_twice_its_forward(groups: int, transposed: bool) -> None:
    make = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = make(4, 8, 3, stride=2, padding=1, groups=groups)
    x = torch.randn(2, 4, 9, 7)
    with MacCounter() as forward:
        made = layer(x)
    with MacCounter() as weights_alone:
        made.sum().backward()
    made = layer(x.requires_grad_())
    with MacCounter() as both:
        made.sum().backward()
    small = x if transposed else made
    assert forward.macs() == 2 * small[0, 0].numel() * layer.weight.numel()
    assert weights_alone.macs() == forward.macs()
    assert both.macs() == 2 * forward.macs()


def test_views_allocations_and_expanded_dimensions_are_free() -> None:
    x = torch.zeros(4, 6)
    with TrafficCounter() as traffic:
        torch.ops.aten._unsafe_view(x.view(24).view(4, 6).transpose(0, 1).detach(), [6, 4])
        torch.empty(100)
        torch.empty_like(x)
    assert traffic.bytes_moved == 0
    with TrafficCounter() as traffic:
        x.relu_()
    assert traffic.bytes_moved == 4 * (24 + 24)
    with TrafficCounter() as traffic:
        torch.add(x, torch.zeros(6).expand(4, 6))
    assert traffic.bytes_moved == 4 * (6 + 24 + 6 + 24)  # zeros written, then both read and the sum written


# Reference section 17, in GFLOP (two per MAC): marginal per picture, and spectral norm per call.
# 128 pixels: the release runs the generator's 1x1 skip convolution after upsampling, the discriminator's (but for the
# first block's) before pooling; ours run where there are a quarter of the positions, which saves 3/4 of them.
#   G: 0.75 * (1536*1536*8² + 1536*768*16² + 768*384*32² + 384*192*64² + 192*96*128²) = 1,019.2 MMAC fewer
#   D: 0.75 * (96*192*64² + 192*384*32² + 384*768*16² + 768*1536*8²)                  =   226.5 MMAC fewer
# Attention on 4,096 queries and 1,024 keys pads q and k from C/8 to C/2 (as it is faster so), and all that runs counts:
#   G: 4096*1024*(96 - 24) = 302.0 MMAC more (C = 192)      D: 4096*1024*(48 - 12) = 151.0 MMAC more (C = 96)
# The last upsampled convolutions take 4 products where the release takes 9 (nn/upsampled_conv):
#   G: 5 * (384*192*64² + 192*96*128²) = 3,019.9 MMAC fewer
# A mean of 2x2 after a 3x3 convolution of a large picture is folded into it: 4 products where the release takes 9.
#   D: 5 * (96*96*128² + 192*192*64²) = 1,509.9 MMAC fewer
# Spectral norm: the release multiplies three times, ours finds the third product from the second. Small weights in a
# stack are multiplied by as many vectors as it has weights.
# 32 pixels: no attention. G: 0.75 * 256*256*(8² + 16² + 32²) fewer. D: 0.75 * 256*256*16² fewer (its first block pools
# first in the release too, and the two blocks at 8 pixels do not pool).
M = 1024 * 4096
UP_G128, UP_G32 = 5 * (384 * 192 * 64**2 + 192 * 96 * 128**2), 5 * 256**2 * 32**2
FOLD_D128, FOLD_D32 = 5 * (96**2 * 128**2 + 192**2 * 64**2), 5 * 256**2 * 32**2
SKIP_G128 = 3 * (1536 * 1536 * 8**2 + 1536 * 768 * 16**2 * 4) // 4
SKIP_D128 = 3 * (96 * 192 * 64**2 * 4) // 4
SKIP_G32, SKIP_D32 = 3 * 256**2 * (8**2 + 16**2 + 32**2) // 4, 3 * 256**2 * 16**2 // 4


@pytest.mark.parametrize(
    ("config", "name", "gflop", "fewer", "norm_gflop"),
    [
        pytest.param(
            BigGANNetworks(), "G", 42.243, SKIP_G128 + UP_G128 - M * (96 - 24), 0.4217, marks=pytest.mark.long
        ),
        pytest.param(
            BigGANNetworks(), "D", 21.673, SKIP_D128 + FOLD_D128 - M * (48 - 12), 0.5278, marks=pytest.mark.long
        ),
        (CIFAR, "G", 3.362, SKIP_G32 + UP_G32, 0.0256),
        (CIFAR, "D", 2.162, SKIP_D32 + FOLD_D32, 0.0252),
    ],
)
def test_biggan_costs_what_the_reference_says(
    config: BigGANNetworks, name: str, gflop: float, fewer: int, norm_gflop: float
) -> None:
    network = BigGANFamily().build(config, "meta")[name]
    side = config.resolution
    cost = network_cost(network, run_generator if name == "G" else lambda n, b: run_discriminator(side, n, b))
    assert 2e-9 * (cost.per_sample.macs + fewer) == pytest.approx(gflop, abs=6e-4)
    weights = [module.weight for module in network.modules() if isinstance(module, SpectralNorm)]
    stacked = sum(  # two products with all vectors, and one that gives each row its weight's divisor
        2 * (len(places) - 1) * weights[i].numel() + len(places) * len(weights[i])
        for places in stackable(weights)
        for i in places
    )
    assert 2e-9 * (cost.per_call.macs - stacked) == pytest.approx(2 / 3 * norm_gflop, abs=6e-5)
    assert cost.parameters == sum(p.numel() for p in network.parameters())
    whole = cost.per_sample.macs + BigGANFamily().spared_macs(config)[name]
    assert 2e-9 * whole == pytest.approx(gflop + norm_gflop, abs=6e-4)


@pytest.mark.long
def test_saved_activations_are_those_of_a_real_forward() -> None:
    networks, _ = BigGANFamily().tiny()
    generator = BigGANFamily().build(networks)["G"].train()
    expected = network_cost(generator, run_generator).at(4).saved_activation_bytes
    masters = (*generator.parameters(), *generator.buffers())
    with working_weights({"G": generator}, {"G": Layout()}, ("G",), Observer()):
        counter = SavedActivations((*masters, *generator.parameters()))
        with counter.watch():
            run_generator(generator, 4)
    assert counter.saved_bytes == expected


@pytest.mark.long
def test_a_loaded_network_is_left_as_it_is() -> None:
    networks, _ = BigGANFamily().tiny()
    generator = make_callable(BigGANFamily().build(networks)["G"].train())
    before = {name: tensor.clone() for name, tensor in generator.state_dict().items()}
    on_meta = BigGANFamily().build(networks, "meta")["G"]
    assert network_cost(generator, run_generator) == network_cost(on_meta, run_generator)
    assert generator.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in generator.state_dict().items())


@pytest.mark.long
def test_groups_are_respected() -> None:
    networks, _ = BigGANFamily().tiny()
    discriminator = BigGANFamily().build(networks, "meta")["D"]
    ones = network_cost(discriminator, lambda n, b: run_discriminator(32, n, b))
    fours = network_cost(discriminator, lambda n, b: run_discriminator(32, n, b), batch=4)
    assert ones == fours
    with pytest.raises(ValueError, match="at least one sample"):
        network_cost(discriminator, run_generator, batch=0)


def test_roofline() -> None:
    assert arithmetic_intensity(10, 4) == 2.5
    assert arithmetic_intensity(10, 0) == math.inf
    assert bound_by(100, 10, peak_macs_per_s=50, bytes_per_s=10) == "compute"
    assert bound_by(100, 10, peak_macs_per_s=200, bytes_per_s=10) == "memory"
    with pytest.raises(ValueError, match="above 0"):
        bound_by(1, 1, 0, 1)
