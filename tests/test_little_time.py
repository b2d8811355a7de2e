"""What benchmarks/little_time.py puts in the place of frugan's own: at first the same, and gone afterwards."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from frugan.families.biggan import phases
from frugan.families.biggan.config import BigGANNetworks
from frugan.families.biggan.family import BigGANFamily

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
NETWORKS = BigGANNetworks(
    resolution=32,
    classes=3,
    generator_channels=2,
    discriminator_channels=2,
    latent_size=8,
    shared_embedding=4,
    generator_attention=(),
    discriminator_attention=(),
    spectral_norm=False,
)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("little_time")


def _built(family: BigGANFamily) -> dict[str, Any]:
    built = family.build(NETWORKS)
    family.initialise(NETWORKS, built, len)
    return built


def test_what_is_added_has_no_effect_at_first(program: Any) -> None:
    plain = _built(BigGANFamily())
    with program.Variant(heads=0.5, excited=True).in_place(program.Features().eval()):
        more = _built(BigGANFamily())
    for name, network in plain.items():
        assert more[name].load_state_dict(network.state_dict(), strict=False).unexpected_keys == []
    z, classes = torch.randn(2, plain["G"].latent_size), torch.tensor([0, 2])
    pictures = [networks["G"](z, networks["G"].embed(classes)) for networks in (plain, more)]
    assert torch.equal(*pictures)
    assert torch.equal(plain["D"](pictures[0], classes), more["D"](pictures[0], classes))
    assert [len(of_head[0]) for of_head in more["D"].by_heads(pictures[0], classes)] == [16**2, 8**2, 4**2]


def test_gates_see_the_first_map(program: Any) -> None:
    with program.Variant(excited=True).in_place(None):
        generator = _built(BigGANFamily())["G"]
    z, classes = torch.randn(2, generator.latent_size), torch.tensor([0, 2])
    before = generator(z, generator.embed(classes))
    torch.nn.init.ones_(generator.excite[0][2].weight)
    assert not torch.equal(generator(z, generator.embed(classes)), before)


def test_a_variant_is_gone_afterwards(program: Any) -> None:
    game, kinds = phases._PairedGame, (BigGANFamily.generator_type, BigGANFamily.discriminator_type)
    start = BigGANFamily.initialise
    with program.Variant(heads=0.5, excited=True).in_place(program.Features()):
        assert phases._PairedGame is not game
    assert (phases._PairedGame, BigGANFamily.initialise) == (game, start)
    assert (BigGANFamily.generator_type, BigGANFamily.discriminator_type) == kinds


def test_heads_need_features(program: Any) -> None:
    with pytest.raises(SystemExit, match="--features"), program.VARIANTS["heads beside D"].in_place(None):
        pass
