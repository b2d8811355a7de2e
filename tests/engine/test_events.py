"""The event file after a crash: what was written stays, and the next event stands on a line of its own."""

from pathlib import Path

import pytest

from frugan.engine.run.events import EventLog, read_events


def test_a_path_that_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write("start", command="frugan train --data " + b"bild\xe9".decode("utf-8", "surrogateescape"))
    (event,) = read_events(path)
    assert event["command"] == "frugan train --data bild?"


@pytest.mark.parametrize(
    ("left", "damaged"), [('{"event": "first"}\n', []), ('{"event": "first"}\n{"event": "ha', [2])]
)
def test_half_a_line_is_ended_first(tmp_path: Path, left: str, damaged: list[int]) -> None:
    path, numbers = tmp_path / "events.jsonl", list[int]()
    path.write_text(left, "utf-8")
    with EventLog(path) as log:
        log.write("next", step=1)
    assert [event["event"] for event in read_events(path, numbers.append)] == ["first", "next"]
    assert numbers == damaged
