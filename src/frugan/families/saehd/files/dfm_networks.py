"""SAEHD's networks as an ONNX graph: a destination's face in, the swapped face and two masks out.

Source: the behaviour of DeepFaceLab's networks and of its own export.
"""

import numpy as np

from frugan.families.saehd.config import SAEHDNetworks
from frugan.families.saehd.files.onnx_nodes import Nodes

INPUT = "in_face:0"
FACE_MASK, CELEB_FACE, CELEB_FACE_MASK = OUTPUTS = ("out_face_mask:0", "out_celeb_face:0", "out_celeb_face_mask:0")
"""Names and order are the original's; DeepFaceLive asks for the input by name and takes the outputs by position."""


class SwapGraph:
    """Adds the networks' nodes from the input to the three outputs.

    Args:
        nodes: where they are added.
        config: which ones.
    """

    def __init__(self, nodes: Nodes, config: SAEHDNetworks) -> None:
        self.nodes = nodes
        self.config = config
        self.archi = config.letters
        self.code_channels = config.ae_dims * (1 if self.archi.kind == "df" else 2)
        """Of what an inter network makes."""
        self.decoder_widths = (8, 8, 4, 2) if self.archi.deeper else (8, 4, 2)
        """Channels of the decoder's levels, in units of d_dims or d_mask_dims."""

    def build(self) -> None:
        """[B, R, R, 3] in [0, 1] -> masks [B, R, R, 1] and the face [B, R, R, 3], in [0, 1]."""
        vector = self._encoder()
        if self.archi.kind == "df":
            swap = own = self._inter("inter", vector)
            swap_decoder, own_decoder, width = "decoder_src", "decoder_dst", self.code_channels
        else:
            shared = self._inter("inter_AB", vector)
            own = self.nodes.add("Concat", self._inter("inter_B", vector), shared, axis=1)
            swap = self.nodes.add("Concat", shared, shared, axis=1)
            swap_decoder = own_decoder = "decoder"
            width = 2 * self.code_channels
        self._mask(own_decoder, own, width, FACE_MASK)
        self._face(swap_decoder, swap, width, CELEB_FACE)
        self._mask(swap_decoder, swap, width, CELEB_FACE_MASK)

    def _encoder(self) -> str:
        """[B, R, R, 3] -> vectors [B, features] in float32."""
        e = self.config.e_dims
        x = self.nodes.working(self.nodes.add("Transpose", INPUT, perm=[0, 3, 1, 2]))
        if self.archi.deeper:
            x = self._downscale(x, "encoder.down1", 3, e)
            x = self._residual(x, "encoder.res1", e)
            for i, (before, after) in enumerate(((e, 2 * e), (2 * e, 4 * e), (4 * e, 8 * e), (8 * e, 8 * e)), 2):
                x = self._downscale(x, f"encoder.down{i}", before, after)
            x = self._residual(x, "encoder.res5", 8 * e)
        else:
            for i, (before, after) in enumerate(((3, e), (e, 2 * e), (2 * e, 4 * e), (4 * e, 8 * e))):
                x = self._downscale(x, f"encoder.down1.downs.{i}", before, after)
        flat = self.nodes.exact(self.nodes.reshape(x, [self._features]))
        return self._pixel_norm(flat) if self.archi.normalised else flat

    @property
    def _features(self) -> int:
        return 8 * self.config.e_dims * self.archi.encoded_side(self.config.resolution) ** 2

    def _pixel_norm(self, x: str) -> str:
        """Scale each vector to unit root mean square; in float32, as in training. [B, features]."""
        mean = self.nodes.add("ReduceMean", self.nodes.add("Mul", x, x), axes=[1], keepdims=1)
        epsilon = self.nodes.constant("epsilon", np.array(1e-6, np.float32))
        return self.nodes.add("Div", x, self.nodes.add("Sqrt", self.nodes.add("Add", mean, epsilon)))

    def _inter(self, network: str, vector: str) -> str:
        """Vectors [B, features] -> codes [B, code_channels, S, S]."""
        channels, side = self.code_channels, self.archi.dense_side(self.config.resolution)
        narrow = self.nodes.dense(vector, f"{network}.dense1", (self._features, self.config.ae_dims))
        wide = self.nodes.dense(narrow, f"{network}.dense2", (self.config.ae_dims, channels * side**2))
        x = self.nodes.working(self.nodes.reshape(wide, [channels, side, side]))
        return x if self.archi.deeper else self._upscale(x, f"{network}.upscale1", channels, channels)

    def _face(self, decoder: str, code: str, width: int, output: str) -> None:
        """Codes [B, width, S, S] -> faces [B, R, R, 3]."""
        x = code
        for i, multiplier in enumerate(self.decoder_widths):
            after = multiplier * self.config.d_dims
            x = self._upscale(x, f"{decoder}.upscale{i}", width, after)
            x = self._residual(x, f"{decoder}.res{i}", after)
            width = after
        logits = self._heads(x, decoder, width) if self.archi.doubled else self._head(x, decoder, width)
        # half precision has no values between 0.9995 and 1
        face = self.nodes.add("Sigmoid", self.nodes.exact(logits))
        self.nodes.add("Transpose", face, perm=[0, 2, 3, 1], output=output)

    def _head(self, x: str, decoder: str, width: int) -> str:
        return self.nodes.conv(x, f"{decoder}.out_conv", (width, 3), 1)

    def _heads(self, x: str, decoder: str, width: int) -> str:
        """[B, width, R/2, R/2] -> [B, 3, R, R].

        The four heads read the same map: one convolution, the 1x1 kernel standing in the middle of a 3x3 one, which
        adds products with zero only. Takes 1 % off the whole at 128 pixels, 9 % off a tiny one.
        """
        sides = {"out_conv": 1, "out_conv1": 3, "out_conv2": 3, "out_conv3": 3}
        weights = [self.nodes.parameter(f"{decoder}.{name}.weight", 3, width, k, k) for name, k in sides.items()]
        weights[0] = np.pad(weights[0], ((0, 0), (0, 0), (1, 1), (1, 1)))
        biases = [self.nodes.parameter(f"{decoder}.{name}.bias", 3) for name in sides]
        fused = self.nodes.convolve(x, f"{decoder}.out_convs", np.concatenate(weights), np.concatenate(biases))
        return self.nodes.depth_to_space(fused)

    def _mask(self, decoder: str, code: str, width: int, output: str) -> None:
        """Codes [B, width, S, S] -> masks [B, R, R, 1]."""
        x, resolution = code, self.config.resolution
        for i, multiplier in enumerate((*self.decoder_widths, *([1] if self.archi.doubled else []))):
            after = multiplier * self.config.d_mask_dims
            x = self._upscale(x, f"{decoder}.upscalem{i}", width, after)
            width = after
        logits = self.nodes.conv(x, f"{decoder}.out_convm", (width, 1), 1)
        # with one channel, only the shape tells NCHW from NHWC
        mask = self.nodes.add("Sigmoid", self.nodes.exact(logits))
        self.nodes.reshape(mask, [resolution, resolution, 1], output=output)

    def _downscale(self, x: str, layer: str, before: int, after: int) -> str:
        return self._activation(self.nodes.conv(x, f"{layer}.conv1", (before, after), 5, stride=2), 0.1)

    def _upscale(self, x: str, layer: str, before: int, after: int) -> str:
        wide = self._activation(self.nodes.conv(x, f"{layer}.conv1", (before, 4 * after), 3), 0.1)
        return self.nodes.depth_to_space(wide)

    def _residual(self, x: str, layer: str, channels: int) -> str:
        inner = self._activation(self.nodes.conv(x, f"{layer}.conv1", (channels, channels), 3), 0.2)
        inner = self.nodes.conv(inner, f"{layer}.conv2", (channels, channels), 3)
        return self._activation(self.nodes.add("Add", inner, x), 0.2)

    def _activation(self, x: str, slope: float) -> str:
        if self.archi.cosine:
            return self.nodes.add("Mul", x, self.nodes.add("Cos", x))
        return self.nodes.add("LeakyRelu", x, alpha=slope)
