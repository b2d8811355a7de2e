"""Total variation as DeepFaceLab computes it on a GPU."""

from torch import Tensor


def total_variation_of_channels_and_rows(x: Tensor) -> Tensor:
    """Sum of squared differences between neighbouring channels and between neighbouring rows.

    The original always takes tensor axes 1 and 2, which are channels and rows in the layout of every GPU run. Trained
    models know no other term, so it is kept.

    Args:
        x: [B, C, H, W].

    Returns:
        [B].
    """
    channels = (x[:, 1:] - x[:, :-1]).square().sum((1, 2, 3))
    rows = (x[:, :, 1:] - x[:, :, :-1]).square().sum((1, 2, 3))
    return channels + rows
