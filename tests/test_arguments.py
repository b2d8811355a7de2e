"""Arguments of a wrong type are refused at every public entrance, in words that say what was expected."""

import re
from collections.abc import Callable
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import frugan
from frugan.errors import checked

UNTYPED: Any = frugan  # as who has no type checker sees it
PICTURES = np.arange(8 * 3 * 32 * 32, dtype=np.uint8).reshape(8, 3, 32, 32)
SET = frugan.PictureSet.from_arrays(PICTURES)
FUNCTIONS = sorted(name for name in frugan.__all__ if name.islower())
RECIPE = "biggan-small-32"


@pytest.mark.parametrize("value", [5, None, {"card": "rtx-2060"}], ids=str)
@pytest.mark.parametrize("name", [*FUNCTIONS, "EmaHook", "ModuleStep"])
def test_no_entrance_takes_a_value_of_no_use(name: str, value: object) -> None:
    entrance = getattr(frugan, name)
    needed = [each.name for each in signature(entrance).parameters.values() if each.default is Parameter.empty]
    with pytest.raises(frugan.BadInput):
        entrance(**dict.fromkeys(needed, value))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: UNTYPED.plan(5), "recipe: expected str or Recipe, not 5 (int)"),
        (lambda: UNTYPED.plan(None), "recipe: expected str or Recipe, not None"),
        (
            lambda: UNTYPED.plan(RECIPE, options={"card": "rtx-2060"}),
            "options: expected PlanOptions or None, not {'card': 'rtx-2060'}; write PlanOptions(card='rtx-2060')",
        ),
        (lambda: UNTYPED.PlanOptions(card=5), "card: expected str or None, not 5 (int)"),
        (
            lambda: UNTYPED.PlanOptions(use="recompute"),
            "use: expected a list of str, not 'recompute'; write ['recompute']",
        ),
        (
            lambda: UNTYPED.plan(RECIPE, card="rtx-3060"),
            "card: belongs to the options; write options=frugan.PlanOptions(card='rtx-3060')",
        ),
        (
            lambda: UNTYPED.evaluate("w", None, samples=100),
            "samples: belongs to the options; write options=frugan.EvaluationOptions(samples=100)",
        ),
        (
            lambda: UNTYPED.EvaluationOptions(metrics="fid"),
            "metrics: expected a tuple of str or None, not 'fid'; write ('fid',)",
        ),
        (
            lambda: UNTYPED.evaluate_real(SET, UNTYPED.EvaluationOptions(metrics=["fdi"])),
            "metrics: expected some of fid,is,kid,pr,dc,intra-fid,cmmd,ppl,eqt,eqt-frac,eqr,two-sample, not fdi (did "
            "you mean fid?)",
        ),
        (
            lambda: UNTYPED.evaluate_real(SET, UNTYPED.EvaluationOptions(metrics=("Precision",))),
            "metrics: expected some of fid,is,kid,pr,dc,intra-fid,cmmd,ppl,eqt,eqt-frac,eqr,two-sample, not Precision "
            "(did you mean pr?)",
        ),
        (lambda: UNTYPED.load_generator(3), "path: expected str or Path, not 3 (int)"),
        (lambda: UNTYPED.train(RECIPE, data=3), "data: expected str or Path or PictureSet or a dict of str or Path"),
        (lambda: UNTYPED.train(RECIPE, data={"images": 3}), "data: expected str or Path or PictureSet or a dict of"),
        (lambda: UNTYPED.train(RECIPE, SET, for_time=5), "for_time: expected str or None, not 5 (int)"),
        (lambda: UNTYPED.PictureSet.from_arrays([PICTURES]), "pictures: expected ndarray, not [array"),
        (
            lambda: UNTYPED.PictureSet.from_arrays(nn.Identity()),
            "pictures: expected ndarray, not Identity()",
        ),
        (
            lambda: UNTYPED.PictureSet.from_arrays(PICTURES, class_names="abcd"),
            "class_names: expected a list of str, not 'abcd'; write ['abcd']",
        ),
        (
            lambda: UNTYPED.draw("w", "out", {"truncation": 0.7}),
            "request: expected DrawRequest or None, not {'truncation': 0.7}; write DrawRequest(truncation=0.7)",
        ),
        (lambda: UNTYPED.DrawRequest(truncation="x"), "truncation: expected float, not 'x' (str)"),
        (
            lambda: UNTYPED.DrawRequest(interpolate=1),
            "interpolate: expected 'class' or 'latent' or 'both' or None",
        ),
        (
            lambda: UNTYPED.evaluate("w", None, {"samples": 100}),
            "options: expected EvaluationOptions or None, not {'samples': 100}; write EvaluationOptions(samples=100)",
        ),
        (lambda: UNTYPED.plan(RECIPE, overrides="a=1"), "overrides: expected a list of str, not 'a=1'; write ['a=1']"),
        (lambda: UNTYPED.fetch("inception", say=1), "say: expected a function, not 1 (int)"),
    ],
)
def test_it_says_what_was_expected(call: Callable[[], object], said: str) -> None:
    with pytest.raises(frugan.BadInput) as refused:
        call()
    assert str(refused.value).startswith(said)


def test_what_is_as_good_is_taken() -> None:
    """NumPy's numbers, lists for tuples, and what an annotation does not say more about."""

    @checked
    def kept(share: float, sides: tuple[int, ...], other: Any, at: str | Path | None = None) -> tuple[Any, ...]:
        return share, sides, other, at

    entrance: Any = kept
    assert entrance(np.float32(0.5), [np.int64(3)], object, at=Path("x"))[1] == [3]
    assert entrance(1, (), None) == (1, (), None, None)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        entrance(1, ())
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        entrance(1, (), None, unknown=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'labels'"):  # of a set, which is no options
        UNTYPED.evaluate("w", labels=1)


def test_a_recipe_of_one_source_trains_on_a_set(tmp_path: Path) -> None:
    overrides = ["training.duration=1 step", "training.batch=2", "training.normalisation_batch=2"]
    result = frugan.train("biggan-small-32", SET, tmp_path / "run", overrides=[*overrides, "networks.classes=1"])
    assert result.finished


def test_one_set_is_not_two_people(tmp_path: Path) -> None:
    said = r"data: one set of pictures, but .* write {'src': …, 'dst': …}"
    with pytest.raises(frugan.BadInput, match=said):
        frugan.train("saehd-demo-64", SET, tmp_path / "run")


def test_labels_may_be_a_list() -> None:
    assert frugan.PictureSet.from_arrays(PICTURES, [0, 1] * 4).class_names == ("0", "1")


def test_options_know_the_fields_that_they_inherit() -> None:
    with pytest.raises(frugan.BadInput, match="seeds: expected a list of int, not 3"):
        UNTYPED.DrawRequest(seeds=3)
    assert frugan.DrawRequest(seeds=range(3), latents=["a.safetensors"]).columns == 10


def test_classes_of_a_generator_are_a_tensor() -> None:
    drawing: Any = frugan.Generator.__new__(frugan.Generator)
    nn.Module.__init__(drawing)
    drawing.latent_size, drawing.classes, drawing._has_styles = 2, 4, False
    with pytest.raises(frugan.BadInput, match=r"classes: list; expected a tensor \[N\]: torch.tensor\(\[0, 1\]\)"):
        drawing(torch.zeros(4, 2), [0, 1, 2, 3])


def test_docstrings_describe_parameters_by_their_names() -> None:
    """The reference pages are made of them, with a warning for each name that is none: "title, by" are two."""
    read = 0
    for name in FUNCTIONS:
        public = getattr(frugan, name)
        part = re.search(r"\nArgs:\n(.*?)(\n\n|\Z)", getdoc(public) or "", re.S)
        described = re.findall(r"^    (\S.*?):", part[1], re.M) if part else []
        assert {*described} <= {*signature(public).parameters}, name
        read += len(described)
    assert read > 50
