"""Snappy's compression, undone: what sorted tables may pack their blocks with.

Source: the format's description in google/snappy (format_description.txt).
"""

from frugan.bundles.protobuf import varint

LITERAL, COPY_1, COPY_2 = 0, 1, 2
LONG_LITERAL = 60


def decompress(data: bytes, most_bytes: int) -> bytes:
    """Return what was packed.

    Args:
        most_bytes: that it may be.

    Raises:
        ValueError: damaged, or larger.
        IndexError: cut off.
    """
    size, at = varint(data, 0)
    if size > most_bytes:
        raise ValueError(f"a packed block of {size:,} bytes; expected at most {most_bytes:,}")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        kind = tag & 3
        if kind == LITERAL:
            length = tag >> 2
            if length >= LONG_LITERAL:
                width = length - LONG_LITERAL + 1
                length = int.from_bytes(data[at : at + width], "little")
                at += width
            length += 1
            if at + length > len(data):
                raise IndexError("a packed block is cut off")
            out += data[at : at + length]
            at += length
        else:
            if kind == COPY_1:
                length, offset = 4 + ((tag >> 2) & 7), (tag >> 5 << 8) | data[at]
                at += 1
            else:
                width = 2 if kind == COPY_2 else 4
                length, offset = (tag >> 2) + 1, int.from_bytes(data[at : at + width], "little")
                at += width
            if not 0 < offset <= len(out):
                raise ValueError("a packed block refers to what is before its beginning")
            begin = len(out) - offset
            pattern = out[begin : begin + length]
            out += (pattern * -(-length // len(pattern)))[:length]
        if len(out) > size:
            break
    if len(out) != size:
        raise ValueError(f"a packed block has {len(out):,} bytes, and should have {size:,}")
    return bytes(out)
