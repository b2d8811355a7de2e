"""Files made with ill intent, by the reader that they are for; runs, checkpoints and recipes among them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from fuzz.hostile_pictures import PICTURES, TARS, ZIPS, listed_pipe, pipe, pipe_of_faces
from fuzz.hostile_tensors import CODE, HDF5, MOMENTS, WEIGHTS, model
from fuzz.made import Make, file
from fuzz.whole_files import RECIPE, checkpoint_folder, run_folder


def _run(**files: bytes) -> Make:
    def make(folder: Path) -> Path:
        for name, content in {**run_folder(), **{name.replace("_", "."): each for name, each in files.items()}}.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        return folder

    return make


def _secret_grid(folder: Path) -> Path:
    """A grid that is a link to a picture of the reader's own: nothing of it may be seen in the page."""
    run = _run()(folder)
    (folder / "samples" / "step-000000003-samples.png").symlink_to("/etc/passwd")
    os.mkfifo(folder / "samples" / "step-000000004-samples.png")
    (run / "plan.json").unlink()
    (run / "plan.json").symlink_to("/dev/zero")
    return run


EVENTS: Mapping[str, bytes] = {
    "nested 100,000 deep": b"[" * 100_000 + b"\n" + b'{"a":' * 100_000 + b"\n",
    "a number of 100,000 digits": b'{"event": "step", "step": ' + b"9" * 100_000 + b"}\n",
    "numbers beyond floats": b'{"event": "step", "step": 1e999, "images": -1, "seconds": NaN, "phases": {"D": {}}}\n',
    "a line of 40 MB": b'{"event": "choice", "line": "' + b"x" * 40_000_000,
    "other types": b'{"event": ["step"]}\n{"event": "metrics", "scores": 5}\n{"event": "start", "parameters": [1]}\n'
    b'{"event": "resume", "step": "x"}\n{"event": "variety", "mean": {}, "step": []}\n{"event": "step", "phases": 3}\n',
    "markup": b'{"event": "choice", "line": "</script><script>alert(1)</script>"}\n',
    "lone surrogates": b'{"event": "choice", "line": "\\ud800"}\n'
    b'{"event": "metrics", "step": 1, "scores": {"\\udc00": 1}}\n',
}
RUNS: Mapping[str, Make] = {
    **{name: _run(events_jsonl=content) for name, content in EVENTS.items()},
    "a plan of other types": _run(plan_json=b'{"peak_bytes": "x", "categories": [1], "savers": {"a": [[[[[]]]]]}}'),
    "a recipe nested 900 deep": _run(recipe_json=b'{"a":' * 900 + b"[" * 50 + b"]" * 50 + b"}" * 900),
    "sheets that are links and pipes": _secret_grid,
}


def _checkpoint(name: str, content: bytes | None) -> Make:
    def make(folder: Path) -> Path:
        for at, whole in checkpoint_folder().items():
            path = folder / at
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(whole)
        changed = next((folder / "checkpoints").iterdir()) / name
        changed.unlink()
        if content is None:
            os.mkfifo(changed)
        else:
            changed.write_bytes(content)
        return folder

    return make


CHECKPOINTS: Mapping[str, Make] = {
    "a manifest of nothing": _checkpoint("MANIFEST.json", b"{}"),
    "a manifest of a list": _checkpoint("MANIFEST.json", b"[1]"),
    "a manifest of ways out": _checkpoint("MANIFEST.json", json.dumps({"../../../../../../etc/passwd": "0"}).encode()),
    "a manifest nested 100,000 deep": _checkpoint("MANIFEST.json", b'{"a":' * 100_000),
    "a pipe for a manifest": _checkpoint("MANIFEST.json", None),
    "a pipe for weights": _checkpoint("networks.safetensors", None),
}


RECIPES: Mapping[str, Make] = {
    "arrays 5,000 deep": file("r.toml", b"family = " + b"[" * 5000),
    "tables 20,000 deep": file("r.toml", b"[" + b".".join([b"a"] * 20_000) + b"]\n"),
    "a number of 100,000 digits": file("r.toml", RECIPE.replace("batch = 8", f"batch = {'9' * 100_000}").encode()),
    "networks beyond memory": file(
        "r.toml", RECIPE.replace("generator_channels = 2", "generator_channels = 999999999999").encode()
    ),
    "a resolution beyond memory": file("r.toml", RECIPE.replace("resolution = 32", "resolution = 1073741824").encode()),
    "2 MB of text": file("r.toml", b"#" * (2 << 20)),
    "UTF-16": file("r.toml", RECIPE.encode("utf-16")),
    "a family that is a path": file("r.toml", RECIPE.replace('"biggan"', '"../../os"').encode()),
    "other types everywhere": file(
        "r.toml", b'family = "biggan"\nnetworks = 3\ntraining = [1]\noptimizers = "x"\nstages = {a = 1}\n'
    ),
}


def corpus() -> list[tuple[str, str, Make]]:
    """Target, name and maker of every file."""
    by_target: dict[str, Mapping[str, Make]] = {
        "zip of pictures": ZIPS,
        "webdataset tar": TARS,
        "picture": PICTURES,
        "dataset.json": {"pipes and links": pipe, "a pipe for a listing": listed_pipe},
        "faceset folder": {"pipes and links": pipe_of_faces},
        "pickle": {name: file("p.dat", content) for name, content in CODE.items()},
        "pth": {name: file("w.pth", content) for name, content in CODE.items()},
        "stylegan snapshot": {name: file("n.pkl", content) for name, content in CODE.items()},
        "deepfacelab model": {
            f"{name} in {stem}": model(stem, content)
            for name, content in CODE.items()
            for stem in ("data.dat", "encoder.npy")
        },
        "weights": WEIGHTS,
        "moments": MOMENTS,
        "hdf5": HDF5,
        "run": RUNS,
        "checkpoint": CHECKPOINTS,
        "recipe": RECIPES,
    }
    return [(target, name, make) for target, makers in by_target.items() for name, make in makers.items()]
