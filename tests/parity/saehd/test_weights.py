"""Names and layouts of the original's files, and the rule by which the recordings' first weights were made."""

from math import prod

import numpy as np
import pytest
import torch

from frugan.faces.saehd.family import SAEHDFamily
from parity.saehd.golden import (
    ARCHIS,
    DISCRIMINATOR_SEED,
    FOLDER,
    Recording,
    built,
    networks_of,
    record,
    recording,
)
from parity.saehd.weights import drawn, file_key, from_file, load, parameter_name, read, slot_key, to_file

EVERYTHING = "extras/df-ud_all"


@pytest.mark.parametrize("network", ["encoder", "inter", "decoder_src", "decoder_dst"])
def test_first_weights_by_rule_are_the_recorded_ones_bit_for_bit(network: str) -> None:
    ours = built(networks_of(record("archi/df-d/case.json")), record("archi/df-d/case.json")["seed"])[network]
    recorded = read(FOLDER / "archi" / "df-d" / f"golden_SAEHD_{network}.npy")
    assert {file_key(key) for key, _ in ours.named_parameters()} == recorded.keys()
    for key, parameter in ours.named_parameters():
        assert np.array_equal(to_file(parameter), recorded[file_key(key)]), key


def test_recorded_files_load() -> None:
    case = record("archi/df-d/case.json")
    ours, other = (built(networks_of(case), seed)["encoder"] for seed in (case["seed"], 1))
    load(other, read(FOLDER / "archi" / "df-d" / "golden_SAEHD_encoder.npy"))
    for (key, a), b in zip(ours.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), key


@pytest.mark.parametrize("archi", ARCHIS)
def test_every_weight_has_the_originals_name_and_shape(archi: str) -> None:
    case = record(f"archi/{archi}/case.json")
    networks = SAEHDFamily().build(networks_of(case), "meta")
    for file, entries in case["files"].items():
        network = networks[file.removesuffix(".npy")]
        shapes = {key: tuple(parameter.shape) for key, parameter in network.named_parameters()}
        assert shapes.keys() == {parameter_name(key) for key, _ in entries}
        for key, shape in entries:
            assert from_file(np.zeros(shape, np.float32)).shape == shapes[parameter_name(key)], key
            assert file_key(parameter_name(key)) == key


@pytest.mark.parametrize(
    ("file", "network"), [("code_discriminator.npy", "code_discriminator"), ("GAN.npy", "patch_discriminator")]
)
def test_every_discriminator_weight_has_the_originals_name_and_shape(file: str, network: str) -> None:
    entries = record(f"train/{EVERYTHING}/case.json")["files_order"][file]
    ours = SAEHDFamily().build(recording(EVERYTHING).networks, "meta")[network]
    expected = {parameter_name(key): from_file(np.zeros(shape, np.float32)).shape for key, shape in entries}
    assert {key: parameter.shape for key, parameter in ours.named_parameters()} == expected


@pytest.mark.parametrize(
    ("file", "phase"),
    [
        ("src_dst_opt.npy", "autoencoder"),
        ("D_code_opt.npy", "code_discriminator"),
        ("GAN_opt.npy", "patch_discriminator"),
    ],
)
def test_every_statistic_of_an_optimizer_has_the_originals_name(file: str, phase: str) -> None:
    case: Recording = recording(EVERYTHING)
    state, step, _ = case.training()
    recorded = [key for key, _ in record(f"train/{EVERYTHING}/case.json")["files_order"][file]]
    moved = next(of.updates for of in step.phases if of.name == phase)
    assert recorded[0] == "iters:0"
    assert set(recorded[1:]) == {
        slot_key(slot, name, key)
        for slot in ("ms", "vs")
        for name in moved
        for key, _ in state.networks[name].named_parameters()
    }


def test_layouts_are_each_others_inverse() -> None:
    for shape in ((3, 3, 4, 5), (6, 7), (8,)):
        value = np.arange(prod(shape), dtype=np.float32).reshape(shape)
        assert np.array_equal(to_file(from_file(value)), value)


def test_another_seed_or_name_makes_other_weights() -> None:
    base = drawn(DISCRIMINATOR_SEED, "dis/convs_0/weight:0", (3, 3, 4, 5))
    for seed, key in ((78, "dis/convs_0/weight:0"), (77, "dis/convs_1/weight:0")):
        assert not np.array_equal(base, drawn(seed, key, (3, 3, 4, 5)))
