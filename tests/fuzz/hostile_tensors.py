"""Pickles, tensor files and tables made with ill intent: code, bombs, absurd sizes, depth."""

import json
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from fuzz.hostile_pictures import zipped
from fuzz.made import Make, file
from fuzz.whole_files import leras_model, weights_file


def _calls(module: str, name: str, *arguments: str, old: bool = False) -> bytes:
    """A pickle that calls a function, in the words of protocol 0 or 4."""
    if old:
        return f"c{module}\n{name}\n(".encode() + b"".join(b"V" + each.encode() + b"\n" for each in arguments) + b"tR."
    text = b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in (module, name))
    given = b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in arguments)
    return b"\x80\x04" + text + b"\x93(" + given + b"tR."


def _laughs() -> bytes:
    """Lists of a list of a list: 10^30 values when written out."""
    body = b"".join(
        b"]" + b"\x94" + b"(" + b"h" * 0 + b"".join(b"h" + bytes([n]) for _ in range(10)) + b"e" for n in range(14)
    )
    return b"\x80\x04]\x94(K\x01e" + body + b"."


CODE: Mapping[str, bytes] = {
    "os.system": _calls("os", "system", "touch slipped"),
    "posix.system": _calls("posix", "system", "touch slipped", old=True),
    "builtins.eval": _calls("builtins", "eval", "open('slipped', 'w')"),
    "builtins.getattr": _calls("builtins", "getattr", "os", "system"),
    "torch.load": _calls("torch.serialization", "load", "slipped"),
    "torch's second unpickler": _calls("torch.storage", "_load_from_bytes", "x"),
    "numpy's object arrays": _calls("numpy.core.multiarray", "_reconstruct", "x"),
    "subprocess.Popen": _calls("subprocess", "Popen", "touch slipped"),
    "nested 100,000 deep": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "tuples 100,000 deep": b"\x80\x04N" + b"\x85" * 100_000 + b".",
    "a memo of 2^31": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "bytes of 2^62": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".",
    "a frame of 2^62": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
    "laughs": _laughs(),
    "a list within itself": b"\x80\x04]\x94h\x00a.",
    "marks without end": b"\x80\x04" + b"(" * 100_000 + b"N.",
    "an array of 10^15 numbers": pickle.dumps({"x": np.zeros(3, "f4")}, 4).replace(
        b"K\x03\x85", b"\x8a\x07" + (10**15).to_bytes(7, "little") + b"\x85"
    ),
    "nothing": b"",
    "an end alone": b".",
}


def model(stem: str, content: bytes) -> Make:
    def make(folder: Path) -> Path:
        for name, whole in leras_model().items():
            (folder / name).write_bytes(content if name.endswith(stem) else whole)
        return folder

    return make


def _safetensors(header: object, size: int | None = None, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def _huge_networks() -> bytes:
    """A file of a few bytes whose recipe asks for networks of hundreds of gigabytes."""
    values = _recipe_values()
    values["networks"] |= {
        "generator_channels": 1024,
        "discriminator_channels": 1024,
        "resolution": 512,
        "latent_size": 1024,
    }
    return _safetensors({"__metadata__": {"format": "frugan", "recipe": json.dumps(values)}, **ONE}, None, bytes(4))


def _recipe_values() -> dict[str, dict[str, object]]:
    whole = weights_file()
    (length,) = struct.unpack_from("<Q", whole)
    return dict(json.loads(json.loads(whole[8 : 8 + length])["__metadata__"]["recipe"]))


ONE = {"G.x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
WEIGHTS: Mapping[str, Make] = {
    "header of 2^63": file("w.safetensors", _safetensors({}, 1 << 63)),
    "header of 2^40": file("w.safetensors", _safetensors({}, 1 << 40)),
    "header of 90 MB": file("w.safetensors", lambda: _safetensors(b"{" + b" " * 90_000_000 + b"}")),
    "shape beyond 2^64": file(
        "w.safetensors",
        _safetensors({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}}, None, bytes(4)),
    ),
    "offsets beyond the file": file(
        "w.safetensors", _safetensors({"a": {"dtype": "F32", "shape": [1 << 30], "data_offsets": [0, 1 << 32]}})
    ),
    "offsets over each other": file("w.safetensors", _safetensors({**ONE, "G.y": ONE["G.x"]}, None, bytes(4))),
    "an unknown type": file(
        "w.safetensors", _safetensors({"a": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]}}, None, bytes(4))
    ),
    "a rare type": file(
        "w.safetensors", _safetensors({"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}, None, bytes(4))
    ),
    "nested 50,000 deep": file("w.safetensors", _safetensors(b"[" * 50_000)),
    "recipe nested 50,000 deep": file(
        "w.safetensors",
        lambda: _safetensors({"__metadata__": {"format": "frugan", "recipe": "[" * 50_000}, **ONE}, None, bytes(4)),
    ),
    "recipe that is no table": file(
        "w.safetensors",
        lambda: _safetensors({"__metadata__": {"format": "frugan", "recipe": "[1]"}, **ONE}, None, bytes(4)),
    ),
    "names of classes nested 50,000 deep": file(
        "w.safetensors",
        lambda: _safetensors(
            {
                "__metadata__": {
                    "format": "frugan",
                    "recipe": json.dumps(_recipe_values()),
                    "class_names": "[" * 50_000,
                },
                **ONE,
            },
            None,
            bytes(4),
        ),
    ),
    "networks that fill no memory": file("w.safetensors", _huge_networks),
}


def _npz(**arrays: bytes) -> bytes:
    return zipped(*((f"{name}.npy", content) for name, content in arrays.items()))


def _npy(header: str) -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


SIX = "{'descr': '<f8', 'fortran_order': False, 'shape': (6,), }"
MOMENTS: Mapping[str, Make] = {
    "shape of 10^12": file("m.npz", lambda: _npz(mu=_npy(SIX.replace("(6,)", "(1000000000000,)")), sigma=b"")),
    "objects": file("m.npz", lambda: _npz(mu=_npy(SIX.replace("<f8", "|O")) + CODE["os.system"], sigma=b"")),
    "a header that computes": file(
        "m.npz", lambda: _npz(mu=_npy("__import__('os').system('touch slipped')"), sigma=b"")
    ),
    "a bomb": file(
        "m.npz",
        lambda: _npz(mu=_npy(SIX) + bytes(80 << 20), sigma=_npy(SIX.replace("(6,)", "(6, 6)")) + bytes(80 << 20)),
    ),
    "a type of 2^31 bytes": file("m.npz", lambda: _npz(mu=_npy(SIX.replace("<f8", "<U536870911")), sigma=b"")),
}


def _hdf5(shape: tuple[int, ...], chunks: tuple[int, ...] | None, labels: int) -> Make:
    def make(folder: Path) -> Path:
        with h5py.File(folder / "p.hdf5", "w") as opened:
            packed = "gzip" if chunks else None
            pictures = opened.create_dataset(
                "imgs", shape, "u1", chunks=chunks, compression=packed, compression_opts=1 if chunks else None
            )
            if len(pictures) == 16:
                pictures[0] = 0
            opened.create_dataset("labels", (labels,), "i8")
        return folder / "p.hdf5"

    return make


HDF5: Mapping[str, Make] = {
    "10^12 pictures": _hdf5((10**12, 3, 8, 8), (1, 3, 8, 8), 1),
    "pictures of 10^6 x 10^6": _hdf5((2, 3, 10**6, 10**6), (1, 1, 8, 8), 2),
    "chunks of 48 MiB": _hdf5((16, 3, 1024, 1024), (16, 3, 1024, 1024), 16),
}
