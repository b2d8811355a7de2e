"""Zips, pictures and folders of pictures made with ill intent: ways out, bombs, pipes, absurd sizes."""

import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from fuzz.made import Make, file
from fuzz.whole_files import face_files, picture_files


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method, compresslevel=1) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return made.getvalue()


def _link(to: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("a/link.png")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    return info


def _declared(content: bytes, size: int, name: str = "a/x.png", *more: tuple[str, bytes]) -> bytes:
    """A member that says of itself that it unpacks to so many bytes."""
    data = bytearray(zipped((name, content), *more))
    at = data.index(b"PK\x01\x02")
    for place in (22, at + 24):
        struct.pack_into("<I", data, place, size)
    return bytes(data)


def _zeros(mebibytes: int) -> bytes:
    """A zlib stream of zeros that takes no time to make: blocks that know nothing of each other, again and again."""
    packer = zlib.compressobj(9)
    first, again = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * (mebibytes - 1) + packer.flush()


PNG = picture_files()[0]
ZIPS: Mapping[str, Make] = {
    "zip-slip": file("p.zip", lambda: zipped(("../../slipped.png", PNG))),
    "zip-slip by backslash": file("p.zip", lambda: zipped(("..\\..\\slipped.png", PNG))),
    "absolute name": file("p.zip", lambda: zipped(("/tmp/slipped.png", PNG))),
    "link out": file("p.zip", lambda: zipped((_link("x"), b"/etc/passwd"))),
    "bomb that is declared": file("p.zip", lambda: _declared(PNG, 300 << 20)),
    "bomb that is not": file("p.zip", lambda: _declared(bytes(48 << 20), 64 << 10)),
    "size of 4 GiB": file("p.zip", lambda: _declared(PNG, 0xFFFFFFF0)),
    "listing that is a bomb": file("p.zip", lambda: _declared(b"{}", 600 << 20, "dataset.json", ("a/x.png", PNG))),
    "zip in a zip": file("p.zip", lambda: zipped(("a/x.png", zipped(("x.png", PNG))))),
    "5,000 names": file("p.zip", lambda: zipped(*((f"a/{n}.png", b"") for n in range(5000)), method=0)),
    "bytes of no UTF-8 and NUL in names": file(
        "p.zip", lambda: zipped(("a/\x00x.png", PNG), ("a/\udc80".encode("utf-8", "replace").decode() + ".png", PNG))
    ),
    "packed by an unknown method": file("p.zip", lambda: zipped(("a/x.png", PNG), method=zipfile.ZIP_LZMA)),
}


def _png(width: int, height: int, *more: tuple[bytes, bytes], pixels: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    inner = b"".join(chunk(*each) for each in more)
    return b"\x89PNG\r\n\x1a\n" + head + inner + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


PICTURES: Mapping[str, Make] = {
    "60,000 x 60,000": file("p.png", _png(60_000, 60_000)),
    "2^31 - 1 wide": file("p.png", _png((1 << 31) - 1, 1)),
    "nothing wide": file("p.png", _png(0, 5)),
    "pixels of 1 GiB for 4": file("p.png", lambda: _png(2, 2, pixels=_zeros(256))),
    "text of 256 MiB": file("p.png", lambda: _png(2, 2, (b"zTXt", b"k\0\0" + _zeros(256)))),
    "profile of 256 MiB": file("p.png", lambda: _png(2, 2, (b"iCCP", b"k\0\0" + _zeros(256)))),
    "PostScript": file("p.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\n"),
    "GIF of 65,535 x 65,535": file(
        "p.gif", b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(6) + b",\0\0\0\0\xff\xff\xff\xff\0\x02\0;"
    ),
    "BMP of 2^31 rows": file(
        "p.bmp", b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 4, -(1 << 31), 1, 24, 0, 0, 0, 0, 0, 0)
    ),
    "TIFF whose directory is itself": file("p.tif", b"II*\0" + struct.pack("<IHHHIII", 8, 1, 256, 4, 1, 9, 8)),
}


def pipe(folder: Path) -> Path:
    """A pipe to which nobody writes, and links to it, to a device, to a file elsewhere, and in a circle."""
    inner = folder / "pictures"
    inner.mkdir()
    os.mkfifo(inner / "pipe.png")
    (inner / "link.png").symlink_to(inner / "pipe.png")
    (inner / "zero.png").symlink_to("/dev/zero")
    (inner / "circle.png").symlink_to(inner / "circle.png")
    (inner / "secret.png").symlink_to("/etc/passwd")
    (inner / "up").symlink_to(folder)
    (inner / "a.png").write_bytes(PNG)
    return inner


def pipe_of_faces(folder: Path) -> Path:
    inner = pipe(folder)
    for path in list(inner.glob("*.png")):
        path.rename(path.with_suffix(".jpg"))
    for n in range(2):
        (inner / f"face{n}.jpg").write_bytes(face_files()[n])
    return inner


def listed_pipe(folder: Path) -> Path:
    (folder / "a.png").write_bytes(PNG)
    os.mkfifo(folder / "dataset.json")
    return folder


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def _member(name: str, size: int, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = size, kind, link
    return member


def _absurd_tar(field: slice, value: bytes) -> bytes:
    """With a field of the first header overwritten, and its checksum right."""
    data = bytearray(_tar((_member("a.png", len(PNG)), PNG)))
    data[field] = value
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


TARS: Mapping[str, Make] = {
    "tar-slip": file("s.tar", lambda: _tar((_member("../../slipped.png", len(PNG)), PNG))),
    "absolute name": file("s.tar", lambda: _tar((_member("/tmp/slipped.png", len(PNG)), PNG))),
    "links out": file(
        "s.tar",
        lambda: _tar(
            (_member("a.png", 0, tarfile.SYMTYPE, "/etc/passwd"), b""),
            (_member("b.png", 0, tarfile.LNKTYPE, "/etc/passwd"), b""),
            (_member("c.png", 0, tarfile.FIFOTYPE), b""),
            (_member("d.png", 0, tarfile.CHRTYPE), b""),
        ),
    ),
    "size of 2^60": file("s.tar", lambda: _absurd_tar(slice(124, 136), b"\x80" + (1 << 60).to_bytes(11, "big"))),
    "size below nothing": file("s.tar", lambda: _absurd_tar(slice(124, 136), b"\xff" * 12)),
    "name that takes the file": file("s.tar", lambda: _absurd_tar(slice(156, 157), b"L")),
    "label of 40 digits": file(
        "s.tar", lambda: _tar((_member("a.cls", 40), b"9" * 40), (_member("a.png", len(PNG)), PNG))
    ),
    "label of 10^30": file("s.tar", lambda: _tar((_member("a.cls", 30), b"9" * 30), (_member("a.png", len(PNG)), PNG))),
}
