"""Training on shards that lie on a web server: the weights of a folder's, also when it stops and goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.pictures import write_pictures, write_recipe
from contract.rig import assert_same
from data.shard_server import ShardServer, serving
from frugan.api.train.options import TrainingOptions
from frugan.api.train.training import train
from frugan.cli.main import run as command
from frugan.data import fetching
from frugan.data.fitting import Fitting
from frugan.data.pack_pictures import pack_pictures
from frugan.data.picture_set import open_prepared
from frugan.data.shard_writer import Shards
from frugan.engine.tensor_files import read_tensors
from frugan.errors import BadInput

CPU = TrainingOptions(device="cpu")
ENCODED = ["data.stored=encoded"]


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FRUGAN_BASE", str(tmp_path / "base"))
    monkeypatch.setattr(fetching, "PAUSE_SECONDS", 0.01)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ShardServer]:
    """A recipe, and its pictures as shards in a folder and on a server."""
    write_recipe(tmp_path)
    pack_pictures(write_pictures(tmp_path / "pictures"), tmp_path / "shards", Shards(shard_bytes=9000), Fitting(32))
    with serving() as made:
        for file in (tmp_path / "shards").iterdir():
            made.files[f"/set/{file.name}"] = file.read_bytes()
        yield made


def _pattern(server: ShardServer) -> str:
    last = sum(path.endswith(".tar") for path in server.files) - 1
    assert last > 1
    return f"{server.address}/set/shard-{{000000..{last:06d}}}.tar"


def _weights(run: Path) -> dict[str, object]:
    return dict(read_tensors(run / "checkpoints" / "step-000000004" / "networks.safetensors")[0])


@pytest.mark.long
def test_weights_are_those_of_a_folder(server: ShardServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared from shards that are kept one at a time."""
    recipe, said = str(tmp_path / "tiny.toml"), list[str]()
    train(recipe, tmp_path / "shards", tmp_path / "folder", options=CPU)
    largest = max(len(content) for content in server.files.values())
    monkeypatch.setenv("FRUGAN_SHARDS_MOST", f"{largest}B")
    train(recipe, _pattern(server), tmp_path / "pixels", options=CPU, say=said.append)
    assert any("shards, " in line and "fetched to" in line for line in said)
    assert sum(1 for _ in (tmp_path / "base" / "shards").rglob("*.tar")) == 1
    assert_same(_weights(tmp_path / "folder"), _weights(tmp_path / "pixels"))  # type: ignore[arg-type]


@pytest.mark.long
def test_pictures_may_stay_encoded(server: ShardServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded as they are read, stopped, and gone on with."""
    recipe = str(tmp_path / "tiny.toml")
    train(recipe, tmp_path / "shards", tmp_path / "folder", options=CPU)
    largest = max(len(content) for content in server.files.values())
    monkeypatch.setenv("FRUGAN_SHARDS_MOST", f"{largest}B")
    with pytest.raises(BadInput, match="FRUGAN_SHARDS_MOST=500GiB"):
        train(recipe, _pattern(server), tmp_path / "encoded", overrides=ENCODED, options=CPU)
    monkeypatch.delenv("FRUGAN_SHARDS_MOST")
    two = [*ENCODED, "training.duration=2 steps"]
    train(recipe, _pattern(server), tmp_path / "encoded", overrides=two, options=CPU)
    asked = len(server.asked)
    train(recipe, _pattern(server), tmp_path / "encoded", overrides=ENCODED, options=CPU)
    assert sorted(set(server.asked[asked:])) == sorted(server.files)  # what it is now, and nothing fetched again
    assert len(server.asked) - asked == len(server.files)
    assert_same(_weights(tmp_path / "folder"), _weights(tmp_path / "encoded"))  # type: ignore[arg-type]


def test_the_command_prepares_them(
    server: ShardServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["frugan", "prepare", _pattern(server), str(tmp_path / "set"), "--resolution", "32"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code in (0, None)
    assert len(open_prepared(tmp_path / "set")) == 12
    monkeypatch.setattr("sys.argv", [*words[:2], "pipe:cat x.tar", *words[3:]])
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 2
    assert "would run a command" in capsys.readouterr().err


@pytest.mark.parametrize("most", ["much", "0GiB", "200"])
def test_a_size_that_is_none(most: str, server: ShardServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGAN_SHARDS_MOST", most)
    with pytest.raises(BadInput, match=f"FRUGAN_SHARDS_MOST: '{most}' is (not a size|too small)"):
        train(str(tmp_path / "tiny.toml"), _pattern(server), tmp_path / "run", options=CPU)
    assert not (tmp_path / "run").exists()
