"""Nothing gets in: foreign hosts, other origins, wrong tokens, other methods, bodies that never end, ways out."""

import json
import os
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from frugan.errors import BadInput
from frugan.page.guard import MOST_BODY_BYTES
from frugan.page.server import served
from page.asking import Asking
from reporting.test_report import made_run

ADDRESSES = ("/", "/page.js", "/api/runs", "/api/runs/one", "/sheets/one/samples/50", "/report/one", "/none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, and beside their folder what is private."""
    base = tmp_path_factory.mktemp("page")
    made_run(base / "runs" / "one")
    private = made_run(base / "private")
    (base / "runs" / "linked").symlink_to(private)
    for name, part in (("sheets", "samples"), ("events", "events.jsonl"), ("recipe", "recipe.json")):
        run = made_run(base / "runs" / name, steps=2, grids=1)
        target = run / part
        target.rename(run / "moved")
        target.symlink_to(private / part)
    (base / "runs" / "group").mkdir()
    (base / "runs" / "group" / "linked").symlink_to(private)
    (base / "runs" / "outside").symlink_to(base)
    made_run(base / "runs" / "group" / "deep" / "deeper", steps=2, grids=0)
    sheet = base / "runs" / "one" / "samples" / "step-000000060-samples.png"
    sheet.symlink_to(private / "samples" / "step-000000050-samples.png")
    return base / "runs"


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Asking]:
    with served(folder, 0) as (address, _):
        yield Asking(address)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_a_foreign_host_is_refused_whatever_its_token(page: Asking, host: str) -> None:
    """A name of another's that leads to this machine (DNS rebinding)."""
    assert page.get("/api/runs", Host=f"{host}:{page.port}").status == 403
    assert page.get("/api/runs", Host=f"localhost:{page.port}").status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])
def test_another_origin_is_refused(page: Asking, origin: str) -> None:
    origin = origin.format(port=page.port)
    assert page.get("/api/runs", Origin=origin).status == 403
    assert page.post("/api/queue", {"run": "one", "do": "remove"}, Origin=origin).status == 403
    assert page.post("/api/queue", {"run": "one", "do": "remove"}, Sec_Fetch_Site="same-site").status == 403
    assert page.post("/api/queue", {"run": "one", "do": "x"}, Origin=f"http://127.0.0.1:{page.port}").status == 422


@pytest.mark.parametrize("path", ADDRESSES)
def test_without_its_token_nothing_is_told(page: Asking, path: str) -> None:
    right = page.token
    for given in ({}, *({"Authorization": f"Bearer {word}"} for word in ("", "x", right[:-1], right + "x", "é"))):
        headers = {name: value.encode("latin-1").decode("latin-1") for name, value in given.items()}
        answer = page.ask("GET", path, headers=headers)
        assert answer.status == 401
        assert b"frugan page" in answer.body
        assert "set-cookie" not in answer.headers
    assert page.ask("GET", path, headers={"Cookie": f"frugan-{page.port}={right}x"}).status == 401
    assert page.get(path).status == (404 if path == "/none" else 200)


def test_the_token_moves_from_the_address_into_a_cookie(page: Asking) -> None:
    entered = page.ask("GET", f"/?token={page.token}")
    assert (entered.status, entered.headers["location"]) == (303, "/")
    cookie, *about = entered.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict"} <= set(about)
    assert page.ask("GET", "/api/runs", headers={"Cookie": cookie}).status == 200
    assert page.ask("GET", "/?token=wrong", headers={"Cookie": cookie}).status == 401
    assert (
        page.ask("GET", f"/api/runs?token={page.token}").status == 401
    )  # an address that can be passed on opens nothing


@pytest.mark.parametrize("path", ["/", "/api/runs", "/sheets/one/samples/50", "/none", "/report/one"])
def test_every_answer_says_what_a_browser_must_not_do(page: Asking, path: str) -> None:
    for answer in (page.get(path), page.ask("GET", path)):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy or "sandbox allow-scripts;" in f"{policy};"  # the report has no origin
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods(page: Asking, method: str) -> None:
    assert page.ask(method, "/api/runs", headers={"Authorization": f"Bearer {page.token}"}).status == 405


OUT = (
    "/api/runs/..",
    "/api/runs/%2e%2e",
    "/api/runs/..%2fprivate",
    "/api/runs/..%2f..%2fetc",
    "/api/runs/%2e%2e%2fprivate",
    "/api/runs/linked",
    "/api/runs/sheets",
    "/api/runs/events",
    "/api/runs/recipe",
    "/api/runs/one%2fsamples",
    "/api/runs/.queue",
    "/api/runs/group/linked",
    "/api/runs/group",
    "/api/runs/group/deep/deeper",
    "/api/runs/outside/private",
    "/api/runs/group/../../private",
    "/api/runs/group/%2e%2e%2f%2e%2e%2fprivate",
    "/api/runs//one",
    "/api/runs/one/",
    "/api/runs/one%00",
    "/report/..%2fprivate",
    "/report/linked",
    "/sheets/..%2fprivate/samples/50",
    "/sheets/linked/samples/50",
    "/sheets/one/..%2f..%2fprivate%2fsamples/50",
    "/sheets/one/samples/60",
    "/sheets/one/samples/99999999999999999999999",
    "/../pyproject.toml",
    "/runs/one/events.jsonl",
    "/one/",
    "//etc/passwd",
    "/" + "a" * 5000,
)


@pytest.mark.parametrize("path", OUT, ids=lambda path: path[:40])
def test_no_way_leads_out_of_the_folder(page: Asking, path: str) -> None:
    for answer in (page.get(path), page.get(f"{path}?width=100")):
        assert answer.status == 404, answer.body
    assert [run["name"] for run in page.get("/api/runs").json["runs"]] == ["one"]


def test_runs_are_asked_by_their_own_names_alone(page: Asking, folder: Path) -> None:
    for name in ("..", "linked", "..%2fprivate", "%2e%2e%2fprivate"):
        for what, values in (("ask", {"wish": "stop"}), ("go-on", {"data": str(folder)}), ("go-on", {"fields": {}})):
            assert page.post(f"/api/runs/{name}/{what}", values).status in (404, 422), name
    assert not (folder.parent / "private" / "requests").exists()
    assert not (folder / "queue.json").exists()


def test_bodies_that_are_too_large(page: Asking) -> None:
    assert page.post("/api/start", {"name": "x" * (1 << 17)}).status == 413
    head = {"Authorization": f"Bearer {page.token}", "Content-Type": "application/json"}
    for length in (str(MOST_BODY_BYTES + 1), "9" * 30):
        assert page.ask("POST", "/api/start", None, {**head, "Content-Length": length}).status in (400, 413)
    with socket.create_connection(("127.0.0.1", page.port), timeout=30) as caller:  # what never says how long it is
        lines = [f"{name}: {value}" for name, value in head.items()]
        start = ["POST /api/start HTTP/1.1", f"Host: 127.0.0.1:{page.port}", *lines, "Transfer-Encoding: chunked"]
        caller.sendall("\r\n".join([*start, "", ""]).encode())
        caller.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n" + b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert caller.recv(100).startswith(b"HTTP/1.1 413")
    deep = b"[" * 60_000
    for body in (b"", b"{", b"[]", b"1", deep, b'{"name": 1}', b'{"name": "a\\u0000b"}', b"\xff"):
        assert page.ask("POST", "/api/start", body, head).status in (400, 422), body[:20]
    assert page.ask("POST", "/api/start", b"{}", {**head, "Content-Type": "text/plain"}).status == 415


def test_a_picture_that_is_a_bomb_or_none(tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs" / "bad", steps=2, grids=0)
    start, end = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\x08\x02\0\0\0"
    for step, side in ((1, 60_000), (4, 9_000)):
        head = start + side.to_bytes(4) * 2 + end
        head += zlib.crc32(head[12:]).to_bytes(4) + b"\0\0\0\x0cIDAT"
        (run / "samples" / f"step-{step:09d}-samples.png").write_bytes(head)
    (run / "samples" / "step-000000002-samples.png").write_bytes(b"<html><script>alert(1)</script>")
    os.mkfifo(run / "samples" / "step-000000003-samples.png")
    with served(tmp_path / "runs", 0) as (address, _):
        page = Asking(address)
        for step, plain in ((1, 422), (2, 422), (3, 404)):
            assert page.get(f"/sheets/bad/samples/{step}").status == plain
            assert page.get(f"/sheets/bad/samples/{step}?width=300").status == plain
        assert b"9000 x 9000 pixels are too many" in page.get("/sheets/bad/samples/4?width=300").body
        assert page.get("/api/runs/bad").status == 200


def test_only_this_machine_is_listened_to(page: Asking) -> None:
    assert page.address.startswith("http://127.0.0.1:")
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((_own_address(), page.port), timeout=5)


def _own_address() -> str:
    """Another address of this machine; without a network another one of its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as caller:
        try:
            caller.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.2"
        return str(caller.getsockname()[0])


def test_what_cannot_be_served_is_told(tmp_path: Path) -> None:
    run = made_run(tmp_path / "my runs" / "one", steps=2, grids=0)
    runs = run.parent
    with pytest.raises(BadInput, match=r"give the folder that holds it: frugan page '.*/my runs'$"), served(run, 0):
        pass
    with served(runs, 0) as (address, _):
        port = Asking(address).port
        taken = rf"--port {port}: this port is taken by another program, .*\. \d+ is free: name that one, or 0"
        with pytest.raises(BadInput, match=taken), served(runs, port):
            pass
    with pytest.raises(BadInput, match="--port 99999: this port does not exist"), served(runs, 99999):
        pass
    mistyped = r"rusn: is no folder .*; expected one that holds runs"
    with pytest.raises(BadInput, match=mistyped), served(tmp_path / "rusn", 0):
        pass
    assert not (tmp_path / "rusn").exists()


def test_what_a_run_says_is_text_and_never_a_page(tmp_path: Path) -> None:
    run = made_run(tmp_path / "runs" / "one", steps=2, grids=0)
    line = "</script><img src=x onerror=alert(1)>"
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "warning", "step": 2, "line": line}) + "\n")
    with served(tmp_path / "runs", 0) as (address, _):
        page = Asking(address)
        answer = page.get("/api/runs/one")
        assert answer.headers["content-type"] == "application/json"
        assert ["warning", f"step 2: {line}"] in answer.json["notes"]
        report = page.get("/report/one")
        assert line.encode() not in report.body
        assert "sandbox allow-scripts" in report.headers["content-security-policy"]
        assert "allow-same-origin" not in report.headers["content-security-policy"]
