"""Perceptual path length: of a generator whose pictures are known, and by the command's function."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from evaluation.scored import OPTIONS
from frugan.cli.application import application
from frugan.errors import BadInput
from frugan.evaluation import path_length as measured
from frugan.evaluation.evaluation import evaluate
from frugan.evaluation.path_length import path_length
from frugan.evaluation.real_scores import evaluate_real
from frugan.progress import quiet
from frugan.sampling.requests import DrawRequest
from training.pictures import write_pictures


def space(contrast: float) -> Any:
    """Smooth pictures of two numbers, of this contrast."""
    across = torch.linspace(0, 3, 16)

    def draw(points: Tensor, *_: object) -> Tensor:
        waves = torch.sin(across + points[:, 0, :1]) + torch.cos(across + points[:, 0, 1:])
        return contrast * waves[:, None, None, :].expand(-1, 1, 16, 16)

    about = {"classes": 0, "latent_size": 2, "layers": 1, "class_free": True, "mean": torch.zeros(2)}
    return SimpleNamespace(draw=draw, place=lambda z, _: z, **about)


def test_what_changes_faster_has_longer_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    for faster in (1.0, 2.0):
        here = space(0.3)
        here.place = lambda z, _, faster=faster: faster * z
        monkeypatch.setattr(measured, "space_of", lambda *_, here=here: here)
        found = path_length(cast(Any, None), cast(dict[str, nn.Module], {}), DrawRequest(), torch.device("cpu"), 200)
        lengths.append(found["ppl"])
        assert 0 < found["ppl_half_width"] < found["ppl"]
    assert 2 < lengths[1] / lengths[0] < 5  # differences are squared


def test_a_turn_keeps_the_length() -> None:
    start, end = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).double()
    turned = measured._along_circle(start, end)
    assert torch.allclose(turned.norm(dim=1), start.norm(dim=1))
    cosine = torch.cosine_similarity(start, end)
    assert torch.allclose((turned - start).norm(dim=1) / start.norm(dim=1), measured.STEP * cosine.acos(), rtol=1e-3)


def test_it_needs_no_weights_and_no_features(scored: Path, tmp_path: Path) -> None:
    options = replace(OPTIONS, metrics=("ppl",), network="inception", samples=100)
    found = evaluate(scored / "run", write_pictures(tmp_path / "pictures"), options, say=quiet)
    assert found.scores["ppl"] > 0
    assert found.half_width("ppl") == found.scores["ppl_half_width"]
    assert found.provenance.samples == 100
    words = ["evaluate", str(scored / "run"), "--metrics", "ppl", "--samples", "100", "--device", "cpu"]
    shown = CliRunner().invoke(application(), words).output
    assert "reading real pictures" not in shown
    assert "; no real pictures\n" in shown
    with pytest.raises(BadInput, match="99 paths; expected at least 100"):
        evaluate(scored / "run", write_pictures(tmp_path / "pictures"), replace(options, samples=99), say=quiet)
    with pytest.raises(BadInput, match="real pictures have none"):
        evaluate_real(write_pictures(tmp_path / "pictures"), options, say=quiet)
