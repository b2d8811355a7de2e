"""The Inception network on recorded pictures, with weights by the rule that the recording used.

tests/golden/metrics/inception_features.npz: features of torch-fidelity 0.4 (commit 5e211a9).
"""

import math
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frugan.errors import BadInput
from frugan.metrics.feature_network import (
    INCEPTION_FILE,
    INCEPTION_SETTING,
    InceptionFeatures,
    NamedFeatures,
    load_inception,
    load_named,
)
from frugan.metrics.inception import FEATURES, Inception, resize_as_tensorflow_1

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics" / "inception_features.npz"
CPU = torch.device("cpu")


def _by_the_rule(key: str, like: Tensor) -> Tensor:
    random = torch.randn(like.shape, generator=torch.Generator().manual_seed(zlib.crc32(key.encode())))
    if key.endswith("num_batches_tracked"):
        return torch.zeros_like(like)
    if key.endswith("running_var"):
        return 1 + 0.1 * random.abs()
    if key.endswith("bn.weight"):
        return 1 + 0.1 * random
    if key.endswith(("running_mean", "bias")):
        return 0.1 * random
    if like.ndim == 4:
        return random * math.sqrt(2 / like[0].numel())
    return 0.02 * random


@pytest.fixture(scope="module")
def network() -> Inception:
    made = Inception()
    made.load_state_dict({key: _by_the_rule(key, value) for key, value in made.state_dict().items()})
    return made


@pytest.mark.parametrize(
    "size", ["32x32", *(pytest.param(size, marks=pytest.mark.long) for size in ("128x128", "299x299", "384x512"))]
)
def test_features(network: Inception, size: str) -> None:
    recorded = np.load(GOLDEN)
    features = network(torch.from_numpy(recorded[f"images_{size}"]), FEATURES)
    for name in FEATURES:
        expected = recorded[f"{name}_{size}"]
        assert np.abs(features[name].numpy() - expected).max() <= 1e-4 * np.abs(expected).max(), name


@pytest.mark.long
def test_another_pool_at_the_end_is_noticed(network: Inception) -> None:
    """The limit is far below what the original's oddity amounts to."""
    recorded = np.load(GOLDEN)
    kept = network.Mixed_7c.pool
    network.Mixed_7c.pool = network.Mixed_7b.pool
    try:
        features = network(torch.from_numpy(recorded["images_32x32"]))["2048"].numpy()
    finally:
        network.Mixed_7c.pool = kept
    expected = recorded["2048_32x32"]
    assert np.abs(features - expected).max() > 1e-2 * np.abs(expected).max()


def test_the_resize_has_no_half_pixel_shift() -> None:
    ramp = torch.arange(4.0).view(1, 1, 1, 4).expand(1, 1, 4, 4)
    assert resize_as_tensorflow_1(ramp, 4, 8)[0, 0, 0].tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]
    assert torch.equal(resize_as_tensorflow_1(ramp, 4, 4), ramp)
    assert resize_as_tensorflow_1(ramp, 2, 2)[0, 0, 0].tolist() == [0, 2]


def test_a_weight_file_is_looked_for_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INCEPTION_SETTING, raising=False)
    with pytest.raises(BadInput, match=f"{INCEPTION_FILE} from the release v0.2.0 of torch-fidelity"):
        load_inception(None, tmp_path, CPU)
    (tmp_path / INCEPTION_FILE).write_bytes(b"other weights")
    with pytest.raises(BadInput, match=r"SHA-256 begins with .{8}, expected 6726825d"):
        load_inception(None, tmp_path, CPU)


@pytest.mark.long
def test_a_weight_file_is_loaded(network: Inception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(network.state_dict(), tmp_path / INCEPTION_FILE)
    named = tmp_path / "elsewhere.pth"
    (tmp_path / INCEPTION_FILE).replace(named)
    monkeypatch.setenv(INCEPTION_SETTING, str(named))
    loaded = load_inception(None, tmp_path, CPU, digest="")
    pictures = torch.from_numpy(np.load(GOLDEN)["images_32x32"])
    assert torch.equal(loaded(pictures).pooled, network(pictures)["2048"])
    assert loaded.digest != load_inception_digest(tmp_path)


def load_inception_digest(folder: Path) -> str:
    """Of the same network with one other weight."""
    other = Inception()
    torch.save(other.state_dict(), folder / "other.pth")
    return load_inception(folder / "other.pth", folder, CPU, digest="").digest


@pytest.mark.parametrize("content", [b"", b"no weights", b"\x80\x02cos\nsystem\n(S'true'\ntR."])
def test_a_file_that_holds_no_weights(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "weights.pth"
    file.write_bytes(content)
    with pytest.raises(BadInput, match="no weights"):
        load_inception(file, tmp_path, CPU, digest="")


class Brightness(torch.nn.Module):
    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        means = pictures.float().mean((2, 3))
        return means, means * 2


def brightness(pictures: Tensor) -> Tensor:
    return pictures.float().mean((2, 3))


def wrong(pictures: Tensor) -> Tensor:
    return pictures.float().mean()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_other_networks_by_file_and_by_name(tmp_path: Path) -> None:
    torch.jit.script(Brightness()).save(str(tmp_path / "brightness.pt"))
    pictures = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    scripted, called = load_named(str(tmp_path / "brightness.pt"), CPU), load_named(f"{__name__}:brightness", CPU)
    assert torch.equal(scripted(pictures).pooled, called(pictures).pooled)
    logits = scripted(pictures).logits
    assert logits is not None
    assert torch.equal(logits, scripted(pictures).pooled * 2)
    assert called(pictures).logits is None
    assert len({scripted.digest, called.digest}) == 2
    with pytest.raises(BadInput, match=r"gave \[\] for 4 pictures"):
        load_named(f"{__name__}:wrong", CPU)(pictures)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_network_goes_where_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TorchScript file is loaded anew: its constants stay where they were loaded to."""
    torch.jit.script(Brightness()).save(str(tmp_path / "brightness.pt"))
    scripted, load = load_named(str(tmp_path / "brightness.pt"), CPU), torch.jit.load
    (tmp_path / "brightness.pt").unlink()
    loaded: list[object] = []

    def noted(file: object, map_location: object) -> object:
        loaded.append(map_location)
        return load(file, map_location=CPU)

    monkeypatch.setattr(torch.jit, "load", noted)
    scripted.to(torch.device("meta"))
    assert loaded == [scripted.device] == [torch.device("meta")]
    called = NamedFeatures(nn.Linear(3, 3), "linear", "", CPU)
    called.to(torch.device("meta"))
    with torch.device("meta"):
        inception = InceptionFeatures(Inception(), "")
    inception.network.to_empty(device=CPU)
    inception.to(torch.device("meta"))
    assert inception.network.fc.weight.device == torch.device("meta")
    assert isinstance(called.network, nn.Linear)
    assert {called.device, called.network.weight.device} == {torch.device("meta")}


@pytest.mark.parametrize("name", ["nothing", "no.such.module:thing", "json:nothing", "json:__name__"])
def test_names_of_nothing(name: str) -> None:
    with pytest.raises(BadInput, match=f"--network {name}"):
        load_named(name, CPU)


def test_no_torchscript(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"nothing")
    with pytest.raises(BadInput, match="no TorchScript file"):
        load_named(str(tmp_path / "a.pt"), CPU)
