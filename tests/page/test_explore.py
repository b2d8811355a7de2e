"""The tab "explore", asked as its script asks: pictures, names, projections, and what must not pass."""

import base64
import io
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import numpy as np
import pytest
from PIL import Image

from frugan.engine.run.checkpoint import EMA_FILE, FORMAT, MANIFEST_FILE, NETWORKS_FILE, STATE_FILE
from frugan.engine.run.tensor_files import digest, read_tensors, write_json, write_tensors
from frugan.page.explore import MOST_PICTURE_BYTES
from frugan.page.server import served
from frugan.page.worker import Overtaken, Worker
from page.asking import Answer, Asking
from reporting.test_report import made_run
from sampling.generators import MODELS, write
from sampling.test_projection import bomb

STYLED, CONDITIONED = "styled.safetensors", "conditioned.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("page") / "runs"
    made_run(runs / "untrained")
    write(MODELS["stylegan2"], runs / STYLED)
    write(MODELS["biggan"], runs / CONDITIONED, [f"kind {number}" for number in range(10)])
    (runs.parent / "private.safetensors").write_bytes((runs / STYLED).read_bytes())
    (runs / "linked.safetensors").symlink_to(runs.parent / "private.safetensors")
    return runs


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Asking]:
    with served(folder, 0) as (address, _):
        yield Asking(address)


def drawn(page: Asking, source: str = STYLED, **values: object) -> Any:
    answer = page.post("/explore/draw", {"source": source, "seeds": [3], **values})
    assert answer.status == 200, answer.body
    return answer.json


def picture(address: str) -> Image.Image:
    kind, _, content = address.partition(";base64,")
    assert kind in ("data:image/png", "data:image/webp")
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_what_there_is_to_turn(page: Asking) -> None:
    assert page.get("/explore/sources").json == {"sources": [CONDITIONED, STYLED], "show_given": False}
    about = page.get(f"/explore/about?source={STYLED}").json
    assert {name: about[name] for name in ("family", "side", "styled", "spaces", "directions")} == {
        "family": "StyleGAN2",
        "side": 32,
        "styled": True,
        "spaces": ["w", "w+"],
        "directions": [],
    }
    about = page.get(f"/explore/about?source={CONDITIONED}").json
    assert (about["styled"], about["layers"], about["classes"][3]) == (False, 1, "kind 3")


@pytest.mark.parametrize("source", ["../private.safetensors", "linked.safetensors", "none", "", "..", "/etc/passwd"])
def test_other_files_are_no_sources(page: Asking, source: str) -> None:
    assert page.get(f"/explore/about?{urlencode({'source': source})}").status == 404
    assert page.post("/explore/draw", {"source": source, "seeds": [1]}).status == 404
    assert page.post("/explore/names", {"source": source, "names": {}}).status == 404
    assert projection(page, b"x", source=source).status == 404


def test_nothing_is_kept_behind_a_link(page: Asking, folder: Path) -> None:
    write(MODELS["r3gan"], folder / "other.safetensors")
    (folder / "other-explore").symlink_to(folder.parent)
    try:
        answer = page.post("/explore/draw", {"source": "other.safetensors", "seeds": [1], "method": "sefa"})
        assert answer.status == 404
        assert projection(page, red(), source="other.safetensors").status == 404
    finally:
        (folder / "other-explore").unlink()
        (folder / "other.safetensors").unlink()
    assert not (folder.parent / "directions.json").exists()


def test_a_run_without_checkpoints_says_so(page: Asking) -> None:
    answer = page.get("/explore/about?source=untrained")
    assert answer.status == 422
    assert "no checkpoint yet" in answer.json["error"]


def test_a_picture_comes_with_what_makes_it_again(page: Asking) -> None:
    told = drawn(page, psi=0.5, classes=[2])
    assert "--classes 2 --psi 0.5 --seeds 3" in told["command"]
    assert "frugan.DrawRequest(" in told["python"]
    ((address,),) = told["rows"]
    one = picture(address)
    assert one.size == (32, 32)
    assert one.info["Command"] == told["command"]
    assert one.tobytes() == picture(drawn(page, psi=0.5, classes=[2])["rows"][0][0]).tobytes()
    assert one.tobytes() != picture(drawn(page, psi=1, classes=[2])["rows"][0][0]).tobytes()


def test_a_walk_is_saved_as_an_animation(page: Asking) -> None:
    wish = {"source": CONDITIONED, "seeds": [1, 2], "classes": [3], "columns": 4, "ending": ".gif"}
    answer = page.post("/explore/film", wish)
    assert answer.status == 200, answer.body
    kind, _, content = answer.json["film"].partition(";base64,")
    assert kind == "data:image/gif"
    with Image.open(io.BytesIO(base64.b64decode(content))) as film:
        assert getattr(film, "n_frames", 1) == 6  # there and back again
    assert "--animate walk.gif --frames 4" in answer.json["command"]
    refused = page.post("/explore/film", wish | {"ending": "/../x.gif"})
    assert refused.status == 422
    assert "expected .gif" in refused.json["error"]


@pytest.mark.parametrize("source", [STYLED, CONDITIONED])
def test_a_walk_goes_from_class_to_class(page: Asking, source: str) -> None:
    walk = drawn(page, source, seeds=[3, 5], classes=[2, 7], walk=True, columns=3)
    assert "--classes 2,7 --columns 3 --interpolate both --seeds 3,5" in walk["command"]
    ((first, between, last),) = walk["rows"]
    ends = [drawn(page, source, seeds=[seed], classes=[number])["rows"][0][0] for seed, number in ((3, 2), (5, 7))]
    for shown, alone in zip((first, last), ends, strict=True):
        assert difference(shown, alone) <= 1
    assert all(difference(between, alone) > 5 for alone in ends)
    wish = {"source": source, "seeds": [3, 5], "classes": [2, 7], "columns": 3, "ending": ".gif"}
    told = page.post("/explore/film", wish).json["command"]
    assert "--classes 2,7 --interpolate both --seeds 3,5 --animate walk.gif --frames 3" in told


def difference(one: str, other: str) -> int:
    """The largest of all pixels'."""
    levels = [np.asarray(picture(address).convert("RGB")).astype(int) for address in (one, other)]
    return int(np.abs(levels[0] - levels[1]).max())


@pytest.mark.parametrize("source", [STYLED, CONDITIONED])
def test_directions_are_found_named_moved_and_walked(page: Asking, folder: Path, source: str) -> None:
    told = drawn(page, source, method="sefa", rows=2, columns=3)
    assert (told["labels"], [len(row) for row in told["rows"]]) == (["sefa-1", "sefa-2"], [3, 3])
    renamed = page.post("/explore/names", {"source": source, "names": {"sefa-2": "slant"}})
    assert renamed.json["directions"][:3] == ["sefa-1", "slant", "sefa-3"]
    assert page.get(f"/explore/about?source={source}").json["directions"][1] == "slant"
    moved = drawn(page, source, moves={"slant": 2.5})
    kept = folder / f"{Path(source).stem}-explore" / "directions.json"
    assert f"--directions {kept} --move slant=2.5" in moved["command"]
    assert picture(moved["rows"][0][0]).tobytes() != picture(drawn(page, source)["rows"][0][0]).tobytes()
    walk = drawn(page, source, seeds=[3, 4], walk=True, columns=5, moves={"slant": 1})
    assert [len(row) for row in walk["rows"]] == [5]
    if source == STYLED:
        mixed = drawn(page, source, mix=9, layers=[0, 1], moves={"slant": 1})
        assert "--style-mixing 'rows=3 cols=9 layers=0-1'" in mixed["command"]


# A run that goes on.


def add_checkpoint(folder: Path, step: int) -> Path:
    """Have a run of the folder write weights, which differ from step to step."""
    run, place = folder / "training", folder / "training" / "checkpoints" / f"step-{step:09d}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    tensors, about = read_tensors(folder / STYLED)
    write_tensors(place / EMA_FILE, {key: value * (1 + step / 100) for key, value in tensors.items()}, about)
    (place / NETWORKS_FILE).touch()
    (place / STATE_FILE).write_text(json.dumps({"format": FORMAT, "step": step}))
    files = (EMA_FILE, NETWORKS_FILE, STATE_FILE)
    write_json(place / MANIFEST_FILE, {name: digest(place / name) for name in files})
    (run / "events.jsonl").touch()
    (run / "recipe.json").touch()
    return place


@pytest.fixture
def training(folder: Path) -> Iterator[Path]:
    """The checkpoint of step 3 of a run that goes on."""
    yield add_checkpoint(folder, 3)
    shutil.rmtree(folder / "training")


def about_training(page: Asking, query: str = "") -> Any:
    answer = page.get(f"/explore/about?source=training{query}")
    assert answer.status == 200, answer.body
    return answer.json


def test_directions_are_found_and_drawn_with_the_same_weights(page: Asking, folder: Path, training: Path) -> None:
    assert about_training(page, "&newest")["step"] == 3
    add_checkpoint(folder, 5)
    assert drawn(page, "training", method="pca", rows=1, columns=2)["step"] == 3
    about = about_training(page)  # as the script asks between finding and drawing
    assert (about["step"], about["directions"][0]) == (3, "pca-1")
    told = drawn(page, "training", directions=True, rows=1, columns=3)
    assert (told["step"], told["newest"], told["labels"]) == (3, 5, ["pca-1"])


def test_a_picture_tells_its_weights_and_that_there_are_newer_ones(page: Asking, folder: Path, training: Path) -> None:
    about_training(page, "&newest")
    first = drawn(page, "training")
    assert (first["step"], first["newest"]) == (3, 3)
    assert first["command"].startswith(f"frugan sample {training.parents[1]} ")
    add_checkpoint(folder, 5)
    again = drawn(page, "training")
    assert (again["step"], again["newest"]) == (3, 5)
    assert picture(again["rows"][0][0]).tobytes() == picture(first["rows"][0][0]).tobytes()
    assert again["command"].startswith(f"frugan sample {training} ")  # the run draws with others by now
    assert again["command"].endswith("# step 3")
    shutil.rmtree(training)
    assert about_training(page, "&newest")["step"] == 5
    taken = drawn(page, "training")
    assert (taken["step"], taken["newest"]) == (5, 5)
    assert picture(taken["rows"][0][0]).tobytes() != picture(first["rows"][0][0]).tobytes()


def test_directions_of_earlier_weights_are_refused_in_words_for_a_browser(
    page: Asking, folder: Path, training: Path
) -> None:
    about_training(page, "&newest")
    drawn(page, "training", method="sefa", rows=1, columns=2)
    add_checkpoint(folder, 5)
    assert about_training(page, "&newest")["directions"] == []  # another window
    for address, wish in (("draw", {"seeds": [3], "moves": {"sefa-1": 1}}), ("names", {"names": {"sefa-1": "x"}})):
        answer = page.post(f"/explore/{address}", {"source": "training", **wish})
        assert answer.status == 422
        assert "in other weights than those of step 5" in answer.json["error"]
        assert "--" not in answer.json["error"]


def test_a_projection_ends_with_the_weights_that_it_began_with(page: Asking, folder: Path, training: Path) -> None:
    about_training(page, "&newest")
    projection(page, red(), source="training", steps=60)
    while page.get("/explore/project").json["going"]["done"] == 0:
        time.sleep(0.01)
    add_checkpoint(folder, 5)
    assert about_training(page, "&newest")["step"] == 3  # opened again while it looks
    assert not page.get("/explore/project").json["going"]["ended"]
    going = ended(page)
    assert (going["error"], about_training(page)["step"]) == ("", 3)
    assert going["result"]["command"].endswith("# step 3")
    assert drawn(page, "training", seeds=[], kept=[going["name"]])["step"] == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"moves": {"none": 1}}, "no direction is called|no such file"),
        ({"moves": {"a": "b"}}, "a: expected a number, or two"),
        ({"seeds": ["1"]}, "seeds: expected whole numbers"),
        ({"seeds": [-1]}, "--seeds -1: expected a whole number"),
        ({"seeds": list(range(300))}, "300 pictures: expected at most 200"),
        ({"classes": [99]}, "--classes 99: expected 0 to 9"),
        ({"psi": "x"}, "psi: expected a number"),
        ({"psi": 1e9}, "--psi"),
        ({"noise": "loud"}, "noise 'loud': expected const or random or none"),
        ({"kept": ["../x"]}, "'../x': no name of a kept picture"),
        ({"kept": ["x"]}, "no such file"),
        ({"method": "/etc/passwd"}, "method '/etc/passwd': expected sefa or pca"),
        ({"columns": 10**9, "walk": True, "seeds": [1, 2]}, "expected at most"),
        ({"mix": 1, "layers": [99]}, "layers 99: expected 0 to"),
    ],
)
def test_what_cannot_be_drawn_is_refused(page: Asking, values: dict[str, object], message: str) -> None:
    answer = page.post("/explore/draw", {"source": STYLED, "seeds": [3], **values})
    assert answer.status == 422
    assert pytest.RaisesExc(Exception, match=message).matches(Exception(answer.json["error"]))


# Projections.


def projection(page: Asking, content: bytes, **words: object) -> Answer:
    asked = urlencode({"source": STYLED, "name": "My picture!.png", "steps": 3, **words})
    headers = {"Authorization": f"Bearer {page.token}", "Content-Type": "application/octet-stream"}
    return page.ask("POST", f"/explore/project?{asked}", content, headers)


def red() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(file, "PNG")
    return file.getvalue()


def ended(page: Asking) -> Any:
    """What became of the newest projection."""
    for _ in range(600):
        going = page.get("/explore/project").json["going"]
        if going["ended"]:
            return going
        time.sleep(0.05)
    raise AssertionError("no end")


def test_a_picture_is_looked_for_and_kept(page: Asking) -> None:
    begun = projection(page, red(), space="w+").json["going"]
    assert (begun["name"], begun["steps"]) == ("My-picture", 3)
    going = ended(page)
    assert going["error"] == ""
    told = r" x \d+ pixels \(distance (\S+), that of the mean picture (\S+); features: small\)$"
    numbers = re.search(told, going["result"]["nearness"])
    assert numbers is not None
    assert float(numbers[1]) < float(numbers[2])
    assert len(going["result"]["pictures"]) == 3
    assert "--project My-picture.png --space w+ --steps 3" in going["result"]["command"]
    assert page.get(f"/explore/about?source={STYLED}").json["kept"] == ["My-picture"]
    told = drawn(page, seeds=[], kept=["My-picture"])
    assert "--latents" in told["command"]
    assert drawn(page, seeds=[4], kept=["My-picture"], walk=True, columns=3)["rows"][0]
    assert projection(page, red()).json["going"]["name"] == "My-picture-2"
    ended(page)


@pytest.mark.parametrize(
    ("content", "message"),
    [(bomb(), "decompression bomb"), (bomb(9000), "expected at most 50,000,000"), (b"x", "picture")],
)
def test_what_is_no_picture_is_refused(page: Asking, content: bytes, message: str) -> None:
    assert projection(page, content).status == 200
    assert message in ended(page)["error"]


def test_projections_that_cannot_begin(page: Asking) -> None:
    assert projection(page, b"x" * (MOST_PICTURE_BYTES + 1)).status == 413
    for words in ({"steps": "-1"}, {"steps": 10**6}, {"steps": "x"}, {"features": "/etc/passwd"}):
        assert projection(page, red(), **words).status == 422
    projection(page, red(), space="q")
    assert "--space q: expected w or w+" in ended(page)["error"]


def test_the_page_draws_while_a_projection_goes_on_and_ends_it(page: Asking) -> None:
    projection(page, red(), steps=5000)
    assert drawn(page, seeds=[8])["rows"]
    going = page.get("/explore/project").json["going"]
    assert not going["ended"]
    page.post("/explore/stop", {})
    assert ended(page)["error"] == "stopped"


def test_of_requests_that_wait_only_the_newest_is_carried_out() -> None:
    worker, gate, done = Worker(), [False], list[int]()

    def long() -> None:
        while not gate[0]:
            time.sleep(0.001)
        worker.between("long")
        done.append(-1)

    first = worker.ask("long", long)
    while worker._waiting:
        time.sleep(0.001)
    several = [worker.ask("draw", lambda number=number: done.append(number)) for number in range(50)]  # type: ignore[misc]
    gate[0] = True
    first.result(10)
    several[-1].result(10)
    assert done == [49, -1]
    for each in several[:-1]:
        with pytest.raises(Overtaken):
            each.result(10)
    failed = worker.ask("draw", lambda: cast(Any, None).x)
    with pytest.raises(AttributeError):
        failed.result(10)
    assert worker.ask("draw", lambda: 7).result(10) == 7
