"""Quick96's training step: one phase, of which every third step sees the faces of the step before as they are.

Source: DeepFaceLab's behaviour.
"""

from collections.abc import Mapping
from typing import cast

from torch import Tensor

from frugan.contract.phase import MicroBatch, Networks, Part, Phase, PhaseState, Replay, Terms
from frugan.faces.quick96.config import ARCHI
from frugan.faces.saehd.config import SAEHDObjective
from frugan.faces.saehd.networks import Decoder, Side, code_of, decode, decoder_name, encode, network_names
from frugan.faces.saehd.phases import FaceTargets, reconstruction
from frugan.objectives import gaussian_blur

AUTOENCODER = "autoencoder"
BLUR = 3
"""Sigma of the mask's blur in pixels. Where SAEHD clips and doubles what comes of it, this is taken as it is."""
MASKED = SAEHDObjective(masked_training=True)
REPLAY_EVERY = 3


def unwarped(pictures: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Replace the bent faces, from which the networks draw, by the straight ones, which they shall draw."""
    return {**pictures, "warped": pictures["target"]}


def _of_side(side: Side) -> Part:
    def loss(networks: Networks, micro: MicroBatch, _: PhaseState) -> Terms:
        faces = micro.pictures[side]
        targets = FaceTargets(faces["target"], faces["mask"], gaussian_blur(faces["mask"], BLUR), None)
        codes = code_of(ARCHI, networks, encode(networks, faces["warped"]), side)
        picture, mask = decode(ARCHI, networks, codes, side)
        ops = cast(Decoder, networks[decoder_name(ARCHI, side)]).ops
        return reconstruction(side, targets, picture, mask, MASKED, ops)

    return loss


def phases() -> tuple[Phase, ...]:
    """Return the one phase "autoencoder"."""
    names = network_names(ARCHI)
    return (
        Phase(
            name=AUTOENCODER,
            updates=names,
            uses=names,
            optimizer=AUTOENCODER,
            parts=(_of_side("src"), _of_side("dst")),
            sources=("src", "dst"),
            sums_over_batch=True,
            replay=Replay(REPLAY_EVERY, unwarped),
        ),
    )
