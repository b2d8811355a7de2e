"""Files that are well formed up to the point where they are not: made by rule, of parts that fit the format."""

import json
import pickle
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frugan.data.formats.source import Unreadable, classes_from_json
from frugan.engine.run.events import read_events
from frugan.engine.run.tensor_files import read_tensors
from frugan.errors import BadInput
from frugan.faces.data.dfl_jpeg import face_from_metadata, read_face_jpeg
from frugan.faces.data.face import FaceType
from frugan.recipe.loading import parse_recipe
from frugan.reporting.report import page_of
from frugan.safe_pickle.reader import load_pickle
from fuzz.whole_files import run_recipe_folder

LONG_EXAMPLES = settings.get_profile("long").max_examples
CHECKED = settings(
    derandomize=True,
    database=None,
    deadline=2000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
OURS = (BadInput, Unreadable)


def examples(count: int) -> settings:
    """So many in the long profile, a quarter of them in the short one."""
    return settings(CHECKED, max_examples=count * settings().max_examples // LONG_EXAMPLES)


TEXT = st.text(max_size=8)
SIZES = st.sampled_from((0, 1, 2, 3, 255, 65_535, (1 << 31) - 1, (1 << 32) - 1, 1 << 62, -1))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | SIZES
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=10
)


def _sized(form: str) -> st.SearchStrategy[bytes]:
    """A length, true or not, and content."""
    most = (1 << 8 * struct.calcsize(form)) - 1
    content = st.binary(max_size=6)
    lengths = st.integers(0, 8) | st.sampled_from((most, most // 2))
    return st.builds(lambda count, data: struct.pack(form, count) + data, lengths, content)


NAMES = ("os", "system", "numpy", "dtype", "ndarray", "numpy.core.multiarray", "_reconstruct", "scalar", "f4", "<", "b")
WORDS = st.sampled_from(NAMES).map(lambda name: pickle.SHORT_BINUNICODE + bytes([len(name)]) + name.encode())
OPCODES = st.one_of(
    st.binary(min_size=1, max_size=1),
    st.sampled_from(
        (
            *(pickle.NONE, pickle.NEWTRUE, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_TUPLE, pickle.MARK),
            *(pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.APPEND, pickle.APPENDS),
            *(pickle.SETITEM, pickle.SETITEMS, pickle.REDUCE, pickle.BUILD, pickle.STACK_GLOBAL, pickle.MEMOIZE),
            *(pickle.BINGET + b"\0", pickle.BINGET + b"\1", pickle.BINPUT + b"\0", pickle.NEWOBJ, pickle.DUP),
        )
    ),
    WORDS,
    st.tuples(WORDS, WORDS).map(lambda pair: b"".join(pair) + pickle.STACK_GLOBAL),
    _sized("<B").map(lambda sized: pickle.SHORT_BINBYTES + sized),
    _sized("<I").map(lambda sized: pickle.BINBYTES + sized),
    _sized("<Q").map(lambda sized: pickle.BINBYTES8 + sized),
    _sized("<I").map(lambda sized: pickle.BINUNICODE + sized),
    _sized("<B").map(lambda sized: pickle.LONG1 + sized),
)


@examples(150)
@given(st.lists(OPCODES, max_size=25))
def test_pickles_of_any_opcodes(opcodes: list[bytes]) -> None:
    with suppress(*OURS):
        load_pickle(b"\x80\x04" + b"".join(opcodes) + b".", "p")


SEGMENTS = st.builds(
    lambda marker, sized: b"\xff" + bytes([marker]) + sized,
    st.sampled_from((0xD8, 0xC0, 0xC2, 0xC4, 0xDA, 0xD9, 0xE0, 0xEF, 0xFF, 0x00, 0x01)),
    _sized(">H"),
)


@examples(80)
@given(st.lists(SEGMENTS, max_size=8))
def test_jpegs_of_any_segments(parts: list[bytes]) -> None:
    with suppress(*OURS):
        read_face_jpeg(b"\xff\xd8" + b"".join(parts), "f.jpg")


LABELS = st.lists(st.tuples(st.sampled_from(("a.png", "b.png")), VALUES).map(list), max_size=3)


@examples(50)
@given(st.fixed_dictionaries({"labels": LABELS | VALUES}) | VALUES)
def test_listings_of_any_labels(content: Any) -> None:
    with suppress(*OURS):
        classes_from_json(json.dumps(content).encode(), ["a.png", "b.png"], "dataset.json")


KEYS = ("landmarks", "source_landmarks", "source_rect", "image_to_face_mat", "eyebrows_expand_mod", "seg_ie_polys")
FACE = [[float(n), float(n * n % 97)] for n in range(68)]
POINTS = st.builds(
    lambda at, value: [*FACE[:at], value, *FACE[at + 1 :]],
    st.integers(0, 67),
    st.floats() | VALUES | st.just([1.0, 2.0]),
)
POLYGONS = st.fixed_dictionaries({"polys": st.lists(st.fixed_dictionaries({"type": LEAVES, "pts": POINTS | VALUES}))})


@examples(60)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES | POLYGONS, max_size=4), POINTS, VALUES)
def test_faces_of_any_metadata(about: dict[str, Any], landmarks: Any, mask: Any) -> None:
    with suppress(*OURS):
        face_from_metadata(
            {"landmarks": landmarks, **about}, where="f", name="f", face_type=FaceType.FULL, size=(128, 128), mask=mask
        )


TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(("F32", "I64", "BOOL", "F8_E4M3", "Q")) | VALUES,
        "shape": st.lists(SIZES | st.integers(0, 4), max_size=4) | VALUES,
        "data_offsets": st.lists(SIZES | st.integers(0, 32), min_size=2, max_size=2) | VALUES,
    }
)


@examples(80)
@given(st.dictionaries(TEXT | st.just("__metadata__"), TENSOR | VALUES, max_size=3), st.binary(max_size=32))
def test_tensor_files_of_any_header(tmp_path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    with suppress(*OURS):
        read_tensors(path)


NUMBERS = st.fixed_dictionaries(
    {
        "terms": st.dictionaries(TEXT, LEAVES, max_size=2) | VALUES,
        "gradient_norm": LEAVES,
        "loss_scale": LEAVES,
        "skipped": LEAVES,
    }
)
EVENTS = st.fixed_dictionaries(
    {
        "event": st.sampled_from(
            ("start", "step", "metrics", "resume", "variety", "stop", "choice", "rollback", "skipped")
        ),
        "step": SIZES | LEAVES,
        "images": SIZES | LEAVES,
        "seconds": LEAVES,
        "eta_seconds": LEAVES,
        "phases": st.dictionaries(TEXT, NUMBERS | VALUES, max_size=2) | VALUES,
        "scores": st.dictionaries(st.sampled_from(("fid", "kid_mean")), LEAVES, max_size=2) | VALUES,
        "mean": VALUES,
        "parameters": VALUES,
        "images_per_second": LEAVES,
    }
)


@examples(50)
@given(st.lists(EVENTS | VALUES, max_size=6))
def test_reports_of_any_events(tmp_path: Path, events: list[Any]) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join(json.dumps(event) for event in events), "utf-8")
    assert len(list(read_events(path))) == sum(isinstance(event, dict) for event in events)
    assert "</html>" in page_of([tmp_path])


@examples(60)
@given(st.data())
def test_recipes_of_any_values(data: st.DataObject) -> None:
    values = json.loads(run_recipe_folder()["recipe.json"])
    for _ in range(data.draw(st.integers(1, 3))):
        place = values
        while True:
            key = data.draw(st.sampled_from(sorted(place)))
            if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
                break
            place = place[key]
        place[key] = data.draw(VALUES)
    with suppress(*OURS):
        parse_recipe(values, "recipe.json")
