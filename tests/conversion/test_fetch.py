"""Weights fetched from a server on this machine: whole, in parts, by a proxy, and what is refused."""

import hashlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from frugan.cli.application import application
from frugan.conversion import fetch as fetching
from frugan.conversion.fetch import fetch
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.metrics.public_weights import PublicWeights
from frugan.progress import quiet

CONTENT = bytes(range(256)) * 5000  # 1.2 MiB: more than a piece
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Served:
    """What a server gives, and what it was asked for."""

    address: str = ""
    content: bytes = CONTENT
    takes_ranges: bool = True
    breaks_off_after: int | None = None  # bytes of an answer; None: it does not
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, range


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server of one file, named as the mirror."""
    state = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            if "nothing" in self.path:
                self.send_error(404)
                return
            first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.takes_ranges else 0
            if first and first >= len(state.content):
                self.send_error(416)
                return
            rest = state.content[first:]
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(rest)))
            if first:
                self.send_header("Content-Range", f"bytes {first}-{len(state.content) - 1}/{len(state.content)}")
            self.end_headers()
            self.wfile.write(rest[: state.breaks_off_after])

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "TEST_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.address = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("FRUGAN_MIRROR", f"{state.address}/mirror/")
        public = PublicWeights("test", "weights.pth", "http://other.invalid/weights.pth", DIGEST[:8], "TEST_WEIGHTS")
        monkeypatch.setattr(fetching, "PUBLIC", {"test": public})
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield state
        server.shutdown()
        thread.join()


def parts() -> list[Path]:
    """What lies in the cache, but for the lock."""
    return [path for path in Folders.from_environment().cache.iterdir() if path.suffix != ".lock"]


def test_a_file_is_fetched_once_from_the_mirror(served: Served, said: list[str]) -> None:
    shown: list[tuple[int, int]] = []
    file = fetch("test", say=said.append, progress=lambda done, of: shown.append((done, of)))
    assert file == Folders.from_environment().cache / "weights.pth"
    assert file.read_bytes() == CONTENT
    assert parts() == [file]
    assert served.asked == [("/mirror/weights.pth", None)]
    assert shown[-1] == (1, 1)
    fetch("test", say=said.append)
    assert len(served.asked) == 1
    assert said == [f"from {served.address}/mirror/weights.pth", f"{file}: is there already, and whole"]
    file.write_bytes(b"another file")
    assert fetch("test", say=quiet).read_bytes() == CONTENT


def test_it_goes_where_scores_look_for_it(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_WEIGHTS", str(tmp_path / "own" / "name.pth"))
    assert fetch("test", say=quiet) == tmp_path / "own" / "name.pth"


def test_what_broke_off_goes_on_where_it_stopped(served: Served, said: list[str]) -> None:
    served.breaks_off_after = 5000
    with pytest.raises(ConnectionError, match="broke off after 5,000 of 1,280,000 bytes, which are kept; run the"):
        fetch("test", say=quiet)
    (part,) = parts()
    assert part.name == ".weights.pth.part"
    served.breaks_off_after = None
    assert fetch("test", say=said.append).read_bytes() == CONTENT
    assert served.asked[-1] == ("/mirror/weights.pth", "bytes=5000-")
    assert said == [f"from {served.address}/mirror/weights.pth, from byte 5,000 on"]
    assert [path.name for path in parts()] == ["weights.pth"]


@pytest.mark.parametrize("here", [5000, len(CONTENT)])
def test_a_server_that_gives_no_parts_gives_it_anew(served: Served, here: int) -> None:
    served.takes_ranges = False
    folder = Folders.from_environment().cache
    folder.mkdir(parents=True)
    (folder / ".weights.pth.part").write_bytes(b"x" * here)
    assert fetch("test", say=quiet).read_bytes() == CONTENT


def test_a_file_that_only_its_name_is_missing_of(served: Served) -> None:
    """All of it was here when the process ended: the server has nothing behind it, and the checksum decides."""
    folder = Folders.from_environment().cache
    folder.mkdir(parents=True)
    (folder / ".weights.pth.part").write_bytes(CONTENT)
    assert fetch("test", say=quiet).read_bytes() == CONTENT


def test_another_file_is_refused_and_not_kept(served: Served) -> None:
    served.content = CONTENT[:-1] + b"x"
    with pytest.raises(BadInput, match=f"begins with .{{8}}, expected {DIGEST[:8]}: another file, or damaged"):
        fetch("test", say=quiet)
    assert parts() == []


def test_a_file_without_end_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MOST_BYTES", 1 << 20)
    with pytest.raises(BadInput, match="more than 1 MiB; expected a file of weights"):
        fetch("test", say=quiet)
    assert parts() == []


def test_a_proxy_is_asked_for_the_published_address(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRUGAN_MIRROR")
    monkeypatch.setenv("http_proxy", served.address)
    assert fetch("test", say=quiet).read_bytes() == CONTENT
    assert served.asked == [("http://other.invalid/weights.pth", None)]


def test_without_a_connection_a_line_says_what_to_do(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("FRUGAN_MIRROR", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(ConnectionError, match=r"no connection \(.*refused.*\)\. Run the .* FRUGAN_MIRROR, or bring"):
        fetch("test", say=quiet)
    monkeypatch.setenv("FRUGAN_MIRROR", f"{served.address}/nothing")
    with pytest.raises(ConnectionError, match="404 Not Found; FRUGAN_MIRROR may name"):
        fetch("test", say=quiet)


@pytest.mark.parametrize("mirror", ["ftp://host/folder", "/a/folder", "https://"])
def test_a_mirror_is_an_address(served: Served, monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    monkeypatch.setenv("FRUGAN_MIRROR", mirror)
    with pytest.raises(BadInput, match=f"FRUGAN_MIRROR {mirror}: expected the address of a folder"):
        fetch("test", say=quiet)


def test_the_command(served: Served) -> None:
    result = CliRunner().invoke(application(), ["fetch", "tets"])
    assert str(result.exception) == "tets: nothing to fetch; expected test (did you mean test?)"
    result = CliRunner().invoke(application(), ["fetch", "test"])
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("weights.pth\n")
