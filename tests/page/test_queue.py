"""The queue: one training after the other, whatever happens to the page, to what works it off, or to a training."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from frugan.errors import BadInput
from frugan.page.owners import QUIET_SECONDS, Owners
from frugan.page.queue import MOST_ENTRIES, Queue
from page.made_up_program import program


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    yield Queue(tmp_path, program(sys.executable))
    (tmp_path / "go").touch()  # for trainings that a test which failed has left


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def add(queue: Queue, run: str, *words: str) -> None:
    queue.add(run, [*words, "--out", str(queue.runs / run)])


def states(queue: Queue) -> dict[str, str]:
    return {entry.run: entry.state for entry in queue.entries()}


def test_what_waits_is_in_order_and_a_run_waits_once(queue: Queue) -> None:
    for run in ("a", "b", "c", "a"):
        add(queue, run)
    assert list(states(queue)) == ["b", "c", "a"]
    queue.to_front("a")
    assert list(states(queue)) == ["a", "b", "c"]
    queue.add("d", ["--out", "d"], first=True)
    assert list(states(queue)) == ["d", "a", "b", "c"]
    queue.remove("b")
    queue.remove("none")
    assert list(states(queue)) == ["d", "a", "c"]
    many = [{"run": f"n{number}", "words": []} for number in range(MOST_ENTRIES)]
    queue.path.write_text(json.dumps({"entries": many}))
    with pytest.raises(BadInput, match="wait already"):
        add(queue, "more")


def test_fifty_clicks_begin_one_training(queue: Queue) -> None:
    """Whoever clicks, in however many tabs."""
    go = queue.runs / "go"

    def click(_: int) -> None:
        with suppress(BadInput):  # it has begun
            add(queue, "a", f"until={go}")
        queue.ensure_runner()

    with ThreadPoolExecutor(16) as clicks:
        list(clicks.map(click, range(50)))
    wait_for(lambda: states(queue).get("a") == "running")
    with pytest.raises(BadInput, match="a: its training has begun already"):
        add(queue, "a")
    go.touch()
    wait_for(lambda: states(queue) == {"a": "ended"})
    assert lines(queue.runs / "trained") == ["a"]
    assert len(lines(queue.runs / "workers")) == 1


def test_trainings_follow_one_another_when_the_page_is_killed(queue: Queue) -> None:
    go = queue.runs / "go"
    add(queue, "a", f"until={go}")
    add(queue, "b")
    page = subprocess.Popen(
        [sys.executable, "-c", PAGE, str(queue.runs), *queue.program], stdout=subprocess.PIPE, start_new_session=True
    )
    assert page.stdout is not None
    assert page.stdout.readline() == b"began\n"
    wait_for(lambda: states(queue)["a"] == "running")
    os.killpg(page.pid, signal.SIGKILL)  # with all that its terminal would take along
    page.wait()
    page.stdout.close()
    assert states(queue) == {"a": "running", "b": "waiting"}
    go.touch()
    wait_for(lambda: states(queue) == {"a": "ended", "b": "ended"})
    assert lines(queue.runs / "trained") == lines(queue.runs / "ended") == ["a", "b"]
    assert [entry.code for entry in queue.entries()] == [0, 0]


PAGE = """
import sys, time
from pathlib import Path
from frugan.page.queue import Queue
Queue(Path(sys.argv[1]), tuple(sys.argv[2:])).ensure_runner()
print("began", flush=True)
time.sleep(600)
"""


def test_what_works_it_off_is_killed_and_the_training_goes_on(queue: Queue) -> None:
    go = queue.runs / "go"
    add(queue, "a", f"until={go}")
    add(queue, "b")
    queue.ensure_runner()
    wait_for(lambda: states(queue)["a"] == "running")
    (worker,) = lines(queue.runs / "workers")
    os.kill(int(worker), signal.SIGKILL)
    wait_for(lambda: Queue(queue.runs, queue.program)._worked_off() is False)
    again = Queue(queue.runs, queue.program)  # of a page that was started again
    again.ensure_runner()
    wait_for(lambda: len(lines(queue.runs / "workers")) == 2)
    time.sleep(0.5)
    assert states(again) == {"a": "running", "b": "waiting"}  # the new one waits for a training that it did not begin
    go.touch()
    wait_for(lambda: states(again) == {"a": "ended", "b": "ended"})
    assert lines(queue.runs / "ended") == ["a", "b"]


def test_a_training_that_ends_badly_leaves_its_last_lines(queue: Queue) -> None:
    said = r"\x1b[1mfirst\x1b[0m\nstep 1\rstep 2\nout of luck"
    add(queue, "a", "end=1", f"say={said}")
    add(queue, "b")
    queue.work_off()
    first, second = queue.entries()
    assert (first.run, first.code, second.code) == ("a", 1, 0)
    assert queue.last_lines("a") == ["first", "step 2", "out of luck"]
    assert queue.last_lines("none") == []


def test_what_was_asked_of_an_earlier_training_is_not_asked_of_the_next(queue: Queue) -> None:
    requests = queue.runs / "a" / "requests"
    requests.mkdir(parents=True)
    for wish in ("stop", "save", "note"):
        (requests / wish).touch()
    add(queue, "a")
    queue.work_off()
    assert [path.name for path in requests.iterdir()] == ["note"]


def test_a_run_that_is_trained_elsewhere_is_waited_for(queue: Queue) -> None:
    """By a terminal, in another run of the folder: they would share the card."""
    other = queue.runs / "other"
    other.mkdir()
    about = {"host": os.uname().nodename, "process": os.getpid(), "since": "now"}
    (other / "owner.json").write_text(json.dumps(about))
    add(queue, "a")
    queue.ensure_runner()
    wait_for(lambda: lines(queue.runs / "workers"))
    time.sleep(0.5)
    assert states(queue) == {"a": "waiting"}
    (other / "owner.json").unlink()
    wait_for(lambda: states(queue) == {"a": "ended"})


def test_a_run_that_was_being_trained_goes_on_beside_those_of_terminals(queue: Queue) -> None:
    """It trained beside them before it was changed, and waits for itself alone."""
    about = {"host": os.uname().nodename, "process": os.getpid(), "since": "now"}
    for run in ("other", "a"):
        (queue.runs / run).mkdir()
        (queue.runs / run / "owner.json").write_text(json.dumps(about))
    queue.add("a", ["--out", str(queue.runs / "a")], first=True, at_once=True)
    queue.ensure_runner()
    wait_for(lambda: lines(queue.runs / "workers"))
    time.sleep(0.5)
    assert states(queue) == {"a": "waiting"}
    (queue.runs / "a" / "owner.json").unlink()
    wait_for(lambda: states(queue) == {"a": "ended"})
    assert (queue.runs / "other" / "owner.json").exists()


def test_a_run_that_was_being_trained_goes_on_beside_one_that_the_queue_began(queue: Queue) -> None:
    """And no other that waits is begun meanwhile."""
    go = queue.runs / "go"
    add(queue, "b", f"until={go}")
    add(queue, "c")
    queue.ensure_runner()
    wait_for(lambda: states(queue)["b"] == "running")
    queue.add("a", [f"until={go}", "--out", str(queue.runs / "a")], first=True, at_once=True)
    entries = queue.entries()
    (waiting,) = [entry for entry in entries if entry.run == "a"]
    assert queue.ahead(waiting, entries, Owners()) == []
    wait_for(lambda: states(queue)["a"] == "running")
    assert states(queue) == {"a": "running", "b": "running", "c": "waiting"}
    queue.add("a", ["end=1", "--out", str(queue.runs / "a")], first=True, at_once=True)  # and it is changed again
    time.sleep(0.5)
    assert [entry.state for entry in queue.entries() if entry.run == "a"] == ["running", "waiting"]
    go.touch()
    wait_for(lambda: states(queue) == {"a": "ended", "b": "ended", "c": "ended"})
    assert {entry.run: entry.code for entry in queue.entries()} == {"a": 1, "b": 0, "c": 0}
    assert lines(queue.runs / "trained").count("a") == 2
    assert all(entry.words for entry in queue.entries())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"entries": 3}',
        '{"entries": [1, {}, {"run": "a"}, {"run": "../a", "words": []}, {"run": "a", "words": [1]}]}',
        '{"entries": [{"run": "a", "words": [], "state": "odd"}, {"run": "", "words": []}]}',
        '{"entries": [{"run": "..", "words": []}, {"run": "/a", "words": []}]}',
    ],
)
def test_a_file_that_somebody_damaged(queue: Queue, text: str) -> None:
    queue.path.write_text(text)
    assert queue.entries() == []
    with pytest.raises(BadInput, match=r"queue\.json: .*mend it, or move it away"):
        add(queue, "b")
    assert queue.path.read_text() == text  # whatever it was meant to say
    queue.path.unlink()
    add(queue, "b")
    assert states(queue) == {"b": "waiting"}


def test_owners_are_alive_as_long_as_they_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, owners, now = tmp_path / "owner.json", Owners(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    assert owners.process(tmp_path) is None
    owner.write_text(json.dumps({"host": "another", "process": 7}))
    assert owners.process(tmp_path) == 7
    os.utime(owner, (0, 0))  # after a night with the lid closed, or by another machine's clock
    assert owners.process(tmp_path) == 7
    now[0] += QUIET_SECONDS / 2
    assert owners.process(tmp_path) == 7
    now[0] += QUIET_SECONDS
    assert owners.process(tmp_path) is None
    os.utime(owner, (1, 1))
    assert owners.process(tmp_path) == 7
    assert Owners().process(tmp_path) is None  # left behind long ago
    os.utime(owner)
    owner.write_text(json.dumps({"host": os.uname().nodename, "process": 2**30}))
    assert Owners().process(tmp_path) is None  # gone, however lately it wrote
    owner.write_text("nonsense")
    assert Owners().process(tmp_path) is None
