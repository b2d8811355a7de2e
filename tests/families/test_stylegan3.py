"""StyleGAN3: what moves in which phase, the blur that fades, and networks beside those of other sizes."""

from dataclasses import replace

import pytest
import torch

from contract.rig import Rig
from frugan.families.stylegan3.config import StyleGAN3Networks, StyleGAN3Objective
from frugan.families.stylegan3.family import StyleGAN3Family
from frugan.families.stylegan3.networks import FourierInput
from frugan.families.stylegan3.phases import BLURRED, blurred

FAMILY = StyleGAN3Family()


def test_averages_move_in_the_discriminators_phase_alone() -> None:
    rig = Rig.create(FAMILY, batch=4)
    whole = rig.step
    averages = {
        name: buffer
        for name, buffer in rig.state.networks["G"].named_buffers()
        if name.endswith(("w_avg", "magnitude_ema"))
    }
    assert len(averages) == 1 + 4  # of styles, and of each layer's inputs
    moved = {}
    for phase in rig.phases:
        before = {name: buffer.clone() for name, buffer in averages.items()}
        replace(whole, phases=(phase,)).run(rig.state, rig.plan)
        rig.state.step = 0  # so that every phase is due
        moved[phase.name] = {name for name, buffer in averages.items() if not torch.equal(buffer, before[name])}
    assert moved == {"G": set(), "D": set(averages), "D_r1": set()}


@pytest.mark.parametrize(("deviation", "most"), [(2.0, 6), (1.3, 6), (0.7, 2)])
def test_the_blur_is_the_papers(deviation: float, most: int) -> None:
    """Taps 2^-(i/deviation)² up to 3 deviations away, in both directions, with zeros beside the picture."""
    pictures = torch.rand(2, 3, 16, 16, dtype=torch.float64) * 2 - 1
    reach = int(3 * deviation)
    taps = [2 ** -((i / deviation) ** 2) for i in range(-reach, reach + 1)]
    expected = torch.zeros_like(pictures)
    padded = torch.nn.functional.pad(pictures, (reach,) * 4)
    for y, down in enumerate(taps):
        for x, across in enumerate(taps):
            expected += down * across / sum(taps) ** 2 * padded[:, :, y : y + 16, x : x + 16]
    torch.testing.assert_close(blurred(pictures, torch.tensor(deviation, dtype=torch.float64), most), expected)


def test_a_blur_that_has_faded_changes_nothing() -> None:
    pictures = torch.rand(2, 3, 16, 16)
    assert torch.equal(blurred(pictures, torch.tensor(0.0), 6), pictures)


def test_the_blur_fades_by_the_images_that_were_seen() -> None:
    networks, objective = FAMILY.tiny()
    rig = Rig.create(FAMILY, networks=networks, objective=objective, batch=4)
    rig.run(3)
    assert rig.state.carried[BLURRED].item() == 3 * 4


def test_without_a_blur_nothing_is_carried() -> None:
    networks, _ = FAMILY.tiny()
    for phase in FAMILY.phases(networks, StyleGAN3Objective()):
        assert BLURRED not in phase.carried
        assert phase.name in ("G", "D", "D_r1")


def test_first_frequencies_fill_the_disc_up_to_the_cutoff() -> None:
    networks = StyleGAN3Networks(resolution=32, generator_channel_base=2**20, generator_channel_max=4096)
    first = FourierInput(8, networks.first_signal)
    first.initialise(torch.Generator().manual_seed(0))
    radius = first.freqs.norm(dim=1)
    assert radius.max() <= 2
    # uniform in the disc: a quarter of it lies within half of the radius
    assert ((radius < 1).float().mean() - 0.25).abs() < 0.03
    assert first.freqs.mean(0).abs().max() < 0.1
    assert first.phases.abs().max() <= 0.5
    assert (first.phases.std() - 12**-0.5).abs() < 0.02


def test_waves_beyond_the_band_fade_out() -> None:
    """From 1 at the cut-off of 2 to 0 at half the sampling rate of 16, when a transform makes pictures smaller."""
    networks = StyleGAN3Networks(resolution=32, generator_channel_base=64, generator_channel_max=3)
    first = FourierInput(8, networks.first_signal)
    first.freqs.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.2, 1.6]]))
    with torch.no_grad():
        first.weight.copy_(torch.eye(3) * 3**0.5)
    at = (torch.arange(36) + 0.5 - 18) / 16  # in pictures, from the middle
    for scale, faded in {1.0: (1, 1, 1), 2.5: (0.5, 11 / 12, 0.5), 5.0: (0, 0.5, 0)}.items():
        first.transform.copy_(torch.diag(torch.tensor([scale, scale, 1.0])))
        waves = first(torch.tensor([[5.0, 0.0, 0.0, 0.0]]))[0]  # no rotation, whatever its length
        for wave, (x, y), share in zip(waves, first.freqs, faded, strict=True):
            whole = torch.sin(2 * torch.pi * scale * (x * at + y * at[:, None]))
            torch.testing.assert_close(wave, whole * share, rtol=0, atol=1e-4)


def test_a_layer_starts_from_the_one_of_its_number_at_another_resolution() -> None:
    ours, theirs = (StyleGAN3Networks(resolution=resolution) for resolution in (256, 512))
    there = f"G.synthesis.{theirs.layer_shapes[7].name}.affine.weight"
    assert FAMILY.counterpart(there, theirs, ours) == f"G.synthesis.{ours.layer_shapes[7].name}.affine.weight"
    assert FAMILY.counterpart("G.mapping.fc0.weight", theirs, ours) == "G.mapping.fc0.weight"
    deeper = theirs.model_copy(update={"layers": 16})
    assert FAMILY.counterpart(there, deeper, ours) is None
    piece = FAMILY.piece_of("G.synthesis.L5_84_512.affine.weight")
    assert piece is not None
    assert (piece.network, piece.block) == ("G", "L5")
    assert FAMILY.piece_of("G.synthesis.L5_84_512.up_filter") is None


def test_sizes_for_the_planner_are_networks() -> None:
    networks = StyleGAN3Networks(resolution=256)
    for variants in FAMILY.variants(networks).values():
        made = [networks.model_validate({**networks.model_dump(), **fields}) for fields in variants]
        assert networks in made
        shapes = [network.layer_shapes for network in made]
        costs = [sum(layer.output.channels * layer.output.size**2 for layer in layers) for layers in shapes]
        assert costs == sorted(costs)
