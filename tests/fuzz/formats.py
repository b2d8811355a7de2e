"""Every reader of files that come from elsewhere, with whole files to damage."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from families.snapshots import SCRUBBED
from frugan.data.formats.decoding import read_picture, read_size
from frugan.data.formats.detect import open_source
from frugan.data.formats.picture_set import open_prepared
from frugan.data.formats.source import Unreadable
from frugan.engine.run.checkpoint import MANIFEST_FILE, newest_whole, restore
from frugan.engine.run.tensor_files import digest
from frugan.faces.data.dfl_jpeg import read_face_jpeg
from frugan.faces.data.faceset import open_faceset
from frugan.faces.data.geometry import opencv
from frugan.faces.saehd.leras_files import read_model
from frugan.faces.saehd.leras_options import imported_recipe
from frugan.families.stylegan2.snapshot import network_settings
from frugan.families.stylegan2.snapshot_modules import read_snapshot
from frugan.metrics.feature_network import read_pth
from frugan.metrics.moments_file import read_moments
from frugan.recipe.loading import load_recipe, parse_recipe
from frugan.reporting.report import page_of
from frugan.safe_pickle.reader import load_pickle
from frugan.setup.networks import Weights, networks_from
from fuzz.mutator import damaged
from fuzz.sandbox import Target
from fuzz.whole_files import (
    FEATURES,
    GOLDEN,
    RECIPE,
    Files,
    checkpoint_folder,
    cifar_folder,
    face_files,
    face_folder,
    leras_model,
    listed_folder,
    moments_files,
    pickle_files,
    picture_files,
    prepared_set,
    pth_files,
    rig,
    run_folder,
    run_recipe_folder,
    tar_files,
    weights_file,
    zip_files,
)

MIB = 1 << 20
PAK = GOLDEN / "saehd" / "faceset" / "packed" / "faceset.pak"


def one_of(name: str, *whole: bytes) -> Callable[[int, Path], Path]:
    """A file of that name; case -1 is whole, the others are damaged, each of the whole ones in turn."""

    def make(case: int, folder: Path) -> Path:
        path = folder / name
        seed = whole[case % len(whole)]
        path.write_bytes(seed if case < 0 else damaged(seed, case, whole))
        return path

    return make


def folder_of(make_files: Callable[[], Files], *, inside: str = "") -> Callable[[int, Path], Path]:
    """A folder of files of which one is damaged, missing, a link, or a folder; `inside`: what is given to read."""

    def make(case: int, folder: Path) -> Path:
        files = make_files()
        names = sorted(files)
        victim = names[case % len(names)] if case >= 0 else ""
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name != victim:
                path.write_bytes(content)
            elif case % 23 == 0:
                continue
            elif case % 29 == 0:
                path.symlink_to("/dev/zero")
            elif case % 31 == 0:
                path.mkdir()
            elif case % 37 == 0:
                path.symlink_to(path.name)
            else:
                path.write_bytes(damaged(content, case, [*files.values()]))
        return folder / inside

    return make


def _read_pictures(path: Path) -> None:
    """As `prepare` reads them, and by name, without the file."""
    with open_source(path) as source:
        for index in range(len(source)):
            try:
                source.size(index)
                source.picture(index)
            except Unreadable:
                continue


def _read_picture(path: Path) -> None:
    read_size(path)
    read_picture(path)


def _read_face(path: Path) -> None:
    read_face_jpeg(path.read_bytes(), str(path))


def _read_faces(path: Path) -> None:
    opencv().setNumThreads(0)  # they do not come along into a forked process
    faces = open_faceset(path)
    for index in range(len(faces)):
        faces.picture(index)


def _read_snapshot(path: Path) -> None:
    networks = read_snapshot(path)
    for module in networks.values():
        module.tensors()
    if "G_ema" in networks:
        network_settings(networks["G_ema"], networks.get("D"))


def _read_leras(path: Path) -> None:
    model = read_model(path)
    parse_recipe(*imported_recipe(model.name, model.iteration, model.options, path))


def _read_weights(path: Path) -> None:
    networks_from(Weights.open(path))


def _read_checkpoint(path: Path) -> None:
    newest = newest_whole(path / "checkpoints")
    if newest is not None:
        restore(newest[0], newest[1], rig().state)


def _checkpoint_case(case: int, folder: Path) -> Path:
    """Every other one has a manifest that agrees with the damage, as one has that somebody made on purpose."""
    path = folder_of(checkpoint_folder)(case, folder)
    (checkpoint,) = (path / "checkpoints").iterdir()
    manifest = checkpoint / MANIFEST_FILE
    if case % 2 and manifest.is_file() and not manifest.is_symlink():
        files = {file.name: digest(file) for file in checkpoint.iterdir() if file.is_file() and file != manifest}
        manifest.write_text(json.dumps(files), "utf-8")
    return path


def _hdf5_case(case: int, folder: Path) -> Path:
    names = ("ILSVRC32_chunk20.hdf5", "ILSVRC32_chunk20_lzf.hdf5")
    return one_of("pictures.hdf5", *((GOLDEN / "biggan" / name).read_bytes() for name in names))(case, folder)


def _set_with_checksum(case: int, folder: Path) -> Path:
    """Without its checksum set.json is read to its end, as one is that somebody changed on purpose."""
    path = folder_of(prepared_set)(case, folder)
    about = path / "set.json"
    if case % 2 and about.is_file() and not about.is_symlink():
        lines = about.read_bytes().split(b"\n")
        about.write_bytes(b"\n".join(line for line in lines if not line.startswith(b' "checksum"')))
    return path


def _read_prepared(path: Path) -> None:
    pictures = open_prepared(path)
    pictures[np.arange(min(4, len(pictures)))]


@cache
def targets() -> Mapping[str, Target]:
    """All of them by name. Bounds: a small multiple of the file, or what its largest allowed content takes."""
    small = 32 * MIB
    pixels = 2048 * MIB  # 179 million pixels, where larger pictures are refused: 4 bytes each, and a copy
    made = (
        Target("pickle", one_of("p.dat", *pickle_files()), lambda p: load_pickle(p.read_bytes(), "p"), small, 300),
        Target("stylegan snapshot", one_of("n.pkl", SCRUBBED.read_bytes()), _read_snapshot, small, 80),
        Target("deepfacelab model", folder_of(leras_model), _read_leras, small, 160),
        Target("deepfacelab jpeg", one_of("f.jpg", *face_files()), _read_face, small, 200),
        Target("faceset folder", folder_of(face_folder), _read_faces, 512 * MIB, 80),
        Target("faceset.pak", one_of("faceset.pak", PAK.read_bytes()), _read_faces, 512 * MIB, 80),
        Target("picture", _picture_case, _read_picture, pixels, 250),
        Target("zip of pictures", one_of("p.zip", *zip_files()), _read_pictures, pixels, 160),
        Target("webdataset tar", one_of("s.tar", *tar_files()), _read_pictures, pixels, 160),
        Target("dataset.json", folder_of(listed_folder), _read_pictures, pixels, 120),
        Target("hdf5", _hdf5_case, _read_pictures, 1536 * MIB, 60),
        Target("cifar", folder_of(cifar_folder), _read_pictures, small, 40),
        Target("prepared set", _set_with_checksum, _read_prepared, small, 100),
        Target("moments", one_of("m.npz", *moments_files()), lambda p: read_moments(p, FEATURES), small, 120),
        Target("weights", one_of("w.safetensors", weights_file()), _read_weights, 128 * MIB, 100),
        Target("checkpoint", _checkpoint_case, _read_checkpoint, 64 * MIB, 120),
        Target("run", folder_of(run_folder), lambda p: page_of([p]).encode(), pixels, 60),
        Target("pth", one_of("w.pth", *pth_files()), read_pth, 64 * MIB, 100),
        Target("recipe", one_of("r.toml", RECIPE.encode()), lambda p: load_recipe(str(p)), small, 100),
        Target("recipe of a run", folder_of(run_recipe_folder), lambda p: load_recipe(str(p)), small, 60),
    )
    return {target.name: target for target in made}


def _picture_case(case: int, folder: Path) -> Path:
    return one_of("picture", *picture_files())(case, folder)


def target(name: str) -> Target:
    """One of them."""
    return targets()[name]
