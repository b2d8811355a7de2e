"""How cards are told to multiply: settings of torch's, which a CPU build has as well."""

from collections.abc import Iterator

import pytest
import torch

from frugan.accelerator.device import DEFAULT, FORCED, disable_reduced_precision, tf32_decision
from frugan.metrics.feature_network import full_fp32

BACKENDS = torch.backends


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kept = BACKENDS.cudnn.allow_tf32, BACKENDS.cuda.matmul.allow_tf32
    yield
    BACKENDS.cudnn.allow_tf32, BACKENDS.cuda.matmul.allow_tf32 = kept


def _precisions() -> tuple[str, str]:
    return BACKENDS.cudnn.conv.fp32_precision, BACKENDS.cuda.matmul.fp32_precision  # type: ignore[attr-defined]


@pytest.mark.parametrize("before", [False, True])
def test_fp32_keeps_its_digits_and_torch_still_answers_by_all_its_names(before: bool) -> None:
    BACKENDS.cudnn.allow_tf32 = BACKENDS.cuda.matmul.allow_tf32 = before
    disable_reduced_precision()
    assert "tf32" not in _precisions()
    assert not BACKENDS.cudnn.allow_tf32
    assert not BACKENDS.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"
    assert not BACKENDS.cuda.matmul.allow_fp16_reduced_precision_reduction
    assert not BACKENDS.cuda.matmul.allow_bf16_reduced_precision_reduction


def test_tf32_is_allowed_where_it_is_asked_for() -> None:
    disable_reduced_precision(tf32=True)
    assert _precisions() == ("tf32", "tf32")
    with full_fp32():
        assert "tf32" not in _precisions()
    disable_reduced_precision()
    assert "tf32" not in _precisions()


@pytest.mark.parametrize("before", [False, True])
def test_features_are_made_in_fp32_and_leave_no_trace(before: bool) -> None:
    BACKENDS.cudnn.allow_tf32 = BACKENDS.cuda.matmul.allow_tf32 = before
    with full_fp32():
        assert "tf32" not in _precisions()
    assert (BACKENDS.cudnn.allow_tf32, BACKENDS.cuda.matmul.allow_tf32) == (before, before)
    BACKENDS.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]  # now torch refuses the older name
    with full_fp32():
        assert "tf32" not in _precisions()


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "TF32: off, in products and convolutions"),
        ({FORCED: "0"}, "TF32: off"),
        ({FORCED: "1"}, "TF32: on, in all fp32 products and convolutions, because NVIDIA_TF32_OVERRIDE=1"),
        ({DEFAULT: "1"}, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 in this environment asks for it, and is overruled"),
    ],
)
def test_the_decision_is_said_with_what_the_environment_makes_of_it(environment: dict[str, str], said: str) -> None:
    line = tf32_decision((8, 6), environment)
    assert line is not None
    assert said in line
    assert tf32_decision((7, 5), environment) is None


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "TF32: on, in products and convolutions of fp32"),
        ({FORCED: "0"}, "TF32: off, as NVIDIA_TF32_OVERRIDE=0 in this environment overrules training.tf32=true"),
        ({FORCED: "1"}, "TF32: on"),
    ],
)
def test_tf32_that_is_wanted_is_said(environment: dict[str, str], said: str) -> None:
    line = tf32_decision((8, 6), environment, wanted=True)
    assert line is not None
    assert said in line
