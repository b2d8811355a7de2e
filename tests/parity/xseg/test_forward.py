"""XSeg's logits against the recorded ones. In float64, so that what is left is the original's own rounding."""

import numpy as np
import pytest
import torch

from frugan.faces.xseg.networks import XSeg
from parity.saehd.errors import fingerprint
from parity.xseg.golden import SCOPE, SIDE, arrays, drawn, fill, nchw, record, shapes

LOGITS = 4e-5
"""Absolute; they go up to 3.3. Measured: 3.2e-5."""
WITHOUT_SKIPS = 2e-4
"""While pretraining: up to 4.7. Measured: 7.8e-5."""


def network() -> XSeg:
    case = record("case.json")
    built = XSeg(SIDE, case["base"])
    fill(built, case["seed"])
    return built.double()


def test_parameters_are_the_originals_in_its_order() -> None:
    case = record("case.json")
    ours = shapes(XSeg(SIDE, case["base"]))
    assert [[key, list(shape)] for key, shape in ours.items()] == [entry[:2] for entry in case["weights"]]
    for key, shape, expected in case["weights"]:
        found = fingerprint(drawn(case["seed"], f"{SCOPE}/{key}", tuple(shape)))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "limit"), [("logits_s4", LOGITS), ("logits_pretrain_s4", WITHOUT_SKIPS)])
def test_logits(name: str, limit: float) -> None:
    recorded = arrays("forward.npz")
    with torch.no_grad():
        logits = network()(nchw(recorded["x"]), skips=name == "logits_s4").permute(0, 2, 3, 1).numpy()[:, ::4, ::4]
    assert np.abs(logits - recorded[name]).max() <= limit


def test_a_blur_of_other_taps_is_noticed() -> None:
    recorded, faulty = arrays("forward.npz"), network()
    faulty.bp0 = faulty.bp1
    with torch.no_grad():
        logits = faulty(nchw(recorded["x"])).permute(0, 2, 3, 1).numpy()[:, ::4, ::4]
    assert np.abs(logits - recorded["logits_s4"]).max() > 100 * LOGITS
