"""What is said of sets of pictures that a family reads in part."""

from pathlib import Path

import pytest

from frugan.contract.data import SourceOptions
from frugan.contract.settings import DataSettings
from frugan.data.digits import digits_set
from frugan.data.picture_needs import PictureNeeds


@pytest.mark.parametrize(("classes", "told"), [(None, 1), (10, 0)])
def test_class_folders_that_are_not_read_are_told_of(
    classes: int | None, told: int, tmp_path: Path, said: list[str]
) -> None:
    settings = DataSettings(flip=False, allow_upscale=False)
    options = SourceOptions(settings, tmp_path, said.append, None, {})
    PictureNeeds(8, classes).fitted("images", "images x", digits_set(8), options)
    assert sum("classes: not used" in line and "networks.classes=10" in line for line in said) == told
