"""Moments from files that other programs made, and everything that is none."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frugan.errors import BadInput
from frugan.metrics.moments_file import read_moments, write_moments
from frugan.metrics.scores import Moments, frechet_distance


def rows(seed: int, count: int = 50) -> torch.Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) @ torch.diag(
        torch.arange(1.0, 7.0, dtype=torch.float64)
    )


def others(path: Path, seed: int = 0, **also: Any) -> Path:
    """As pytorch-fid and BigGAN-PyTorch save them."""
    features = rows(seed).numpy()
    np.savez_compressed(path, mu=features.mean(0), sigma=np.cov(features, rowvar=False), **also)
    return path


def test_a_distance_to_a_file_is_the_distance_to_its_pictures(tmp_path: Path) -> None:
    mine, theirs = Moments.of(rows(1)), Moments.of(rows(0))
    file_moments = read_moments(others(tmp_path / "stats.npz"), 6)
    assert (file_moments.pictures, file_moments.network_digest) == (None, None)
    assert len(file_moments.digest) == 64
    assert frechet_distance(mine, file_moments.normal) == pytest.approx(frechet_distance(mine, theirs), rel=1e-12)


def test_a_reference_batch_with_its_pictures_is_read_and_they_are_not(tmp_path: Path) -> None:
    """guided-diffusion's: pictures under arr_0, spatial moments besides; in fp32, with its rounding."""
    whole = rows(0).numpy()
    sigma = np.cov(whole, rowvar=False).astype(np.float32)
    sigma[0, 1] = np.nextafter(sigma[0, 1], np.float32(9))
    pictures = np.zeros((4, 8, 8, 3), np.uint8)
    path = tmp_path / "batch.npz"
    np.savez(path, arr_0=pictures, mu=whole.mean(0).astype(np.float32), sigma=sigma, mu_s=sigma[0], sigma_s=sigma)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("surprise.npy", pickle.dumps("never looked at"))
    normal = read_moments(path, 6).normal
    assert normal.mean.dtype == normal.covariance.dtype == torch.float64
    assert torch.equal(normal.covariance, normal.covariance.T)


def test_ours_say_what_they_are_of_and_others_read_them(tmp_path: Path) -> None:
    moments, path = Moments.of(rows(0)), tmp_path / "new" / "ours.npz"
    write_moments(path, moments, {"pictures": 50, "network_digest": "abc", "resolution": 32, "network": "n"})
    ours = read_moments(path, 6)
    assert (ours.pictures, ours.network_digest, ours.resolution) == (50, "abc", 32)
    assert [p.name for p in path.parent.iterdir()] == ["ours.npz"]
    with np.load(path, allow_pickle=False) as archive:  # as pytorch-fid does
        np.testing.assert_allclose(archive["mu"], rows(0).numpy().mean(0), rtol=1e-12)
        np.testing.assert_allclose(archive["sigma"], np.cov(rows(0).numpy(), rowvar=False), rtol=1e-12)


def _bad(**changed: Any) -> dict[str, Any]:
    return {"mu": np.zeros(6), "sigma": np.eye(6)} | changed


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mean": np.zeros(6), "cov": np.eye(6)}, "holds mean, cov, and no mu and no sigma; expected the mean mu"),
        ({"mu": np.zeros(6)}, "holds mu, and no sigma"),
        (_bad(mu=np.array([None, {}], object)), "mu holds objects, which would have to be unpickled"),
        (_bad(sigma=np.eye(6, dtype=np.int64)), "sigma holds int64; expected floating"),
        (_bad(mu=np.zeros(8), sigma=np.eye(8)), r"mu is \[8\], the features here give \[6\]: another network made it"),
        (_bad(mu=np.zeros((6, 1))), r"mu is \[6, 1\]"),
        (_bad(sigma=np.eye(5)), r"sigma is \[5, 5\], the features here give \[6, 6\]"),
        (_bad(mu=np.array([0, np.nan, 0, 0, np.inf, 0])), "2 of 6 values of mu are not finite"),
        (_bad(sigma=np.eye(6) * np.nan), "36 of 36 values of sigma are not finite"),
        (_bad(sigma=np.triu(np.ones((6, 6)))), "sigma is no covariance: it should be symmetric"),
        (_bad(sigma=-np.eye(6)), "diagonal of at least 0"),
        (_bad(pictures=np.zeros(3), network_digest=np.array("a"), resolution=np.array(3)), "pictures is float64"),
    ],
)
def test_what_is_no_moments(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(BadInput, match=message):
        read_moments(path, 6)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    struck = tmp_path / "struck"

    class Strike:
        def __reduce__(self) -> tuple[Any, ...]:
            return struck.touch, ()

    np.savez(tmp_path / "object.npz", mu=np.array([Strike()], object), sigma=np.eye(6))
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Strike()))
    with zipfile.ZipFile(tmp_path / "raw.npz", "w") as archive:
        for name in ("mu", "sigma"):
            archive.writestr(f"{name}.npy", pickle.dumps(Strike()))
    for file in ("object", "plain", "raw"):
        with pytest.raises(BadInput):
            read_moments(tmp_path / f"{file}.npz", 6)
    assert not struck.exists()


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    whole = others(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    torn = bytearray(whole)
    torn[len(whole) // 2 - 40 : len(whole) // 2 + 40] = b"\xff" * 80
    (tmp_path / "torn.npz").write_bytes(torn)
    for name, message in {
        "text": "no .npz file",
        "cut": "no .npz file",
        "torn": "damaged",
        "absent": "no such file",
    }.items():
        with pytest.raises(BadInput, match=message):
            read_moments(tmp_path / f"{name}.npz", 6)
    with pytest.raises(BadInput, match="a folder; expected an"):
        read_moments(tmp_path, 6)


def test_a_huge_claim_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("mu", "sigma"):
            text = header % 10**12
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with pytest.raises(BadInput, match=r"mu is \[1000000000000\]"):
        read_moments(path, 6)
