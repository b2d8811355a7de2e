"""Tables of vectors whose first values a family gives."""

from torch import nn


class Embedding(nn.Embedding):
    """torch's, left as memory comes until it is initialised.

    torch's own first values are normal, and `normal_` without data ("meta") imports torch's whole compiler: 2 of the 5
    seconds of `frugan plan`.
    """

    def reset_parameters(self) -> None:
        """Leave the values to the family's `initialise`, or to a file."""
