"""BigGAN: what its phases do to masters besides their losses."""

from collections.abc import Iterator
from typing import cast, get_args

import pytest
import torch
from torch import nn

from frugan.contract.family import GridRequest
from frugan.engine.state.working_weights import prepared
from frugan.families import family
from frugan.families.biggan.config import BigGANObjective
from frugan.families.biggan.networks import Generator
from frugan.nn.spectral_norm import SpectralNorm
from frugan.objectives import ADVERSARIAL_LOSSES, add_orthogonal_gradient


def test_the_shared_embedding_is_exempt_from_orthogonal_regularisation() -> None:
    """As in the paper: rows of the embedding are classes, and need not be at right angles."""
    biggan = family("biggan")
    config, objective = biggan.tiny()
    strict = objective.model_copy(update={"generator_orthogonality": 0.5, "discriminator_orthogonality": 0.5})
    networks = biggan.build(config)
    for network in networks.values():
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
    for phase in biggan.phases(config, strict):
        assert phase.grad_hook is not None
        phase.grad_hook(networks)
    shared = networks["G"].get_parameter("shared.weight")
    regularised = {f"{n}.{name}": p for n, of in networks.items() for name, p in of.named_parameters() if p.ndim > 1}
    still = {name for name, p in regularised.items() if p.grad is not None and not p.grad.any()}
    alone = {name for name, p in regularised.items() if len(p) == 1}  # one row is at right angles to no other
    assert still - alone == {"G.shared.weight"}
    add_orthogonal_gradient([shared], 0.5)
    assert shared.grad is not None
    assert shared.grad.any()  # or nothing was shown


def test_orthogonal_regularisation_is_off_by_default() -> None:
    biggan = family("biggan")
    assert [phase.grad_hook for phase in biggan.phases(*biggan.tiny())] == [None, None]


@pytest.mark.parametrize("architecture", ["biggan", "biggan-deep"])
def test_without_spectral_norm_weights_are_taken_as_they_are(architecture: str) -> None:
    biggan = family("biggan")
    config, _ = biggan.tiny()
    config = config.model_copy(update={"architecture": architecture})
    divided = biggan.build(config)
    plain = biggan.build(config.model_copy(update={"spectral_norm": False}))
    z, classes = torch.randn(2, config.latent_size), torch.tensor([0, 1])
    with prepared(divided["G"]), prepared(divided["D"]):
        for name, network in divided.items():
            assert not any(key.endswith(("u0", "sv0")) for key in plain[name].state_dict())
            values = {key: value for key, value in network.state_dict().items() if key in plain[name].state_dict()}
            plain[name].load_state_dict(values | dict(_weights(network)))
            assert all(torch.equal(plain[name].get_parameter(key), weight) for key, weight in _weights(network))
        expected = divided["D"](_picture(divided["G"], z, classes), classes)
    with prepared(plain["G"]), prepared(plain["D"]):
        torch.testing.assert_close(plain["D"](_picture(plain["G"], z, classes), classes), expected)


def _weights(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What its layers compute with."""
    for name, layer in network.named_modules():
        if isinstance(layer, SpectralNorm):
            yield f"{name}.weight", layer.weight.detach()


def _picture(generator: nn.Module, z: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    generator = cast(Generator, generator)
    return cast(torch.Tensor, generator(z, generator.embed(classes)))


def test_truncation_shortens_latents() -> None:
    biggan = family("biggan")
    networks, _ = biggan.tiny()
    built = biggan.build(networks)
    with prepared(built["G"]):
        spread = [
            biggan.sample(networks, built, GridRequest(classes=(0,), columns=2, truncation=truncation))
            for truncation in (1.0, 1e-3)
        ]
    far, near = (float((grid[0, 0] - grid[0, 1]).abs().max()) for grid in spread)
    assert near < 0.05 * far


def test_every_loss_that_a_recipe_may_name_is_there() -> None:
    names = get_args(BigGANObjective.model_fields["loss"].annotation)
    assert set(names) == {*ADVERSARIAL_LOSSES, "relativistic"}  # which is on pairs, a game of its own
