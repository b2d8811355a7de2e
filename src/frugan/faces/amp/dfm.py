"""DFM files of AMP: what DeepFaceLive swaps faces with by a slider. Source: the behaviour of DeepFaceLab's export."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from frugan.contract.phase import Networks
from frugan.faces.amp.config import AMPNetworks
from frugan.faces.amp.family import MORPHS, AMPFamily
from frugan.faces.amp.networks import ARCHI, AUTOENCODER, decode, dst_code, encode, morphed_code
from frugan.faces.saehd.dfm import CELEB_FACE, CELEB_FACE_MASK, FACE_MASK, Array, Dfm, FaceGraph, Nodes, Swap

MORPH = "morph_value:0"
"""Name of the second input, by which DeepFaceLive knows that there is a slider."""


class MorphGraph(FaceGraph):
    """Adds AMP's nodes from both inputs to the three outputs."""

    title = "AMP"
    more_inputs = MappingProxyType({MORPH: (1,)})

    def __init__(self, nodes: Nodes, config: AMPNetworks) -> None:
        super().__init__(nodes, config, ARCHI)

    def build(self) -> None:
        """[B, R, R, 3] in [0, 1] and the morph [1] -> masks [B, R, R, 1] and the face [B, R, R, 3], in [0, 1]."""
        channels = self.config.inter_dims
        vector = self._narrow("encoder", self._encoder())
        src, dst = (self._code(network, vector, channels) for network in ("inter_src", "inter_dst"))
        code = self.nodes.working(self._mixed(src, dst))
        self._mask("decoder", self.nodes.working(dst), channels, FACE_MASK)
        self._face("decoder", code, channels, CELEB_FACE)
        self._mask("decoder", code, channels, CELEB_FACE_MASK)

    def _mixed(self, src: str, dst: str) -> str:
        """The first channels of one code, the others of the other. [B, I, S, S].

        They are chosen, and not cut and joined as in the original's graph, which has maps of unknown sizes so: the
        values are the same from 0 to 1, and beyond them those of 0 and of 1.
        """
        channels = self.config.inter_dims
        numbers = np.arange(channels, dtype=np.float32)[:, None, None]  # [I, 1, 1]
        share = self.nodes.add("Mul", MORPH, self.nodes.constant("channels", np.array([channels], np.float32)))
        first = self.nodes.add("Floor", share)  # [1]
        is_src = self.nodes.add("Less", self.nodes.constant("channel_numbers", numbers), first)
        return self.nodes.add("Where", is_src, src, dst)


class DfmAMP(Dfm):
    """DeepFaceLive's files of AMP, with its slider."""

    program = "a file for DeepFaceLive, of AMP"
    takes = AMPNetworks
    families = "AMP"
    graph = MorphGraph

    def build(self, config: Any) -> Networks:
        """Make the networks that go into the file."""
        built = AMPFamily().build(config)
        return {name: built[name] for name in AUTOENCODER}

    def swaps(self, config: Any, networks: Networks, faces: Tensor) -> Iterator[tuple[Mapping[str, Array], Swap]]:
        """Compute at the morphs of the previews, and at the destination itself."""
        vectors = encode(networks, faces)
        _, mask = decode(networks, dst_code(networks, vectors))
        for morph in (0.0, *MORPHS):
            face, face_mask = decode(networks, morphed_code(networks, vectors, morph))
            yield {MORPH: np.array([morph], np.float32)}, (mask, face, face_mask)
