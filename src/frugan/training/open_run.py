"""Opening of a run for training: by the first rank, the only one with the folder, and by the others."""

import shlex
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frugan.contract.data import RunData
from frugan.data.formats.set_file import is_prepared
from frugan.data.formats.source import is_hidden, local_path
from frugan.engine.ranks.place import Place
from frugan.engine.ranks.ranks import Ranks
from frugan.engine.requests import KEYS_HINT, SIGNALS, handled, listening, stop_on_signals
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.engine.run.events import EventLog, read_events
from frugan.engine.run.run_folder import RunFolder, no_room
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.progress import Progress, Say, quiet
from frugan.recipe.loading import load_recipe, overrides_in_words, parse_recipe
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in
from frugan.setup.recipe_setup import refuse_full_disk, refuse_too_large
from frugan.setup.run_data_sources import Data, advice, last_run_data, open_sources, run_data_of
from frugan.training.choice import RecipeChoice, choose_for
from frugan.training.kept_time import with_time
from frugan.training.recovery import began_from, choice_of, refuse_other_recipe
from frugan.training.run import NoStepFits, TrainingOptions, TrainRun
from frugan.training.starting_weights import (
    CLASSES_OF_SHIPPED,
    FROM_NOISE,
    Start,
    init_name,
    recipe_to_start_from,
    unknown_classes,
)
from frugan.wording import first_names


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run that the first rank sends to the others, which do not read the run folder."""

    recipe: Mapping[str, Any]  # JSON values
    # name, folder, data: as in `TrainRun`
    name: str
    folder: Path
    data: Mapping[str, RunData]
    known: Mapping[str, RunData]  # what the run was trained on last; empty: it is new


@contextmanager
def locked(run: TrainRun, known: Mapping[str, RunData], *, is_new: bool) -> Iterator[TrainRun]:
    """Yield the run for the first rank, with its folder locked and its event log and requests opened.

    Args:
        known: what it was trained on last; empty: it is new.
        is_new: nobody had begun a run there when it was opened.

    Raises:
        BadInput: somebody is training there, or has begun a run there meanwhile.
    """
    folder, options, say = run.folder, run.options, run.say
    no_folder, goes_on = not folder.path.exists(), run.recipe.saving.when_full == "go-on"
    try:
        with (
            folder.locked(say),
            _check_still_new(folder, is_new=is_new),
            stop_on_signals(say) as stop,
            listening(folder.requests, stops=("SIGUSR1",) if options.requeue else ()) as (requests, keys),
            EventLog(folder.events, no_room if goes_on else lambda _: False) as log,
        ):
            if keys and run.ranks.size == 1:  # torchrun keeps the console to itself
                say(KEYS_HINT)
            run.ranks.forward_stop(stop)
            run.ranks.broadcast(RunFacts(run.recipe.model_dump(mode="json"), run.name, folder.path, run.data, known))
            for _ in _TURNS:
                run.ranks.barrier()  # the others open their pictures
            yield replace(run, log=log, stop=stop, requests=requests)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(folder.path)) from error  # a write does not say to where
    except BadInput as error:
        if no_folder and (not folder.exists or isinstance(error, NoStepFits)):
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


@contextmanager
def _check_still_new(folder: RunFolder, *, is_new: bool) -> Iterator[None]:
    """Refuse a folder in which another process has begun a run while the pictures were opened.

    Events left behind by a run that was refused before it began are deleted.
    """
    if not folder.exists:
        folder.events.unlink(missing_ok=True)
    elif is_new:
        raise BadInput(
            f"{folder.path}: another run was begun there while this one was made ready; name another folder with --out"
        )
    yield


_TURNS = (True, False)
"""Turns to open pictures: the first rank of each machine (True), so that it prepares them, then the others (False)."""


@contextmanager
def joined_run(
    data: Data, map_classes: Mapping[str, str] | None, options: TrainingOptions, ranks: Ranks, say: Say
) -> Iterator[TrainRun]:
    """Yield the run for any rank but the first, which does not touch the run folder.

    Raises:
        BadInput: this rank has other pictures than the first one.
    """
    # signals that ask the first rank for something shall not end the others
    with stop_on_signals(quiet) as stop, handled(SIGNALS, signal.SIG_IGN):
        ranks.forward_stop(stop)
        nothing: Any = None
        facts: RunFacts = ranks.broadcast(nothing)
        recipe = parse_recipe(facts.recipe, "the first rank's recipe")
        sources: Mapping[str, Any] = {}
        for turn in _TURNS:
            if turn == (Place.here().local_rank == 0):
                sources = open_sources(recipe, _data_in_force(recipe, data), quiet, None, facts.known, map_classes)
            ranks.barrier()
        for source, known in facts.data.items():
            if sources[source].digest != known.digest:
                raise BadInput(f"{ranks.name}: --data holds other pictures for {source!r} there than on the first rank")
        yield TrainRun(
            recipe=recipe,
            name=facts.name,
            sources=sources,
            data=facts.data,
            folder=RunFolder(facts.folder),
            options=options,
            say=lambda line: say(f"{ranks.name}: {line}"),
            stop=stop,
            ranks=ranks,
        )


def recipe_for(
    data: Data,
    out: str | Path | None,
    overrides: Sequence[str],
    for_time: str | None,
    options: TrainingOptions,
    init: str | Path | None,
    say: Say,
    progress: Progress | None,
) -> tuple[str | Recipe, Sequence[str], RecipeChoice | None]:
    """Find the recipe where none is named: that of the run that goes on, or one that is chosen for the pictures.

    Returns:
        The recipe, its overrides, and the choice, if one was made.

    Raises:
        BadInput: no recipe can be chosen.
    """
    before = _previous_run(data, init) if out is None else RunFolder(Path(out))
    if before is not None and before.exists:
        if out is None:
            say(f"{before.path} was begun for these pictures and goes on; --out with another folder begins a new run")
        named: str | Recipe = before.as_recipe(built_in())
        if for_time is not None:
            named, overrides = with_time(named, overrides, for_time, say)
        return named, overrides, None
    if out is not None:  # before steps are timed
        RunFolder(Path(out)).refuse_other_files()
        _refuse_among_pictures(Path(out).resolve(), data)
    choice = choose_for(
        data,
        options.device,
        for_time=for_time,
        overrides=overrides,
        memory=options.memory,
        gpus=Place.here().size,
        start=recipe_to_start_from(init),
        from_noise=str(init) == FROM_NOISE,
        progress=progress,
    )
    for line in choice.lines:
        say(line)
    return choice.recipe, (*choice.overrides, *overrides), choice


def where_line(run: RunFolder, recipe: str | None) -> str | None:
    """Return a line that says where a run goes for which no folder was named; None: its own folder is its recipe."""
    if recipe is not None and run.path == Path(recipe):
        return None
    if run.exists:
        return f"run: {run.path} was begun there and goes on; --out with another folder begins a new run"
    return f"run: {run.path}, in the folder for runs; --out names another"


def chosen_for(data: Data, init: str | Path | None) -> Mapping[str, str | None]:
    """Return what a recipe is chosen for, as the event log keeps it; data is None for pictures without a file."""
    paths = list(data.values()) if isinstance(data, Mapping) else [data]
    named = [path for path in paths if isinstance(path, str | Path)]
    return {
        "data": shlex.join(map(_whole, named)) if len(named) == len(paths) else None,
        "init": None if init is None else init_name(init),
    }


def _whole(path: str | Path) -> str:
    """Resolve a path, unless it is a name such as "digits"."""
    return str(Path(path).resolve()) if Path(path).exists() else str(path)


def _previous_run(data: Data, init: str | Path | None) -> RunFolder | None:
    """The run in the folder for runs that was trained last of those whose recipe was chosen for the same path."""
    chosen = chosen_for(data, init)
    runs = Folders.from_environment().runs
    if chosen["data"] is None or not runs.is_dir():
        return None
    for folder in sorted(map(RunFolder, runs.iterdir()), key=_trained_at, reverse=True):
        with suppress(OSError):  # another user's
            if not folder.exists:
                continue
            before = dict(choice_of(folder.events))
            if before.get("by_itself"):  # nobody named the weights that it began from
                before["init"] = None
            if chosen.items() <= before.items():
                return folder
    return None


def _trained_at(folder: RunFolder) -> float:
    try:
        return folder.events.stat().st_mtime
    except OSError:  # no run, or another user's
        return 0.0


def start_of(
    run: RunFolder, choice: RecipeChoice | None, init: str | Path | None, init_classes: str | None, say: Say
) -> Start | None:
    """Return the starting weights of a run without a checkpoint: as named, or as its event log has them.

    Args:
        choice: how the recipe was chosen; None: it was named.

    Raises:
        BadInput: it cannot be read, or knows other classes than the recipe that was chosen for it and nobody said what
            to do, which is better said before pictures are prepared.
    """
    if list_checkpoints(run.checkpoints):
        if init is not None:  # may be gone by now
            say(f"--init {init} is ignored: the run exists and resumes from its own checkpoint")
        return None
    if init is None and choice is not None and choice.start is not None and not run.exists:
        chosen = Start.of(choice.start, init_classes or CLASSES_OF_SHIPPED, ships=True)
        return chosen and replace(chosen, told=True)
    start = Start.of(init, init_classes)
    if start is not None and start.classes is None and choice is not None and isinstance(choice.recipe, Recipe):
        theirs, ours = start.weights.recipe.conditional_classes, choice.recipe.conditional_classes
        if theirs is not None and ours is not None and theirs != ours:
            raise unknown_classes(f"--init {init}", theirs, ours)
    if start is not None or not run.exists:
        return start
    try:
        return began_from(run)
    except BadInput as error:
        raise BadInput(
            f"{run.path} was begun from other weights, and has no checkpoint of its own yet: {error}; name them with "
            "--init where they are now, or begin anew with another --out"
        ) from error


def resolve_recipe(recipe: str | Recipe, overrides: Sequence[str], say: Say) -> Recipe:
    """Load a recipe unless it is loaded, and report what its overrides change besides."""
    if not isinstance(recipe, str):
        return recipe
    loaded = load_recipe(recipe, overrides)
    for line in overrides_in_words(recipe, overrides):
        say(line)
    return loaded


def refuse_early(loaded: Recipe, run: RunFolder, data: Data) -> None:
    """Refuse what can be refused before anything is read.

    Raises:
        BadInput: of the run's folder, its recipe, or the room for it.
    """
    run.refuse_other_files()
    refuse_other_recipe(run, loaded)
    _refuse_lost_checkpoints(run)
    if "images" in loaded.sources:
        _refuse_among_pictures(run.path.resolve(), data)
    refuse_too_large(loaded)
    refuse_full_disk(loaded, run.path)


def _refuse_lost_checkpoints(run: RunFolder) -> None:
    """Refuse to restart a run whose events list checkpoints when none of them is there.

    A run that ended before its first one is begun again without more ado.
    """
    if not run.exists or not run.events.is_file() or list_checkpoints(run.checkpoints):
        return
    written = [event.get("step", 0) for event in read_events(run.events) if event.get("event") == "checkpoint"]
    if not written or list_checkpoints(run.checkpoints):  # a process that trains there may have just written its first
        return
    others = [place for place in (run.checkpoints, run.backups, run.best) if place.is_dir() and any(place.iterdir())]
    elsewhere = f" ({first_names([str(place) for place in others])} may hold one to copy there)" if others else ""
    raise BadInput(
        f"{run.path}: wrote checkpoints up to step {max(written):,}, and {run.checkpoints} has none to go on from. Put "
        f"one back{elsewhere}, or begin anew with another --out"
    )


def _refuse_among_pictures(run: Path, data: Data) -> None:
    for folder in data.values() if isinstance(data, Mapping) else [data]:
        # a prepared set knows its own files
        if not isinstance(folder, str | Path) or not local_path(folder).is_dir() or is_prepared(Path(folder)):
            continue
        whole = Path(folder).resolve()
        if run.is_relative_to(whole) and not any(map(is_hidden, run.relative_to(whole).parts)):
            raise BadInput(
                f"run folder {run}: lies inside the pictures' folder {whole}, where its sample grids would be taken "
                "for pictures; choose an --out outside of it (a run that is there already can be moved)"
            )


def open_pictures(
    loaded: Recipe,
    run: RunFolder,
    data: Data,
    map_classes: Mapping[str, str] | None,
    say: Say,
    progress: Progress | None,
    *,
    by_name: bool,
) -> tuple[Mapping[str, Any], dict[str, RunData], dict[str, RunData]]:
    """Open the pictures, and find out what their classes are called in the run.

    Args:
        by_name: whether the recipe was asked for by its name or path: what would do better is said then.

    Returns:
        The opened sources, what the run is trained on from now on, and what it was trained on last.
    """
    known = last_run_data(run)
    sources = open_sources(loaded, _data_in_force(loaded, data), say, progress, known, map_classes)
    if by_name and not run.exists and "channels" in loaded.kind.networks_type.model_fields:
        for line in advice(loaded, sources):
            say(line)
    trained_on = run_data_of(loaded, sources, known, map_classes)
    if map_classes is not None and not known:
        say("--map-class is ignored: a new run takes its classes from its pictures")
    for new, old in ((n, o) for training_data in trained_on.values() for n, o in (training_data.mapping or {}).items()):
        say(f"classes: {new} of the pictures is {old} in the run (--map-class)")
    return sources, trained_on, known


def _data_in_force(recipe: Recipe, data: Data) -> Data:
    """Return what a recipe is trained on: a preliminary training may have data of its own."""
    preliminary = recipe.preliminary
    if preliminary is None or preliminary.data is None:
        return data
    return dict.fromkeys(recipe.sources, preliminary.data)


def are_there(data: Data) -> bool:
    """Return whether all that the pictures are read from is there, before it is opened."""
    places = data.values() if isinstance(data, Mapping) else [data]
    return all(local_path(place).exists() for place in places if isinstance(place, str | Path))


def command_of(run: RunFolder, data: Data, options: TrainingOptions, ranks: Ranks) -> str | None:
    """Return the command line that resumes a run; None where its pictures are in no file."""
    named = data if isinstance(data, Mapping) else {"": data}
    started = ["torchrun", f"--nproc-per-node={ranks.local_size}", "-m"] if ranks.size > 1 else []
    words = [*started, "frugan", "train", run.as_recipe(built_in())]
    for name, path in named.items():
        if not isinstance(path, str | Path):
            return None
        words += ["--data", f"{name}={path}" if name else str(path)]
    if ranks.size == 1 and options.device != "auto":
        words += ["--device", options.device]
    if options.memory is not None:
        words += ["--memory", options.memory]
    return shlex.join(words)
