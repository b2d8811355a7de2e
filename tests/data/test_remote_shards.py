"""Shards on a web server: the same set as in a folder; servers that fail end in a sentence, and leave nothing."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.shard_server import ShardServer, serving
from data.test_shards import encoded, link, tar
from frugan.data import fetching, remote_shards
from frugan.data.fetching import Unreachable
from frugan.data.fingerprint import fingerprint
from frugan.data.fitting import Fitting
from frugan.data.formats import open_source
from frugan.data.pack_pictures import pack_pictures
from frugan.data.picture_set import open_prepared
from frugan.data.prepare import prepare
from frugan.data.remote_shards import refuse_part, stage
from frugan.data.shard_urls import is_address, shard_urls, without_secrets
from frugan.data.shard_writer import Shards
from frugan.errors import BadInput

MakePicture = Callable[..., Image.Image]
MakeFolder = Callable[[dict[str, Image.Image | bytes]], Path]
GIB = 2**30


def quiet(_: str) -> None:
    pass


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(fetching, "SILENT_SECONDS", 0.5)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[ShardServer]:
    with serving() as made:
        yield made


@pytest.fixture
def shards(folder: MakeFolder, picture: MakePicture, server: ShardServer, tmp_path: Path) -> Path:
    """Four shards of three pictures each and the names of their classes, in a folder and on the server."""
    pictures = folder({f"{name}/{i}.png": picture(i, 20, 16) for name in ("cat", "dog") for i in range(6)})
    pack_pictures(pictures, tmp_path / "shards", Shards(shard_bytes=3000), Fitting(16))
    tars = sorted((tmp_path / "shards").glob("*.tar"))
    assert len(tars) > 3
    for file in (tmp_path / "shards").iterdir():
        server.files[f"/set/{file.name}"] = file.read_bytes()
    return tmp_path / "shards"


@pytest.fixture
def pattern(shards: Path, server: ShardServer) -> str:
    last = len(list(shards.glob("*.tar"))) - 1
    return f"{server.address}/set/shard-{{000000..{last:06d}}}.tar"


def staged(pattern: str, tmp_path: Path, most_bytes: int = GIB, say: Callable[[str], None] = quiet) -> Path:
    return stage(pattern, tmp_path / "fetched", most_bytes, say)


def test_it_is_the_set_that_lies_in_a_folder(shards: Path, pattern: str, server: ShardServer, tmp_path: Path) -> None:
    here = staged(pattern, tmp_path)
    assert list(here.glob("*.tar")) == []  # nothing yet
    prepare(shards, tmp_path / "one", resolution=16)
    prepare(here, tmp_path / "other", resolution=16)
    one, other = open_prepared(tmp_path / "one"), open_prepared(tmp_path / "other")
    assert (one.digest, one.class_names) == (other.digest, other.class_names)
    assert one.class_names == ("cat", "dog")
    with open_source(here) as found, open_source(shards) as local:
        assert list(found.names) == list(local.names)
        np.testing.assert_array_equal(np.asarray(found.picture(7)), np.asarray(local.picture(7)))
    tars = [path for path in server.bodies if path.endswith(".tar")]
    fetched = [path for path in server.asked if path.endswith(".tar")]
    assert len(set(tars)) == len(list(here.glob("shard-*.tar")))
    assert len(fetched) == 2 * len(set(tars))  # once for its size, once for the whole, and never again


def test_a_small_cache_gives_the_same_set(shards: Path, pattern: str, tmp_path: Path) -> None:
    """Room for one shard and a half: each is fetched again for every pass, and no more is ever kept."""
    largest = max(file.stat().st_size for file in shards.glob("*.tar"))
    here = staged(pattern, tmp_path, most_bytes=largest * 3 // 2)
    prepare(here, tmp_path / "small", resolution=16)
    prepare(shards, tmp_path / "one", resolution=16)
    assert open_prepared(tmp_path / "small").digest == open_prepared(tmp_path / "one").digest
    assert sum(file.stat().st_size for file in here.glob("*.tar")) <= largest * 3 // 2
    with pytest.raises(BadInput, match="FRUGAN_SHARDS_MOST=500GiB"):
        refuse_part(here)
    refuse_part(staged(pattern, tmp_path))


def test_the_key_is_of_what_the_server_has(pattern: str, server: ShardServer, shards: Path, tmp_path: Path) -> None:
    before = fingerprint(staged(pattern, tmp_path), Fitting(16))
    here = staged(pattern, tmp_path)
    with open_source(here):
        pass
    assert fingerprint(here, Fitting(16)) == before  # whatever has been fetched
    stale = {file.name for file in here.glob("shard-*.tar")}
    server.files["/set/shard-000001.tar"] = server.files["/set/shard-000002.tar"] + bytes(512)
    assert fingerprint(staged(pattern, tmp_path), Fitting(16)) != before
    assert len(stale - {file.name for file in here.glob("shard-*.tar")}) == 1
    assert fingerprint(staged(pattern, tmp_path), Fitting(8)) != fingerprint(here, Fitting(16))


def test_a_server_that_is_away_does_no_harm_to_what_was_fetched(
    shards: Path, folder: MakeFolder, picture: MakePicture, tmp_path: Path
) -> None:
    lines: list[str] = []
    with serving() as server:
        server.files["/a.tar"] = next(shards.glob("*.tar")).read_bytes()
        url = f"{server.address}/a.tar"
        here = staged(url, tmp_path)
        with open_source(here) as found:
            names = list(found.names)
    again = staged(url, tmp_path, say=lines.append)
    assert any("cannot be reached" in line and "Going by what it said before" in line for line in lines)
    with open_source(again) as found:
        assert list(found.names) == names
    shutil.rmtree(here)
    with pytest.raises(Unreachable, match=r"a\.tar cannot be reached .* is there a network\?"):
        staged(url, tmp_path)


def test_a_shard_that_is_missing(pattern: str, server: ShardServer, tmp_path: Path) -> None:
    del server.files["/set/shard-000002.tar"]
    with pytest.raises(BadInput, match=r"set/shard-000002\.tar: the server answers 404 \(Not Found\)"):
        staged(pattern, tmp_path)


@pytest.mark.parametrize(
    ("status", "message"), [(403, "readable without login"), (500, "3 times"), (418, "the address")]
)
def test_servers_that_refuse(status: int, message: str, pattern: str, server: ShardServer, tmp_path: Path) -> None:
    server.answers["/set/shard-000001.tar"] = [status] * 3
    with pytest.raises(BadInput, match=rf"shard-000001\.tar: the server answers {status} .*{message}"):
        staged(pattern, tmp_path)


def test_what_passes_is_tried_again(pattern: str, server: ShardServer, shards: Path, tmp_path: Path) -> None:
    server.answers["/set/shard-000001.tar"] = [503, 429]
    here = staged(pattern, tmp_path)
    server.cut["/set/shard-000002.tar"] = [700]
    server.answers["/set/shard-000003.tar"] = [500]
    with open_source(here) as found, open_source(shards) as local:
        assert list(found.names) == list(local.names)


@pytest.mark.parametrize("without_size", [False, True])
def test_a_shard_that_is_cut_short(without_size: bool, pattern: str, server: ShardServer, tmp_path: Path) -> None:
    """On its way, or where the server tells no size: then the mark at the tar's end is missing."""
    server.without_size = without_size
    here = staged(pattern, tmp_path)
    server.cut["/set/shard-000001.tar"] = [700] * (1 if without_size else 3)  # tried again where it shows
    said = "(cannot be read|is cut short)" if without_size else "it ends after 700 of"
    with pytest.raises(BadInput, match=rf"shard-000001\.tar:? {said}"):
        open_source(here)
    assert len(open_source(here)) == 12  # what was damaged is fetched again
    assert [file.name for file in here.iterdir() if "unfinished" in file.name] == []


@pytest.mark.parametrize("kind", ["silent", "slow"])
def test_a_server_that_hangs(
    kind: str, pattern: str, server: ShardServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = staged(pattern, tmp_path)
    if kind == "silent":
        server.silent.add("/set/shard-000000.tar")
    else:
        server.slow["/set/shard-000000.tar"] = 0.1
    monkeypatch.setattr(fetching, "TRIES", 2)
    with pytest.raises(BadInput, match=r"shard-000000\.tar.*(gave nothing for 0.5 s|nothing for|bytes a second)"):
        open_source(here)
    assert list(here.glob("*.tar")) == []


def test_a_shard_that_changes_meanwhile(pattern: str, server: ShardServer, tmp_path: Path) -> None:
    here = staged(pattern, tmp_path)
    server.files["/set/shard-000001.tar"] += bytes(512)
    with pytest.raises(BadInput, match=r"shard-000001\.tar has changed while it was read"):
        open_source(here)


def test_a_shard_larger_than_what_may_be_kept(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="FRUGAN_SHARDS_MOST"):
        open_source(staged(pattern, tmp_path, most_bytes=600))


def test_a_server_that_fails_while_pictures_are_read_costs_no_pictures(
    pattern: str, shards: Path, server: ShardServer, tmp_path: Path
) -> None:
    """They are not counted among the unreadable ones, of which a set may have a few."""
    largest = max(file.stat().st_size for file in shards.glob("*.tar"))
    with open_source(staged(pattern, tmp_path, most_bytes=largest * 3 // 2)) as found:
        server.answers["/set/shard-000000.tar"] = [403] * 3
        with pytest.raises(BadInput, match=r"shard-000000\.tar: the server answers 403"):
            found.picture(0)


def test_an_endless_answer_ends(pattern: str, server: ShardServer, tmp_path: Path) -> None:
    server.without_size = True
    with pytest.raises(BadInput, match="more than the 600 bytes"):
        open_source(staged(pattern, tmp_path, most_bytes=600))


def test_names_in_a_tar_lead_nowhere(picture: MakePicture, server: ShardServer, tmp_path: Path) -> None:
    """As in a local tar: nothing is unpacked, links are passed over."""
    made = tar(
        tmp_path / "made.tar",
        {
            "../../etc/000.png": encoded(picture(0)),
            "/abs/001.png": encoded(picture(1)),
            "link.png": link("link.png", "/etc/passwd"),
        },
    )
    server.files["/hostile.tar"] = made.read_bytes()
    before = {path for path in tmp_path.rglob("*") if "fetched" not in path.parts}
    with open_source(staged(f"{server.address}/hostile.tar", tmp_path)) as found:
        assert list(found.names) == ["hostile.tar:../../etc/000.png", "hostile.tar:/abs/001.png"]
        np.testing.assert_array_equal(np.asarray(found.picture(1)), np.asarray(picture(1)))
    assert {path for path in tmp_path.rglob("*") if "fetched" not in path.parts} == before
    files = sorted(path.name for path in (tmp_path / "fetched").rglob("*") if path.is_file())
    assert files[0] == "remote-shards.json"
    assert files[1].startswith("shard-000000-")


def test_redirections_stay_on_the_web(server: ShardServer, shards: Path, tmp_path: Path) -> None:
    server.files["/there.tar"] = next(shards.glob("*.tar")).read_bytes()
    server.moved["/moved.tar"] = f"{server.address}/there.tar"
    with open_source(staged(f"{server.address}/moved.tar", tmp_path)) as found:
        assert len(found) > 0
    for number, elsewhere in enumerate((f"file://{tmp_path}/x", "ftp://127.0.0.1/x")):
        server.moved[f"/away-{number}.tar"] = elsewhere
        with pytest.raises(BadInput, match="away"):
            staged(f"{server.address}/away-{number}.tar", tmp_path)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("pipe:curl http://host/a.tar", "would run a command"),
        ("PIPE:rm -rf x", "would run a command"),
        ("s3://bucket/a-{00..09}.tar", "this is s3://"),
        ("file:///etc/a.tar", "this is file://"),
        ("https://host/{0..999999999}.tar", "more than 100,000 shards"),
        ("https://host/{0..999}{0..999}.tar", "more than 100,000 shards"),
        ("https://host/{0..999999999999999999}.tar", "more than 100,000 shards"),
        ("https://host/" + "{0..9999999999999999999}" + ".tar", "expected numbers in braces"),
        ("https://host/" + "{a,b}" * 40 + ".tar", "more than 100,000 shards"),
        ("https://host/{a..b}.tar", "expected numbers in braces"),
        ("https://host/{0..3.tar", "expected numbers in braces"),
        ("https://host/a-{0..3}", "ends in .tar"),
        ("https://host/a.tar.gz", "ends in .tar"),
        ("https://me:secret@host/a.tar", "no user and password"),
        ("https:///a.tar", "no address"),
        ("https://host:port/a.tar", "no address"),
        ("https://ho st/a.tar", "no address"),
        ("https://host/{a,a}.tar", "same shard twice"),
        ("https://host/a.tar::https://host/b.tar", "one pattern"),
    ],
)
def test_addresses_that_are_none(pattern: str, message: str) -> None:
    assert is_address(pattern)
    with pytest.raises(BadInput, match=message) as refused:
        shard_urls(pattern)
    assert "secret" not in str(refused.value)


def test_patterns_are_webdatasets() -> None:
    webdataset = pytest.importorskip("webdataset")
    names = ("a-{0000..0012}", "{a,b}-{08..11}", "{8..11}", "{12..0..3}", "{0..10..4}-{b,a,}", "{10..07}", "{3..3}")
    for pattern in ("https://h/one.tar?x=1", *(f"http://h/{name}.tar" for name in names)):
        assert shard_urls(pattern) == webdataset.shardlists.expand_urls(pattern)
    assert not is_address("pictures/a.tar")
    assert not is_address(r"C:\pictures")
    assert without_secrets("https://h/a.tar?signature=abc") == "https://h/a.tar"


def test_a_damaged_description(pattern: str, tmp_path: Path) -> None:
    here = staged(pattern, tmp_path)
    (here / remote_shards.SET_FILE).write_text('{"pattern": 3')
    with pytest.raises(BadInput, match="is damaged: delete that folder"):
        open_source(here)
