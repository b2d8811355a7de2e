"""`frugan export --web`: the folder, where its files come from, and the page in a real browser."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from cli.calling import Frugan, frugan
from frugan.conversion.export import site
from frugan.conversion.export.site import MODEL, MODULE, PAGE, WASM, export_site
from frugan.errors import BadInput
from reporting.test_report_in_browser import CHROMIUM, QUIET
from sampling.generators import MODELS, torch_pictures, write

__all__ = ["frugan"]


def package(folder: Path) -> Path:
    """Files that are called as those of onnxruntime-web."""
    (folder / "dist").mkdir(parents=True)
    (folder / "dist" / MODULE).write_text("export {};")
    (folder / "dist" / WASM).write_bytes(b"\0asm")
    return folder


def test_the_folder_holds_what_the_page_needs(tmp_path: Path, frugan: Frugan) -> None:
    names = ["</script><b>", *(f"<{number}>" for number in range(1, 10))]
    weights = write(MODELS["r3gan"], tmp_path / "weights.safetensors", names)
    runtime = package(tmp_path / "runtime")
    result = frugan("export", str(weights), str(tmp_path / "site"), "--web", "--runtime", str(runtime), "--json")
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == sorted([PAGE, MODEL, MODULE, WASM])
    page = (tmp_path / "site" / PAGE).read_text("utf-8")
    assert json.loads(result.stdout)["bytes"] == sum(path.stat().st_size for path in (tmp_path / "site").iterdir())
    assert re.findall(r"(?:https?:)?//[a-z]", page) == []  # nothing from elsewhere
    assert page.count("</script>") == 2
    (data,) = re.findall(r'<script type="application/json" id="model">(.*?)</script>', page)
    assert json.loads(data)["classes"] == names
    assert "<h1>weights</h1>" in page
    assert "Made with frugan: R3GAN generator at 32 pixels, trained for 1,234 steps." in page
    with tarfile.open(tmp_path / "runtime.tgz", "w:gz") as archive:
        archive.add(runtime, "package")
    words = ("export", str(weights), str(tmp_path / "a site"), "--web", "--runtime", str(tmp_path / "runtime.tgz"))
    look = f"To look at it: python -m http.server --bind 127.0.0.1 --directory '{tmp_path / 'a site'}'"
    assert frugan(*words).stdout.splitlines()[-1].startswith(look)
    for name in (PAGE, MODULE, WASM):
        assert (tmp_path / "a site" / name).read_bytes() == (tmp_path / "site" / name).read_bytes()
    with pytest.raises(BadInput, match="is there already; choose a new or empty folder for a page"):
        export_site(weights, tmp_path / "site", runtime=runtime, say=print)


def test_a_runtime_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = write(MODELS["r3gan"], tmp_path / "weights.safetensors")

    def refused(runtime: Path | None) -> str:
        with pytest.raises(BadInput, match=r"`npm pack onnxruntime-web@") as raised:
            export_site(weights, tmp_path / "site", runtime=runtime, say=print)
        assert not (tmp_path / "site").exists()
        return str(raised.value)

    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tgz").write_text("no archive")
    with tarfile.open(tmp_path / "other.tgz", "w:gz") as archive:
        archive.add(tmp_path / "text.tgz", "package/other")
    with tarfile.open(tmp_path / "link.tgz", "w:gz") as archive:
        for name in (MODULE, WASM):
            link = tarfile.TarInfo(f"package/dist/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
    assert f"expected {MODULE} and {WASM}" in refused(tmp_path / "empty")
    assert "not there" in refused(tmp_path / "nothing")
    for name in ("text.tgz", "other.tgz", "link.tgz"):
        assert "expected npm's package" in refused(tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "npm is not here" in refused(None)
    (tmp_path / "empty" / "npm").write_text("#!/bin/sh\necho no such version >&2\nexit 1\n")
    (tmp_path / "empty" / "npm").chmod(0o755)
    assert "npm did not get onnxruntime-web" in (said := refused(None))
    assert "no such version" in said


# In a browser.

PROBE = """<script type="module">
const told = {};
addEventListener("error", (event) => { (told.errors ??= []).push(event.message); });
HTMLAnchorElement.prototype.click = function () { told.saved = [this.download, this.href.slice(0, 22)]; };
const drawn = (seed) => new Promise((go) => {
  const look = () => (document.body.dataset.drawn === seed || told.errors ? go() : setTimeout(look, 20));
  look();
});
try {
  await drawn("1");
  const put = (id, value) => {
    document.getElementById(id).value = value;
    document.getElementById(id).dispatchEvent(new Event("input"));
  };
  const { z, shares, psi } = await (await fetch("inputs.json")).json();
  told.pictures = Array.from(await frugan.run(new Float32Array(z), new Float32Array(shares), psi));
  told.latents = Array.from(frugan.latents(5, 3));
  put("count", "4");
  put("truncation", "0.5");
  put("class", "3");
  put("seed", "5");
  await drawn("5");
  const canvases = [...document.querySelectorAll("#grid canvas")];
  const first = canvases[0].getContext("2d").getImageData(0, 0, canvases[0].width, canvases[0].height);
  told.shown = Array.from(first.data);
  told.labels = canvases.map((canvas) => canvas.getAttribute("aria-label"));
  document.getElementById("save").click();
  told.status = document.getElementById("told").textContent;
  told.elsewhere = performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !name.startsWith(location.origin + "/") && !name.startsWith("data:"));
} catch (error) { (told.errors ??= []).push(String(error)); }
await fetch("told", { method: "POST", body: JSON.stringify(told) });
</script></body>"""


class _Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and takes what the page tells."""

    def __init__(self, *args: Any, told: Queue[bytes], **options: Any) -> None:
        self.told = told
        super().__init__(*args, **options)

    def do_POST(self) -> None:
        self.told.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """onnxruntime-web itself, by npm."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("npm_config_fetch_retries", "0")  # without a network it shall say so at once
        try:
            return site.from_npm(tmp_path_factory.mktemp("npm"), print)
        except BadInput as error:
            pytest.skip(str(error))


def told_by(folder: Path, profile: Path) -> dict[str, Any]:
    """What the probe in the page says."""
    told: Queue[bytes] = Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder), told=told))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    quiet = [word for word in QUIET if not word.startswith(("--dump", "--virtual"))]
    words = [str(CHROMIUM), *quiet, f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}/"]
    # of its own session, so that its helpers end with it
    browser = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        return dict(json.loads(told.get(timeout=120)))
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
        server.shutdown()
        server.server_close()


def seeded(seed: int, size: int) -> NDArray[np.float32]:
    """The page's latents, as docs/export.md has them in Python."""

    def numbers() -> Iterator[float]:
        state = seed
        while True:
            state = (state + 0x6D2B79F5) & 0xFFFFFFFF
            t = (state ^ state >> 15) * (state | 1) & 0xFFFFFFFF
            t = (t + ((t ^ t >> 7) * (t | 61) & 0xFFFFFFFF)) & 0xFFFFFFFF ^ t
            yield (t ^ t >> 14) / 2**32

    draw, z = numbers(), list[float]()
    while len(z) < size:
        length, angle = math.sqrt(-2 * math.log(1 - next(draw))), 2 * math.pi * next(draw)
        z += [length * math.cos(angle), length * math.sin(angle)]
    return np.array(z[:size], np.float32)


@pytest.mark.parametrize(
    ("name", "half"),
    [
        ("stylegan2", False),
        pytest.param("stylegan2", True, marks=pytest.mark.long),
        pytest.param("biggan", False, marks=pytest.mark.long),
        pytest.param("biggan", True, marks=pytest.mark.long),
        pytest.param("r3gan", False, marks=pytest.mark.long),
    ],
)
def test_the_page_draws_what_torch_draws(tmp_path: Path, runtime: Path, name: str, half: bool) -> None:
    model, folder = MODELS[name], tmp_path / "site"
    weights = write(model, tmp_path / "weights.safetensors")
    export_site(weights, folder, half=half, runtime=runtime, say=print)
    size = InferenceSession(str(folder / MODEL)).get_inputs()[0].shape[1]
    z, labels = torch.randn(2, size, generator=torch.Generator().manual_seed(3)), torch.tensor([4, 7])
    shares = torch.eye(10)[labels]
    given = {"z": z.flatten().tolist(), "shares": shares.flatten().tolist(), "psi": 0.6}
    (folder / "inputs.json").write_text(json.dumps(given))
    page = (folder / PAGE).read_text("utf-8")
    (folder / PAGE).write_text(page.replace("</body>", PROBE), "utf-8")

    told = told_by(folder, tmp_path / "profile")
    assert told.get("errors") is None
    expected = torch_pictures(model, weights, z, labels, 0.6)
    pictures = np.array(told["pictures"], np.float32).reshape(expected.shape)
    assert np.abs(pictures - expected).max() < (0.02 if half else 1e-4)

    latents = seeded(5, 3 * size)
    assert np.abs(np.array(told["latents"], np.float32) - latents).max() < 1e-6
    first = torch.from_numpy(latents[None, :size]) * (1 if model.psi else 0.5)
    shown = np.array(told["shown"], np.uint8).reshape(32, 32, 4)
    drawn = torch_pictures(model, weights, first, torch.tensor([3]), 0.5)[0]  # [C, R, R]
    pixels = np.broadcast_to((drawn + 1) * 127.5, (3, 32, 32)).transpose(1, 2, 0)
    assert np.abs(shown[..., :3] - pixels).max() < (3 if half else 0.6)
    assert told["labels"] == [f"picture {number}: class 3" for number in range(1, 5)]
    assert told["saved"][0].endswith("-seed5.png")
    assert told["saved"][1] == "data:image/png;base64,"
    assert told["status"].startswith("seed 5: 4 pictures in")
    assert told["elsewhere"] == []


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm here")
def test_npm_is_asked_for_the_version_that_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def run(words: list[str], **options: Any) -> Any:
        asked.append(words)
        Path(options["cwd"], "onnxruntime-web.tgz").write_bytes(b"")
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert site.from_npm(tmp_path, print) == tmp_path / "onnxruntime-web.tgz"
    assert [words[1:3] for words in asked] == [["pack", f"onnxruntime-web@{site.VERSION}"]]
