"""Files that other processes replace while they are read."""

import json
from pathlib import Path
from typing import Any

from frugan.files import atomic_file, read_json


class ReplacedMeanwhile(type(Path())):  # type: ignore[misc]  # PosixPath or WindowsPath
    """A file that another takes the place of between two looks at it."""

    def open(self, *args: Any, **keywords: Any) -> Any:
        with atomic_file(Path(self)) as beside:
            beside.write_text(json.dumps({"of": self.stem}))
        return super().open(*args, **keywords)


def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(tmp_path: Path) -> None:
    """The queue, or who owns a run: as much of the new file as the old one had would count as no file at all."""
    path = tmp_path / "new.json"
    path.write_text("{}")
    assert read_json(ReplacedMeanwhile(path)) == {"of": "new"}
