"""Tables of vectors that are built without data at no cost."""

from torch import nn


class Embedding(nn.Embedding):
    """torch's, with torch's first values.

    Without data ("meta") there are none to give, and torch's `normal_` would import its whole compiler there: 2 of the
    5 seconds of `frugan plan`.
    """

    def reset_parameters(self) -> None:
        """Draw normal values, where there is anything to hold them."""
        if not self.weight.is_meta:
            super().reset_parameters()
