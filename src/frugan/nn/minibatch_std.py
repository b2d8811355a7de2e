"""Minibatch standard deviation: how different the pictures of a group are, shown to the discriminator.

Source: Karras et al. 2017 (arXiv 1710.10196), section 3.
"""

import torch
from torch import Tensor

from frugan.contract.layers import GroupNormalised, whole_moments

EPS = 1e-8


class MinibatchStd(GroupNormalised):
    """Appends maps of the mean standard deviation over the samples of a group.

    A group is `normalisation_batch` samples in a row, whatever the micro-batch. (The release takes every
    (N/group)-th sample of a micro-batch: the same where a micro-batch is one group.)

    Args:
        maps: how many are appended, each for as many of the channels.
    """

    can_share = True

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.maps = maps

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C + maps, H, W].

        Raises:
            ValueError: N is more than one group, and not a whole number of them.
        """
        samples, channels, height, width = x.shape
        shared = self.shared
        group = min(self.normalisation_batch or samples, samples) if shared is None else shared.part
        if samples % group:
            raise ValueError(f"{samples} samples are not a whole number of groups of {group}: give whole groups")
        y = x.view(samples // group, group, self.maps, channels // self.maps, height, width)
        if shared is None:
            variance = y.var(1, correction=0)  # [groups, maps, C/maps, H, W]
        else:
            variance, mean = torch.var_mean(y, 1, correction=0)
            _, variance = whole_moments(shared, mean, variance)
        deviations = (variance + EPS).sqrt().mean((2, 3, 4))  # [groups, maps]
        shown = deviations.repeat_interleave(group, 0, output_size=samples)[:, :, None, None]
        return torch.cat([x, shown.expand(-1, -1, height, width)], 1)
