"""`train`: from a recipe and pictures to a run, new or resumed."""

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from frugan.api.data.sources import Data, advice, last_run_data, open_sources, run_data_of
from frugan.api.machine.rank_devices import device_of_rank, ranks_in_words
from frugan.api.progress import Progress, Say, quiet
from frugan.api.train.beginning import begin, changed_fields
from frugan.api.train.host_room import refuse_full_disk, refuse_too_large
from frugan.api.train.open_run import OpenRun
from frugan.api.train.options import TrainingOptions
from frugan.api.train.other_ranks import train_along
from frugan.api.train.recovery import NOTHING_HAPPENED, recover
from frugan.api.train.result import TrainingResult
from frugan.api.train.starting_weights import Start
from frugan.api.train.trackers import following
from frugan.contract.data import RunData
from frugan.contract.formats import RECIPE_FILE
from frugan.engine.disk_room import no_room
from frugan.engine.events import Event, EventLog
from frugan.engine.interrupt import StopRequest, stop_on_signals
from frugan.engine.out_of_memory import release_memory
from frugan.engine.ranks.asked_shares import parse_shares
from frugan.engine.ranks.place import Place
from frugan.engine.ranks.ranks import OneRank, Order, Ranks
from frugan.engine.requests import KEYS_HINT, Requests, listening
from frugan.engine.run_folder import RunFolder
from frugan.engine.soundness import Diverged
from frugan.engine.threads import threads_put_back
from frugan.errors import BadInput
from frugan.folders import Folders
from frugan.recipe.loading import load_recipe, parse_recipe, read_run_recipe, rule_followed, stages_overridden
from frugan.recipe.recipe import Recipe


def _while_it_can(show: Callable[[Any], None]) -> Callable[[Any], None]:
    """Show until the console is gone (its window was closed): no reason to lose what was trained."""
    gone = False

    def guarded(value: Any) -> None:
        nonlocal gone
        if not gone:
            try:
                show(value)
            except OSError:
                gone = True

    return guarded


def train(
    recipe: str | Recipe,
    data: Data,
    out: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    init: str | Path | None = None,
    init_classes: str | None = None,
    map_classes: Mapping[str, str] | None = None,
    options: TrainingOptions | None = None,
    say: Say = quiet,
    show: Callable[[Event], None] = quiet,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train a recipe, or go on with the run in `out` if there is one.

    Started by torchrun, it trains with all the processes that torchrun starts (docs/cluster.md).

    Args:
        recipe: built-in name, path of a TOML file, a run (its own recipe, as it was trained with), or a loaded recipe.
        data: pictures: a path, paths by source name, or opened sets by source name.
        out: run folder; default: a new one, named after the recipe, in the folder for runs.
        overrides: `key.sub=value` words.
        init: weights file, checkpoint or run whose weights a new run starts from.
        init_classes: what tables of classes start from where those weights know other classes: "mean", "fresh" or
            "copy=FILE", a file with a line `CLASS = CLASS OF THE WEIGHTS` for each.
        map_classes: class of the pictures -> its name in the run that goes on, where classes were renamed; those not
            named are found by their names, in whatever order. Kept in the run. None: as kept, else the classes must be
            those of the run.
        options: how to run it here.
        say: is given a line for every automatic choice.
        show: is given every event.
        progress: (done, all) while pictures are prepared.

    Raises:
        BadInput: anything given that cannot be used; nothing is lost then.
        TrainingFailed: training stopped by itself.
    """
    options = options or TrainingOptions()
    asked = _Asked(
        recipe,
        data,
        out,
        overrides,
        init,
        init_classes,
        map_classes,
        _while_it_can(say),
        _while_it_can(show),
        progress,
    )
    place = Place.here()
    if place.alone:
        return _lead(asked, OneRank(), options)
    from frugan.engine.ranks.joining import joined  # noqa: PLC0415  (one process needs no torch.distributed)

    if options.shares is not None:
        parse_shares(options.shares, place.size)
    device = device_of_rank(options.device, place)
    with joined(place, device) as ranks:
        options = replace(options, device=str(device))
        if ranks.rank != 0:
            return train_along(ranks, data, options, asked.say)
        asked.say(ranks_in_words(ranks))
        return _lead(asked, ranks, options)


@dataclass(frozen=True)
class _Asked:
    """What `train` was called with, in its words."""

    recipe: str | Recipe
    data: Data
    out: str | Path | None
    overrides: Sequence[str]
    init: str | Path | None
    init_classes: str | None
    map_classes: Mapping[str, str] | None
    say: Say
    show: Callable[[Event], None]
    progress: Progress | None


@dataclass(frozen=True)
class _Pictures:
    """Opened pictures.

    Attributes:
        sources: by name.
        known: what the run was trained on last; empty: it is new.
        trained_on: what it is trained on now, with the names of its classes.
    """

    sources: Mapping[str, Any]
    known: Mapping[str, RunData]
    trained_on: Mapping[str, RunData]


def _lead(asked: _Asked, ranks: Ranks, options: TrainingOptions) -> TrainingResult:
    """Train alone, or as the first of several ranks."""
    recipe, say = asked.recipe, asked.say
    loaded = load_recipe(recipe, asked.overrides) if isinstance(recipe, str) else recipe
    for line in _what_overrides_do(recipe, asked.overrides):
        say(line)
    run = _run_folder(recipe, loaded, asked.out)
    start = _refuse_early(asked, loaded, run)
    pictures = _open_pictures(asked, loaded, run)
    is_new = not run.path.exists()
    try:
        with (
            run.locked(say),
            threads_put_back(),
            stop_on_signals(say) as stop,
            listening(run.requests, stops=("SIGUSR1",) if options.requeue else ()) as (requests, keys),
            EventLog(run.events, _keeps_events(loaded)) as log,
            following(run.path, tensorboard=options.tensorboard, wandb_project=options.wandb_project) as follow,
        ):
            if keys and ranks.size == 1:  # torchrun keeps the console to itself
                say(KEYS_HINT)
            log.subscribe(asked.show)
            log.subscribe(follow)
            ranks.pass_on(stop)
            opened = OpenRun(
                loaded,
                recipe if isinstance(recipe, str) else loaded.family,
                pictures.sources,
                pictures.trained_on,
                run,
                log,
                options,
                say,
                _command(run, asked.data, options, ranks),
                pictures.known,
                asked.map_classes,
                ranks,
            )
            return _until_it_ends(opened, start, requests, stop)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(run.path)) from error  # a write does not say to where
    except BadInput:
        if is_new and not run.exists:
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _refuse_early(asked: _Asked, loaded: Recipe, run: RunFolder) -> Start | None:
    """Refuse what can be refused before the pictures are read.

    Returns:
        What a new run starts from.

    Raises:
        BadInput: of the run's folder, its recipe, the room for it, or the weights that it starts from.
    """
    if run.path.is_dir() and not run.exists and {p.name for p in run.path.iterdir()} - run.first_files:
        raise BadInput(f"{run.path}: holds something else than a run; choose an empty or new folder for --out")
    _check_fields(run, loaded)
    refuse_too_large(loaded)
    refuse_full_disk(loaded, run.path)
    return Start.of(asked.init, asked.init_classes)


def _open_pictures(asked: _Asked, loaded: Recipe, run: RunFolder) -> _Pictures:
    """Open the pictures, and find out what their classes are called in the run."""
    known = last_run_data(run)
    sources = open_sources(loaded, asked.data, asked.say, asked.progress, known, asked.map_classes)
    if isinstance(asked.recipe, str) and not run.exists and "channels" in loaded.kind.networks_type.model_fields:
        for line in advice(loaded, sources):
            asked.say(line)
    trained_on = run_data_of(loaded, sources, known, asked.map_classes)
    if asked.map_classes is not None and not known:
        asked.say("--map-class is ignored: a new run takes its classes from its pictures")
    for new, old in ((n, o) for each in trained_on.values() for n, o in (each.mapping or {}).items()):
        asked.say(f"classes: {new} of the pictures is {old} in the run (--map-class)")
    return _Pictures(sources, known, trained_on)


def _until_it_ends(run: OpenRun, start: Start | None, requests: Requests, stop: StopRequest) -> TrainingResult:
    """Train; where it diverges, from the last sound checkpoint again, as far as the recipe lets.

    Raises:
        TrainingFailed: it stopped by itself.
    """
    recovery = NOTHING_HAPPENED
    while True:
        with run.log.subscribers_of_its_own():
            loop = begin(run, start, requests, stop, recovery)
            device = loop.state.device
            try:
                finished = loop.train(stop)
                return TrainingResult(run.folder.path, loop.state.step, finished, loop.seconds, torch.get_num_threads())
            except Diverged as error:
                recovery = recover(run, error, recovery, device)
                run.ranks.tell(Order.AGAIN)
        del loop  # before the next one takes its room
        release_memory(device)


def _keeps_events(recipe: Recipe) -> Callable[[OSError], bool]:
    return no_room if recipe.saving.when_full == "go-on" else lambda _: False


def _what_overrides_do(recipe: str | Recipe, overrides: Sequence[str]) -> list[str]:
    if not isinstance(recipe, str):
        return []
    return [*stages_overridden(recipe, overrides), *rule_followed(recipe, overrides)]


def _run_folder(recipe: str | Recipe, loaded: Recipe, out: str | Path | None) -> RunFolder:
    """Where to train: `out`, the run that is its own recipe, or a new one in the folder for runs."""
    if out is not None:
        return RunFolder(Path(out))
    if isinstance(recipe, str) and RunFolder(Path(recipe)).exists:
        return RunFolder(Path(recipe))
    name = recipe if isinstance(recipe, str) else loaded.family
    path = Path(name)
    own = path.resolve().parent.name if path.name == RECIPE_FILE else ""  # as `frugan convert` leaves one in a folder
    return RunFolder(Folders.from_environment().runs / (own or path.stem))


def _command(run: RunFolder, data: Data, options: TrainingOptions, ranks: Ranks) -> str | None:
    """What goes on with a run, typed; None where its pictures are in no file."""
    named = data if isinstance(data, Mapping) else {"": data}
    started = ["torchrun", f"--nproc-per-node={ranks.local_size}", "-m"] if ranks.size > 1 else []
    words = [*started, "frugan", "train", str(run.path)]
    for name, path in named.items():
        if not isinstance(path, str | Path):
            return None
        words += ["--data", f"{name}={path}" if name else str(path)]
    if ranks.size == 1 and options.device != "auto":
        words += ["--device", options.device]
    if options.memory is not None:
        words += ["--memory", options.memory]
    return shlex.join(words)


def _check_fields(run: RunFolder, recipe: Recipe) -> None:
    """Refuse a run of another recipe early, before its pictures are opened.

    Raises:
        BadInput: a fixed field differs.
    """
    if not run.exists:
        return
    changed_fields(parse_recipe(read_run_recipe(run.recipe), str(run.recipe)), recipe, run.path)
