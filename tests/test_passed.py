"""What parts of long runs hold, and what is remembered of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passed import ROOT, Passed, part_of, share


@given(st.dictionaries(st.text(), st.floats(0, 100), max_size=30), st.integers(1, 8))
def test_every_name_is_in_one_part_and_parts_take_about_as_long(seconds: dict[str, float], count: int) -> None:
    parts = [share(seconds, (number, count)) for number in range(1, count + 1)]
    assert sorted(name for part in parts for name in part) == sorted(seconds)
    loads = [sum(seconds[name] for name in part) for part in parts]
    assert max(loads) - min(loads) <= max(seconds.values(), default=0) + 1e-6
    assert parts == [share(dict(reversed(seconds.items())), (n, count))[::-1] for n in range(1, count + 1)]


@pytest.mark.parametrize("text", ["", "3", "0/8", "9/8", "-1/8", "3/8/2", "a/b"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(SystemExit, match="such as 3/8"):
        part_of(text)


def test_a_part_is_read_as_it_is_written() -> None:
    assert part_of("3/8") == (3, 8)


def git(folder: Path, *words: str) -> None:
    named = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A working tree with a commit and no changes."""
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text("/build/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_what_passed_at_a_commit_is_remembered(tree: Path) -> None:
    Passed("tests", tree).keep("a", 2.0)
    Passed("tests", tree).keep("b", 3.0)
    again = Passed("tests", tree)
    assert again.seconds == {"a": 2.0, "b": 3.0}
    assert again.left({"a": 1, "b": 1, "c": 1}, 3).endswith(": 1 in part 3/3")
    assert again.left({"a": 1, "b": 1}, 3).endswith(": nothing")
    assert Passed("faults", tree).seconds == {}
    git(tree, "commit", "--allow-empty", "-m", "second")
    assert Passed("tests", tree).seconds == {}


def test_of_a_tree_with_changes_nothing_is_remembered(tree: Path) -> None:
    began_clean = Passed("tests", tree)
    (tree / "new.py").write_text("")
    began_clean.keep("a", 2.0)
    changed = Passed("tests", tree)
    changed.keep("b", 3.0)
    assert changed.left({"a": 1}, 1).startswith("nothing is remembered")
    (tree / "new.py").unlink()
    assert Passed("tests", tree).seconds == {}


def test_of_a_tree_that_moved_to_another_commit_nothing_is_remembered(tree: Path) -> None:
    began_before = Passed("tests", tree)
    git(tree, "commit", "--allow-empty", "-m", "second")
    began_before.keep("a", 2.0)
    assert Passed("tests", tree).seconds == {}
    git(tree, "checkout", "HEAD~")
    assert Passed("tests", tree).seconds == {}


def test_without_git_nothing_is_remembered(tmp_path: Path) -> None:
    passed = Passed("tests", tmp_path)
    passed.keep("a", 2.0)
    assert passed.commit is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_each_file_has_a_process_of_its_own(tmp_path: Path) -> None:
    bodies = {"good": "pass", "bad": "assert 2 == 3", "dead": "__import__('os').kill(__import__('os').getpid(), 9)"}
    for name, body in bodies.items():
        (tmp_path / f"test_{name}.py").write_text(f"def test_it():\n    {body}\n")
    profile = "from hypothesis import settings\nsettings.register_profile('long')\n"
    (tmp_path / "conftest.py").write_text(profile)
    program = (
        "import sys, whole, pathlib\n"
        "for file, code, seconds, said in whole.run(sorted(pathlib.Path(sys.argv[1]).glob('test_*.py'))):\n"
        "    print(file.stem, code, seconds > 0, 'assert 2 == 3' in said)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT / "tests", check=True, capture_output=True, text=True
    )
    assert sorted(done.stdout.splitlines()) == [
        "test_bad 1 True True",
        "test_dead -9 True False",
        "test_good 0 True False",
    ]
