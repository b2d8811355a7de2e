"""Data sources of a run: found, opened, and checked against the recipe."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from frugan.api.data.faces import check_alike, check_faces, open_faces
from frugan.api.data.pictures import as_needed, check_needs, open_pictures
from frugan.api.data.run_classes import as_in_run
from frugan.api.data.run_data import RunData
from frugan.api.data.small_pictures import small_for_training
from frugan.api.progress import Progress, Say
from frugan.data.faces.faceset import Faceset
from frugan.data.faces.workspace import find_facesets
from frugan.data.picture_set import PictureSet
from frugan.errors import BadInput
from frugan.phase import DataNeeds, FaceNeeds, Needs
from frugan.recipe import Recipe

Source = PictureSet | Faceset
Data = str | Path | Mapping[str, str | Path] | Mapping[str, PictureSet] | Mapping[str, Faceset]
"""A path, paths by source name, or opened sets by source name."""


def count(source: Source) -> int:
    """Pictures in a source."""
    return len(source.faces) if isinstance(source, Faceset) else len(source)


def named_sources(data: str | Path | Mapping[str, str | Path] | None, needs: Mapping[str, Needs]) -> dict[str, Path]:
    """Give every source that a family needs its path.

    Args:
        data: one path (if the family has one source, or a DeepFaceLab workspace), or paths by source name.

    Raises:
        BadInput: a source is missing or unknown.
    """
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        if set(needs) == {"src", "dst"} and all(isinstance(need, FaceNeeds) for need in needs.values()):
            return find_facesets(Path(data))
        if len(needs) != 1:
            raise BadInput(
                f"--data {data}: this family has several sources, name them: --data {next(iter(needs))}=PATH"
            )
        data = {next(iter(needs)): data}
    if unknown := sorted(set(data) - set(needs)):
        raise BadInput(f"--data {unknown[0]}=...: no such source; this family reads {', '.join(sorted(needs))}")
    if missing := sorted(set(needs) - set(data)):
        name = f"{missing[0]}=" if len(needs) > 1 else ""
        raise BadInput(f"no pictures given for {missing[0]!r}: add --data {name}PATH")
    return {name: Path(path) for name, path in data.items()}


def open_sources(
    recipe: Recipe,
    data: Data | None,
    say: Say,
    progress: Progress | None,
    known: Mapping[str, RunData] = MappingProxyType({}),
    map_classes: Mapping[str, str] | None = None,
) -> dict[str, Source]:
    """Open every source that a recipe reads, and check it.

    Args:
        known: what the run that goes on was trained on: pictures get its labels.
        map_classes: class of the pictures -> its name in that run, as for `train`.

    Raises:
        BadInput: missing, unknown, not what the recipe can be trained on, or of other classes than the run's.
    """
    needs = recipe.kind.sources(recipe.networks, recipe.objective)
    opened: dict[str, Source] = {}
    paths: dict[str, str | Path] | str | Path | None = None
    if isinstance(data, Mapping):
        opened = {name: value for name, value in data.items() if isinstance(value, PictureSet | Faceset)}
        paths = {name: value for name, value in data.items() if isinstance(value, str | Path)}
    else:
        paths = data
    wanted = {name: need for name, need in needs.items() if name not in opened}
    for name, path in named_sources(paths, wanted).items() if wanted else ():
        need = wanted[name]
        if isinstance(need, FaceNeeds):
            opened[name] = open_faces(name, path, say)
            continue
        with small_for_training(path, need.resolution, recipe):
            pictures = open_pictures(path, need.resolution, recipe.data, say, progress)
        if name in known:
            pictures = as_in_run(f"{name} {path}", pictures, need, known[name], map_classes)
        check_needs(name, path, pictures, need)
        opened[name] = pictures
    for name, need in needs.items():
        source = opened[name]
        if isinstance(need, FaceNeeds) and isinstance(source, Faceset):
            check_faces(name, source, need)
        elif isinstance(need, DataNeeds) and isinstance(source, PictureSet):
            if name not in wanted and name in known:
                source = as_in_run(name, source, need, known[name], map_classes)
            opened[name] = as_needed(name, source, need, say)
    strict = {name for name, need in needs.items() if isinstance(need, FaceNeeds) and not need.mixed_types}
    check_alike({name: s for name, s in opened.items() if name in strict and isinstance(s, Faceset)})
    return opened


def open_real(recipe: Recipe, data: str | Path | PictureSet, say: Say, progress: Progress | None) -> PictureSet:
    """Open the real pictures that generated ones are compared with, in the recipe's channels.

    Raises:
        BadInput: as `open_sources`, or they are faces.
    """
    names = recipe.kind.sources(recipe.networks, recipe.objective)
    given: Data = dict.fromkeys(names, data) if isinstance(data, PictureSet) else data
    found = next(iter(open_sources(recipe, given, say, progress).values()))
    if not isinstance(found, PictureSet):
        raise BadInput(f"--data {data}: expected pictures")
    return found
