"""Pictures without content have the shapes of those that training reads."""

import pytest
import torch

from frugan.contract.data import Channels
from frugan.data.picture_needs import PictureNeeds
from frugan.planning.prediction import BlankPictures


@pytest.mark.parametrize("channels", [1, 3])
def test_as_many_channels_as_are_needed(channels: Channels) -> None:
    blank = BlankPictures({"images": PictureNeeds(8, 10, channels)}).take("images", "any", 5, 4)
    assert (blank["pictures"].shape, blank["pictures"].dtype) == ((4, channels, 8, 8), torch.uint8)
    assert (blank["labels"].shape, blank["labels"].dtype) == ((4,), torch.int64)
