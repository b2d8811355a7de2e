"""The Inception networks on recorded pictures, with weights by the rule that the recordings used.

tests/golden/metrics/inception_features.npz: features of torch-fidelity 0.4 (commit 5e211a9).
torchvision_features.npz: those of torchvision 0.29.1's `inception_v3` in evaluation mode for the same pictures, divided
by 255, normalised by ImageNet's mean and deviation, and resized to 299 by `interpolate(..., align_corners=True)`.
"""

import math
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frugan.errors import BadInput
from frugan.metrics import feature_network
from frugan.metrics.feature_network import (
    INCEPTIONS,
    InceptionFeatures,
    NamedFeatures,
    load_inception,
    load_named,
)
from frugan.metrics.inception import FEATURES, OF_2015, TORCHVISION, Inception, Variant, resize_as_tensorflow_1
from frugan.metrics.public_weights import PUBLIC, MissingWeights

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics" / "inception_features.npz"
OF_TORCHVISION = GOLDEN.with_name("torchvision_features.npz")
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


def by_the_rule(variant: Variant) -> Inception:
    made = Inception(variant)
    made.load_state_dict({key: _by_the_rule(key, value) for key, value in made.state_dict().items()})
    return made


@pytest.fixture(scope="module")
def network() -> Inception:
    return by_the_rule(OF_2015)


@pytest.fixture(scope="module")
def of_torchvision() -> Inception:
    return by_the_rule(TORCHVISION)


@pytest.mark.parametrize("size", ["32x32", *(pytest.param(s, marks=pytest.mark.long) for s in ("128x128", "299x299"))])
def test_features_of_torchvisions(of_torchvision: Inception, size: str) -> None:
    recorded = np.load(OF_TORCHVISION)
    features = of_torchvision(torch.from_numpy(np.load(GOLDEN)[f"images_{size}"]), ("2048", "logits"))
    for name, found in features.items():
        expected = recorded[f"{name}_{size}"]
        assert np.abs(found.numpy() - expected).max() <= 1e-5 * np.abs(expected).max(), name


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


@pytest.mark.parametrize(("name", "begins"), [("inception", "6726825d"), ("inception-torchvision", "0cc3c7bd")])
def test_a_weight_file_is_looked_for_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, begins: str
) -> None:
    monkeypatch.delenv(PUBLIC[name].setting, raising=False)
    with pytest.raises(MissingWeights, match=f"{PUBLIC[name].file}: .* are not there; `frugan fetch {name}` gets them"):
        load_inception(name, None, tmp_path, CPU)
    (tmp_path / PUBLIC[name].file).write_bytes(b"other weights")
    with pytest.raises(BadInput, match=f"SHA-256 begins with .{{8}}, expected {begins}: .*`frugan fetch {name}` gets"):
        load_inception(name, None, tmp_path, CPU)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any file passes for the public one."""
    files = {name: (replace(public, digest=""), of) for name, (public, of) in INCEPTIONS.items()}
    monkeypatch.setattr(feature_network, "INCEPTIONS", files)


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
def test_a_weight_file_is_loaded(network: Inception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(network.state_dict(), tmp_path / "elsewhere.pth")
    monkeypatch.setenv(PUBLIC["inception"].setting, str(tmp_path / "elsewhere.pth"))
    loaded = load_inception("inception", None, tmp_path, CPU)
    pictures = torch.from_numpy(np.load(GOLDEN)["images_32x32"])
    assert torch.equal(loaded(pictures).pooled, network(pictures)["2048"])
    torch.save(Inception().state_dict(), tmp_path / "other.pth")
    assert loaded.digest != load_inception("inception", tmp_path / "other.pth", tmp_path, CPU).digest


@pytest.mark.usefixtures("unchecked")
def test_torchvisions_file_is_loaded(of_torchvision: Inception, tmp_path: Path) -> None:
    """It holds a second classifier, which no feature comes from; old ones hold no counters of batches."""
    state = {key: value for key, value in of_torchvision.state_dict().items() if "num_batches" not in key}
    file = tmp_path / "weights.pth"
    torch.save(state | {"AuxLogits.fc.bias": torch.zeros(1000)}, file)
    loaded = load_inception("inception-torchvision", file, tmp_path, CPU)
    assert (loaded.name, loaded.resizer) == ("inception-torchvision", "bilinear to 299, corners on corners")
    pictures = torch.from_numpy(np.load(GOLDEN)["images_32x32"])[:1]
    features, expected = loaded(pictures), of_torchvision(pictures, ("2048", "logits"))
    assert torch.equal(features.pooled, expected["2048"])
    assert features.logits is not None
    assert torch.equal(features.logits, expected["logits"])  # with bias: so that program makes its inception score


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
def test_a_file_of_another_network_is_refused(of_torchvision: Inception, tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save(of_torchvision.state_dict(), file)
    with pytest.raises(BadInput, match="holds no weights of the network inception "):
        load_inception("inception", file, tmp_path, CPU)
    torch.save({key: value for key, value in of_torchvision.state_dict().items() if key != "fc.bias"}, file)
    with pytest.raises(BadInput, match=r"fc\.bias is missing, or too much"):
        load_inception("inception-torchvision", file, tmp_path, CPU)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("content", [b"", b"no weights", b"\x80\x02cos\nsystem\n(S'true'\ntR."])
def test_a_file_that_holds_no_weights(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "weights.pth"
    file.write_bytes(content)
    with pytest.raises(BadInput, match="no weights"):
        load_inception("inception", file, tmp_path, CPU)


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
