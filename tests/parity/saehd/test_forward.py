"""Every recorded forward of the autoencoders: codes, faces, masks and the swap."""

from collections.abc import Mapping
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from frugan.faces.saehd.config import Archi
from frugan.faces.saehd.networks import code_of, decode, encode, swap_code
from parity.saehd.golden import ARCHIS, arrays, built, nchw, networks_of, record
from parity.saehd.weights import Array

LIMIT = 1e-5
"""Of the largest value. Measured: at most 1.5e-6."""


@cache
def recorded(archi: str) -> dict[str, Array]:
    return arrays(f"archi/{archi}/io.npz")


def networks(archi: str, letters: str | None = None) -> dict[str, nn.Module]:
    case = record(f"archi/{archi}/case.json")
    return built(networks_of(case | ({"archi": letters} if letters else {})), case["seed"])


@torch.no_grad()
def outputs(archi: Archi, nets: Mapping[str, nn.Module], x_src: Tensor, x_dst: Tensor) -> dict[str, Tensor]:
    """What the recordings hold, by their names."""
    vectors = encode(nets, x_src)
    made = {"src__enc": vectors}
    if archi.kind == "df":
        code = code_of(archi, nets, vectors, "src")
        made["src__inter"] = code
        for side in ("src", "dst"):
            made[f"src__{side}_img"], made[f"src__{side}_mask"] = nets[f"decoder_{side}"](code)
    else:
        made |= {f"src__{name}": nets[name](vectors) for name in ("inter_AB", "inter_B")}
        for name, side in (("ABAB", "src"), ("BAB", "dst")):
            code = code_of(archi, nets, vectors, "src" if side == "src" else "dst")
            made[f"src__{name}_img"], made[f"src__{name}_mask"] = nets["decoder"](code)
    vectors = encode(nets, x_dst)
    swapped = decode(archi, nets, swap_code(archi, nets, vectors), "src")
    made["merge__src_dst_img"], made["merge__src_mask"] = swapped
    made["merge__dst_mask"] = decode(archi, nets, code_of(archi, nets, vectors, "dst"), "dst")[1]
    return made


def errors(archi: str, nets: Mapping[str, nn.Module], letters: str | None = None) -> dict[str, float]:
    """Relative to the largest value."""
    of = recorded(archi)
    ours = outputs(Archi.parse(letters or archi), nets, nchw(of["x_src"]), nchw(of["x_dst"]))
    assert ours.keys() == of.keys() - {"x_src", "x_dst"}
    largest = {}
    for name, out in ours.items():
        reference = nchw(of[name]) if of[name].ndim == 4 else torch.from_numpy(of[name])
        assert out.shape == reference.shape, name
        largest[name] = float((out - reference).abs().max() / reference.abs().max())
    return largest


@pytest.mark.parametrize("archi", ARCHIS)
def test_every_output(archi: str) -> None:
    for name, error in errors(archi, networks(archi)).items():
        assert error <= LIMIT, name


@pytest.mark.parametrize("archi", ARCHIS)
def test_channels_last_weights_make_the_same_outputs(archi: str) -> None:
    nets = networks(archi)
    for parameter in (parameter for network in nets.values() for parameter in network.parameters()):
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    assert max(errors(archi, nets).values()) <= LIMIT


@pytest.mark.parametrize(("archi", "wrong"), [("df-u", "df"), ("df-ud", "df-d"), ("df-udtc", "df-udt"), ("df", "df-c")])
def test_one_letter_less_or_more_is_noticed(archi: str, wrong: str) -> None:
    # These letters change no weight.
    assert min(errors(archi, networks(archi, wrong), wrong).values()) > 2 * LIMIT


def test_swapped_halves_of_liaes_code_are_noticed() -> None:
    nets = networks("liae-ud")
    nets |= {"inter_AB": nets["inter_B"], "inter_B": nets["inter_AB"]}
    off = errors("liae-ud", nets)
    assert all(off[name] > 2 * LIMIT for name in off if name != "src__enc")


def test_swapped_decoders_are_noticed() -> None:
    nets = networks("df-ud")
    off = errors("df-ud", nets | {"decoder_src": nets["decoder_dst"], "decoder_dst": nets["decoder_src"]})
    assert all(off[name] > 2 * LIMIT for name in off if name not in ("src__enc", "src__inter"))
