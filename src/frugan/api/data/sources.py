"""Data sources of a run: found, opened, and checked against the recipe."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from frugan.api.data.small_pictures import small_for_training
from frugan.api.progress import Progress, Say
from frugan.contract.data import OpenedSource, RunData, SourceOptions, SourceSpec
from frugan.data.picture_set import PictureSet
from frugan.data.run_data import read_run_data
from frugan.data.source import local_path
from frugan.engine.checkpoint import STATE_FILE, list_checkpoints
from frugan.engine.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.folders import Folders
from frugan.recipe.recipe import Recipe

Data = str | Path | Mapping[str, str | Path] | Mapping[str, OpenedSource]
"""A path, several by source name, or opened sources by name."""


def named_sources(
    data: str | Path | Mapping[str, str | Path] | None, needs: Mapping[str, SourceSpec]
) -> dict[str, Path]:
    """Give every source that a family needs its path.

    Args:
        data: one path (if the family has one source, or if one path has them all), or paths by source name.

    Raises:
        BadInput: a source is missing or unknown.
    """
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        found = next(iter(needs.values())).locate(Path(data), list(needs)) if needs else None
        if found is not None:
            return dict(found)
        if len(needs) != 1:
            raise BadInput(
                f"--data {data}: this model needs several kinds of data; name each: --data {next(iter(needs))}=PATH"
            )
        data = {next(iter(needs)): data}
    if unknown := sorted(set(data) - set(needs)):
        raise BadInput(f"--data {unknown[0]}=...: unknown name; this model reads {', '.join(sorted(needs))}")
    if missing := sorted(set(needs) - set(data)):
        if len(needs) == 1:
            raise BadInput("no pictures given: add --data PATH")
        raise BadInput(f"no pictures given for {missing[0]!r}: add --data {missing[0]}=PATH")
    return {name: Path(path) for name, path in data.items()}


def open_sources(
    recipe: Recipe,
    data: Data | None,
    say: Say,
    progress: Progress | None,
    known: Mapping[str, RunData] = MappingProxyType({}),
    map_classes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Open every source that a recipe reads, and check it.

    Args:
        known: what the run that goes on was trained on: pictures get its labels.
        map_classes: class of the pictures -> its name in that run, as for `train`.

    Raises:
        BadInput: missing, unknown, not what the recipe can be trained on, or of other classes than the run's.
    """
    needs = recipe.kind.sources(recipe.networks, recipe.objective)
    options = SourceOptions(recipe.data, Folders.from_environment().prepared, say, progress, known, map_classes)
    opened: dict[str, Any] = {}
    paths: dict[str, Path] | Path | None = None
    if isinstance(data, Mapping):
        paths = {name: local_path(value) for name, value in data.items() if isinstance(value, str | Path)}
        opened = {name: value for name, value in data.items() if name not in paths}
    else:
        paths = None if data is None else local_path(data)
    wanted = {name: need for name, need in needs.items() if name not in opened}
    where = dict.fromkeys(opened, "")
    for name, path in named_sources(paths, wanted).items() if wanted else ():
        with small_for_training(path, wanted[name].resolution, recipe):
            opened[name] = wanted[name].open(name, path, options)
        where[name] = f" {path}"
    if unknown := sorted(set(opened) - set(needs)):
        raise BadInput(f"data {unknown[0]!r}: unknown name; this model reads {', '.join(sorted(needs))}")
    fitted = {name: need.fitted(name, f"{name}{where[name]}", opened[name], options) for name, need in needs.items()}
    for kind in {type(need) for need in needs.values()}:
        alike = [name for name, need in needs.items() if type(need) is kind]
        needs[alike[0]].check_together({name: fitted[name] for name in alike})
    return fitted


def advice(recipe: Recipe, sources: Mapping[str, Any]) -> Iterator[str]:
    """Lines for someone who begins a run on these sources: what would do better."""
    for name, need in recipe.kind.sources(recipe.networks, recipe.objective).items():
        yield from need.advice(sources[name])


def open_real(recipe: Recipe, data: str | Path | PictureSet, say: Say, progress: Progress | None) -> PictureSet:
    """Open the real pictures that generated ones are compared with, in the recipe's channels.

    Raises:
        BadInput: as `open_sources`, or they are no set of pictures.
    """
    names = recipe.kind.sources(recipe.networks, recipe.objective)
    given: Data = dict.fromkeys(names, data) if isinstance(data, PictureSet) else data
    found = next(iter(open_sources(recipe, given, say, progress).values()))
    if not isinstance(found, PictureSet):
        raise BadInput(f"--data {data}: expected pictures")
    return found


def last_run_data(run: RunFolder) -> dict[str, RunData]:
    """What a run was last trained on; empty before its first checkpoint.

    Nothing is verified, which would read whole checkpoints: names stay the same from one to the next.
    """
    for checkpoint in reversed(list_checkpoints(run.checkpoints)):
        try:
            return read_run_data(json.loads((checkpoint.path / STATE_FILE).read_text("utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # damaged: passed over by name when the run goes on
    return {}


def run_data_of(
    recipe: Recipe,
    sources: Mapping[str, OpenedSource],
    known: Mapping[str, RunData],
    map_classes: Mapping[str, str] | None,
) -> dict[str, RunData]:
    """What the run is trained on from now on.

    Args:
        sources: with the run's labels.
        known: what it was trained on before; empty for a new run.
        map_classes: as for `train`.
    """
    needs = recipe.kind.sources(recipe.networks, recipe.objective)
    found = {}
    for name, source in sources.items():
        before, names = known.get(name), needs[name].class_names(source)
        mapping = None
        if before is not None and names:
            mapping = before.mapping if map_classes is None else map_classes
        found[name] = RunData(source.digest, before.first_digest if before else source.digest, names, mapping)
    return found
