"""Pictures, and how long an update stood still until they were there."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from frugan.engine.update import PictureFeed


@dataclass
class TimedPictures:
    """A feed that takes note of the time it takes.

    It is the host's time. A card that still has work queued loses less than that; one that is kept busy makes the host
    wait for its numbers, and pictures are read meanwhile, so that little or nothing is waited for here.

    Attributes:
        feed: where pictures come from.
        seconds: waited for them so far.
    """

    feed: PictureFeed
    seconds: float = 0.0

    def take(self, source: str, stream: str, position: int, count: int) -> Mapping[str, Tensor]:
        """As the feed's own."""
        began = time.perf_counter()
        try:
            return self.feed.take(source, stream, position, count)
        finally:
            self.seconds += time.perf_counter() - began
