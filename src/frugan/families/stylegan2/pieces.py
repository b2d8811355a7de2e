"""What of one StyleGAN2 another may start from: layers of blocks of the same side, and the mapping as a whole."""

from frugan.contract.starting import Piece


def piece_of(key: str) -> Piece | None:
    """Where the tensor "network.parameter" belongs: "G.synthesis.b8.conv0.affine.weight" to conv0 of G's b8."""
    network, *path = key.split(".")
    if path[0] == "synthesis":
        path = path[1:]
    if path[0] == "mapping":
        return Piece(network, "mapping")
    return None if path[1] == "resample_filter" else Piece(network, path[0], path[1])


def class_dimension(key: str) -> int | None:
    """Dimension of the tensor "network.parameter" that runs over the classes; None: none does."""
    return 1 if key in ("G.mapping.embed.weight", "D.mapping.embed.weight") else None
