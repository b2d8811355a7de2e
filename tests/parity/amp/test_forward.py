"""AMP's forwards against the recorded ones. In float64, so that what is left is the original's own rounding."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frugan.faces.amp.networks import (
    decode,
    dst_code,
    encode,
    exact_subset,
    first_channels,
    mixed_code,
    morphed_code,
)
from parity.amp.golden import SCOPES, arrays, as_uniform, built, chosen, double, drawn, pictures, record, shapes
from parity.saehd.errors import fingerprint

LIMIT = 1e-6
"""Of the largest value. Measured: at most 6.4e-7."""


def networks() -> dict[str, nn.Module]:
    case = record("case.json")
    return double(built(case["options"], case["seed"]))


@torch.no_grad()
def outputs(nets: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Recorded values by name."""
    case = record("case.json")
    vectors = encode(nets, pictures("x_src"))
    z = torch.from_numpy(arrays("forward.npz")["z"]).double()
    face, mask = decode(nets, mixed_code(nets, vectors, z))
    of = {"enc_src": vectors, "src_src_img": face, "src_src_mask": mask}
    of |= {f"{name}_nchw": nets[name](vectors) for name in ("inter_src", "inter_dst")}
    vectors = encode(nets, pictures("x_dst"))
    for morph in case["morphs"]:
        of[f"merge_{morph}_img"], of[f"merge_{morph}_swap_mask"] = decode(nets, morphed_code(nets, vectors, morph))
    of["merge_dst_mask"] = decode(nets, dst_code(nets, vectors))[1]
    return of


def errors(nets: Mapping[str, nn.Module]) -> dict[str, float]:
    """Relative to the largest value."""
    of = arrays("forward.npz")
    ours = outputs(nets)
    assert ours.keys() == of.keys() - {"x_src", "x_dst", "z"}
    largest = {}
    for name, value in ours.items():
        reference = pictures(name) if of[name].ndim == 4 and "nchw" not in name else torch.from_numpy(of[name])
        assert value.shape == reference.shape, name
        largest[name] = float((value - reference).abs().max() / reference.abs().max())
    return largest


def test_parameters_are_the_originals() -> None:
    case = record("case.json")
    for name, network in built(case["options"], case["seed"]).items():
        if name in SCOPES:
            continue
        ours = shapes(network)
        assert {key: list(shape) for key, shape in ours.items()} == {entry[0]: entry[1] for entry in case["nets"][name]}
        for key, shape, expected in case["nets"][name]:
            found = fingerprint(drawn(case["seed"], f"{name}/{key}", tuple(shape)))
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_every_output() -> None:
    for name, error in errors(networks()).items():
        assert error <= LIMIT, name


def test_swapped_inter_networks_are_noticed() -> None:
    nets = networks()
    off = errors(nets | {"inter_src": nets["inter_dst"], "inter_dst": nets["inter_src"]})
    assert all(off[name] > 100 * LIMIT for name in off if name != "enc_src" and "_0.5" not in name)


def test_recorded_choice_follows_the_rule() -> None:
    case, z = record("case.json"), arrays("forward.npz")["z"]
    rule = chosen(case["seed"], "z#fwd", len(z), case["options"]["inter_dims"], case["options"]["morph_factor"])
    np.testing.assert_array_equal(z, rule)
    np.testing.assert_array_equal(exact_subset(as_uniform(z), case["options"]["morph_factor"]), z)


def test_slices_are_as_long_as_recorded() -> None:
    case = record("case.json")
    channels = case["options"]["inter_dims"]
    assert [first_channels(channels, morph) for morph in case["morphs"]] == case["morph_channels"]


@pytest.mark.parametrize(("channels", "share", "expected"), [(1024, 0.33, 337), (20, 0.5, 10), (100, 0.29, 28)])
def test_subset_has_as_many_channels_for_every_sample(channels: int, share: float, expected: int) -> None:
    """0.29 of 100 is a little less than 29 in floating point, and cut, as in the original."""
    uniform = torch.rand(50, channels, generator=torch.Generator().manual_seed(1))
    subset = exact_subset(uniform, share)
    assert set(subset.unique().tolist()) == {0.0, 1.0}
    assert subset.sum(1).tolist() == [expected] * 50
    assert len(subset.unique(dim=0)) == 50


def test_subset_of_equal_numbers_is_exact_too() -> None:
    assert exact_subset(torch.full((2, 8), 0.5), 0.5).sum(1).tolist() == [4, 4]
