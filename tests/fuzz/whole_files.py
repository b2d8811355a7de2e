"""Whole files of every format that frugan reads, small, to be damaged."""

import io
import json
import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from contract.made_up import MadeUpFamily
from contract.rig import Rig
from frugan.data.prepare import prepare
from frugan.engine.run.checkpoint import save_checkpoint
from frugan.faces.saehd.leras_files import LerasModel, write_model
from frugan.recipe.loading import load_recipe
from frugan.safe_pickle.reader import load_pickle
from frugan.safe_pickle.writer import dump_pickle
from frugan.setup.networks import save

GOLDEN = Path(__file__).parents[1] / "golden"
FEATURES = 6
"""Dimensions of the moments."""
RECIPE = """
family = "biggan"
[networks]
resolution = 32
classes = 2
generator_channels = 2
discriminator_channels = 2
latent_size = 8
shared_embedding = 4
generator_attention = [16]
discriminator_attention = [16]
[training]
batch = 8
normalisation_batch = 4
duration = "4 steps"
[optimizers.D]
learning_rate = 4e-4
[optimizers.G]
learning_rate = 1e-4
[[stages]]
at = "2 steps"
set = { "optimizers.G.learning_rate" = 1e-5 }
"""

Files = Mapping[str, bytes]
"""Name in a folder -> content."""


def _picture(side: int = 24, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def _encoded(form: str, picture: Image.Image | None = None, **options: object) -> bytes:
    file = io.BytesIO()
    (picture or _picture()).save(file, form, **options)
    return file.getvalue()


@cache
def picture_files() -> tuple[bytes, ...]:
    """Pictures of every kind that is decoded."""
    grey16 = Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 150)
    palette = _picture().quantize(16)
    animated = io.BytesIO()
    palette.save(animated, "GIF", save_all=True, append_images=[_picture(seed=1).quantize(16)])
    return (
        *(_encoded("PNG"), _encoded("PNG", grey16), _encoded("PNG", palette, transparency=3)),
        *(_encoded("PNG", _picture().convert("RGBA")), _encoded("JPEG"), _encoded("JPEG", progressive=True)),
        *(_encoded("JPEG", _picture().convert("CMYK")), _encoded("WEBP"), _encoded("WEBP", lossless=True)),
        *(_encoded("BMP"), _encoded("TIFF"), _encoded("TIFF", compression="tiff_lzw"), animated.getvalue()),
        _encoded("TIFF", compression="tiff_deflate"),
    )


@cache
def pickle_files() -> tuple[bytes, ...]:
    """Plain values as DeepFaceLab pickles them, in every protocol."""
    value = {
        "iter": 20,
        "options": {"resolution": 64, "archi": "df-ud", "on": True, "none": None},
        "loss_history": [[1.5, 2.5], [0.5, 0.25]],
        "weights": {"conv1/weight:0": np.arange(60, dtype=np.float32).reshape(3, 4, 5)},
        "number": np.int64(5),
        "raw": bytes(range(64)),
        "shared": [[1, 2]] * 3,
    }
    return (dump_pickle(value), dump_pickle(value, 3), *(pickle.dumps(value, protocol) for protocol in (2, 3, 4)))


@cache
def leras_model() -> Files:
    """A DeepFaceLab model."""
    data = GOLDEN / "saehd" / "model_dir" / "demo_SAEHD_data.dat"
    options = load_pickle(data.read_bytes(), "golden")["options"]
    weights = {"down1/weight:0": np.ones((3, 3, 3, 4), np.float32), "down1/bias:0": np.zeros(4, np.float32)}
    model = LerasModel("my face", 7, options, [[1.0, 2.0]] * 7, {"encoder": weights, "inter": weights})
    model.optimizers["src_dst_opt"] = {"iters:0": np.int64(7), **weights}
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), model)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


@cache
def zip_files() -> tuple[bytes, ...]:
    """A data set of NVlabs as a zip, stored and deflated."""
    made = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            archive.writestr("00000/a.png", picture_files()[0])
            archive.writestr("00000/b.jpg", picture_files()[4])
            archive.writestr("dataset.json", json.dumps({"labels": [["00000/a.png", 0], ["00000/b.jpg", 1]]}))
        made.append(file.getvalue())
    return tuple(made)


@cache
def listed_folder() -> Files:
    """The same unpacked."""
    listing = {"labels": [["00000/a.png", 0], ["00000/b.jpg", [0, 1]]]}
    one_hot = {"labels": [["00000/a.png", [1, 0]], listing["labels"][1]]}
    pictures = {"00000/a.png": picture_files()[0], "00000/b.jpg": picture_files()[4]}
    return {"dataset.json": json.dumps(one_hot).encode(), **pictures}


@cache
def cifar_folder() -> Files:
    """CIFAR-10 with two pictures a file."""
    rows = np.random.default_rng(0).integers(0, 10, (2, 1 + 3072), dtype=np.uint8).tobytes()
    names = "\n".join(f"class {n}" for n in range(10)).encode()
    return {**{f"data_batch_{n}.bin": rows for n in range(1, 6)}, "batches.meta.txt": names}


@cache
def prepared_set() -> Files:
    """A set that `prepare` wrote."""
    with tempfile.TemporaryDirectory() as base:
        source = Path(base) / "source"
        for n in range(4):
            (source / "ab"[n % 2]).mkdir(parents=True, exist_ok=True)
            _picture(16, n).save(source / "ab"[n % 2] / f"{n}.png")
        prepare(source, Path(base) / "out", resolution=16, workers=1)
        return {path.name: path.read_bytes() for path in (Path(base) / "out").iterdir()}


@cache
def moments_files() -> tuple[bytes, ...]:
    """Mean and covariance, plain and compressed."""
    rows = np.random.default_rng(0).normal(size=(40, FEATURES))
    made = []
    for write in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        about = {"pictures": np.array(40), "network_digest": np.array("ab" * 32), "resolution": np.array(32)}
        write(file, mu=rows.mean(0), sigma=np.cov(rows, rowvar=False), **about)  # type: ignore[arg-type]
        made.append(file.getvalue())
    return tuple(made)


@cache
def weights_file() -> bytes:
    """A weights file of ours."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "r.toml").write_text(RECIPE, "utf-8")
        recipe = load_recipe(str(path / "r.toml"))
        networks = recipe.kind.build(recipe.networks, "cpu")
        save({"G": networks["G"]}, recipe, path / "w.safetensors", ("a", "b"))
        return (path / "w.safetensors").read_bytes()


@cache
def rig() -> Rig:
    """The made-up family's training."""
    return Rig.create(MadeUpFamily())


@cache
def checkpoint_folder() -> Files:
    """A checkpoint of the made-up family."""
    with tempfile.TemporaryDirectory() as folder:
        state = rig().state
        state.step = 5
        path = save_checkpoint(Path(folder), state, {"format": "frugan"}, {"seconds": 1.0, "finite_steps": 5}).path
        return {f"checkpoints/{path.name}/{file.name}": file.read_bytes() for file in path.iterdir()}


@cache
def run_folder() -> Files:
    """A run, for its report."""
    step: dict[str, Any] = {
        "step": 1,
        "images": 8,
        "seconds": 0.5,
        "took_seconds": 0.5,
        "data_seconds": 0.0,
        "memory_bytes": 1 << 30,
    }
    phase = {"terms": {"hinge": 1.0}, "gradient_norm": 2.0, "loss_scale": 1.0, "skipped": 0, "learning_rate": 1e-4}
    step |= {"images_per_second": 16.0, "eta_seconds": 3.0, "phases": {"D": phase, "G": phase}}
    events = [{"event": "start", "step": 0, "recipe": {"family": "biggan"}, "parameters": {"G.w": 4}}]
    events += [
        {"event": "choice", "line": "device: cpu"},
        {"event": "step", **step},
        {"event": "step", **step, "step": 2},
    ]
    events += [{"event": "metrics", "step": 2, "scores": {"fid": 3.5}, "provenance": {"samples": 10}}]
    lines = "\n".join(json.dumps(event) for event in events) + "\n"
    return {
        "events.jsonl": lines.encode(),
        "plan.json": json.dumps({"peak_bytes": 5, "micro_batch": 4}).encode(),
        "recipe.json": json.dumps({"family": "biggan"}).encode(),
        "samples/step-000000002-samples.png": picture_files()[0],
    }


@cache
def run_recipe_folder() -> Files:
    """The recipe of a run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.toml"
        path.write_text(RECIPE, "utf-8")
        return {"recipe.json": json.dumps(load_recipe(str(path)).model_dump(mode="json")).encode()}


def face_files() -> tuple[bytes, ...]:
    """Aligned faces by DeepFaceLab's extractor."""
    return tuple(path.read_bytes() for path in sorted((GOLDEN / "saehd" / "faceset" / "aligned").glob("*.jpg"))[:4])


def face_folder() -> Files:
    """Two of them in a folder."""
    return {f"{n}.jpg": jpeg for n, jpeg in enumerate(face_files()[:2])}


@cache
def pth_files() -> tuple[bytes, ...]:
    """Tensors as `torch.save` writes them, as a zip and in the form before it."""
    tensors = {"a.weight": torch.arange(12.0).reshape(3, 4), "a.bias": torch.ones(3, dtype=torch.float16)}
    made = []
    for zipped in (True, False):
        file = io.BytesIO()
        torch.save(tensors, file, _use_new_zipfile_serialization=zipped)
        made.append(file.getvalue())
    return tuple(made)


@cache
def tar_files() -> tuple[bytes, ...]:
    """WebDataset shards, in the three forms of tar."""
    made = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as archive:
            for number, picture in enumerate((picture_files()[0], picture_files()[4])):
                for kind, content in (("png", picture), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"{'long/' * 30}{number:03}.{kind}" if form else f"{number:03}.{kind}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        made.append(file.getvalue())
    return tuple(made)
