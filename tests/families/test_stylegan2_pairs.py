"""StyleGAN2's relativistic game: a generated picture stands beside a real one of its class."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugan.contract.phase import MicroBatch, Phase, PhaseState
from frugan.engine.state.working_weights import prepared
from frugan.families.stylegan2.config import StyleGAN2Networks, StyleGAN2Objective
from frugan.families.stylegan2.family import StyleGAN2Family
from frugan.families.stylegan2.networks import noise_size
from frugan.families.stylegan2.phases import phases
from frugan.objectives import relativistic

LABELS = torch.tensor([2, 0, 1, 2])
COUNT = len(LABELS)


@dataclass(frozen=True)
class Game:
    """A game's networks and phases, by name."""

    config: StyleGAN2Networks
    networks: dict[str, nn.Module]
    phases: dict[str, Phase]


def game(loss: str) -> Game:
    family = StyleGAN2Family()
    tiny, _ = family.tiny()
    config = tiny.model_copy(update={"classes": 3, "minibatch_std_channels": 0})
    objective = StyleGAN2Objective.model_validate({"loss": loss, "style_mixing": 0})
    networks = family.build(config)
    family.initialise(config, networks, lambda name: 3)
    return Game(config, networks, {phase.name: phase for phase in phases(config, objective)})


def test_pairs_are_of_one_class() -> None:
    """Terms by hand: the generator draws the classes of the real pictures, and differences of pairs are judged."""
    played = game("relativistic")
    random = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (COUNT, 3, 16, 16), generator=random, dtype=torch.uint8)
    draws = {
        "z": torch.randn(COUNT, played.config.latent_size, generator=random),
        "noise": torch.randn(COUNT, noise_size(played.config.sides), generator=random),
    }
    micro = MicroBatch({"images": {"pictures": pictures, "labels": LABELS}}, draws, COUNT)
    g, d = played.networks["G"], played.networks["D"]
    with prepared(g), prepared(d), torch.no_grad():
        terms = {
            name: part(played.networks, micro, PhaseState({}, torch.ones(())))
            for name in ("G", "D")
            for part in played.phases[name].parts
        }

        def outputs(classes: Tensor) -> tuple[Tensor, Tensor]:
            styles = g.broadcast(g.mapping(draws["z"], classes))  # type: ignore[operator]
            fake = g.synthesis(styles, draws["noise"])  # type: ignore[operator]
            return d(pictures.float() / 127.5 - 1, LABELS), d(fake, LABELS)

        real, fake = outputs(LABELS)
        torch.testing.assert_close(terms["D"]["relativistic"], relativistic(real, fake))
        torch.testing.assert_close(terms["G"]["adversarial"], relativistic(fake, real))
        real, fake = outputs(LABELS.flip(0))  # other classes would be noticed
        assert abs(float(terms["D"]["relativistic"] - relativistic(real, fake))) > 1e-4


def test_it_draws_no_classes_but_for_path_lengths() -> None:
    paired, alone = game("relativistic").phases, game("non-saturating").phases
    assert {name for name, phase in paired.items() if "y" in phase.draws} == {"G_path"}
    assert {name for name, phase in alone.items() if "y" in phase.draws} == {"G", "G_path", "D"}
    assert {name for name, phase in paired.items() if phase.sources} == {"G", "D", "D_r1"}
    assert len(paired["D"].parts) == 1  # both pictures of a pair at once
