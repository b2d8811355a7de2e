"""Labels of one order of classes, in another."""

import numpy as np
import pytest

from frugan.data.formats.picture_set import PictureSet, relabelled


@pytest.fixture
def pictures() -> PictureSet:
    labels = np.array([0, 1, 2, 1])
    return PictureSet(np.zeros((4, 3, 2, 2), np.uint8), labels, ("a", "b", "c"), True, "digest")


def test_labels_follow_the_names(pictures: PictureSet) -> None:
    renamed = relabelled(pictures, ("c", "a", "x"), {"a": "a", "b": "x", "c": "c"})
    assert renamed.labels.tolist() == [1, 2, 0, 2]
    assert renamed.class_names == ("c", "a", "x")
    assert renamed.digest != pictures.digest
    assert pictures.labels.tolist() == [0, 1, 2, 1]


def test_several_classes_become_one(pictures: PictureSet) -> None:
    assert relabelled(pictures, ("a", "b"), {"a": "a", "b": "b", "c": "b"}).labels.tolist() == [0, 1, 1, 1]


def test_a_new_name_alone_is_the_same_data(pictures: PictureSet) -> None:
    renamed = relabelled(pictures, ("a", "dog", "c"), {"a": "a", "b": "dog", "c": "c"})
    assert (renamed.digest, renamed.class_names) == (pictures.digest, ("a", "dog", "c"))
