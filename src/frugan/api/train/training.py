"""`train`: from a recipe and pictures to a run, new or resumed."""

import shlex
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from frugan.api.data import Data, advice, last_run_data, open_sources, run_data_of
from frugan.api.devices import device_of_rank, host_bytes, ranks_in_words
from frugan.api.progress import Progress, Say, quiet
from frugan.api.setup import parameter_counts
from frugan.api.train.beginning import begin
from frugan.api.train.init import Start
from frugan.api.train.observers import following
from frugan.api.train.recovery import NOTHING_HAPPENED, changed_fields, recover
from frugan.api.train.run import TrainingOptions, TrainingResult, TrainRun
from frugan.contract.data import RunData
from frugan.contract.formats import RECIPE_FILE
from frugan.engine.device import release_memory
from frugan.engine.events import Event, EventLog, NoEvents
from frugan.engine.ranks.place import Place, parse_shares
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.requests import KEYS_HINT, SIGNALS, listening, stop_on_signals
from frugan.engine.run_folder import RunFolder, no_room
from frugan.engine.step_log import Diverged
from frugan.engine.threads import threads_put_back
from frugan.errors import BadInput
from frugan.files import Folders
from frugan.recipe.loading import load_recipe, parse_recipe, read_run_recipe, rule_followed, stages_overridden
from frugan.recipe.recipe import Recipe
from frugan.wording import show_size

FP32_BYTES = 4
LEAST_COPIES = 2
"""Of every parameter in a checkpoint: itself, and the one number of the optimizer that keeps least."""
EVENTS_BYTES = 1 << 16
"""Room for what is written before the first checkpoint."""


def refuse_too_large(recipe: Recipe) -> None:
    """Refuse, before anything is read, what could only end in the system killing the process.

    Raises:
        BadInput: the networks as they are built, or the pictures of one batch, take more than a process here may.
    """
    has = host_bytes()
    if has is None:
        return
    samples = [need.sample_bytes for need in recipe.sources.values()]
    batch = recipe.training.batch
    if (pictures := batch * max(samples, default=0)) > has:
        raise BadInput(
            f"training.batch = {batch:,}: the pictures of one batch take {show_size(pictures, 1)}, and there are "
            f"{show_size(has, 1)} of memory here; choose a smaller batch"
        )
    parameters = sum(parameter_counts(recipe).values())
    if parameters * FP32_BYTES > has:
        raise BadInput(
            f"networks of {parameters:,} parameters take {show_size(parameters * FP32_BYTES, 1)} as they are built, "
            f"and there are {show_size(has, 1)} of memory here; choose narrower ones (frugan plan says what fits)"
        )


def refuse_full_disk(recipe: Recipe, run: Path) -> None:
    """Refuse to begin what could not be saved.

    Args:
        run: folder of the run; need not be there.

    Raises:
        BadInput: its disk has no room for one checkpoint.
    """
    there = next((folder for folder in (run.absolute(), *run.absolute().parents) if folder.is_dir()), None)
    if there is None:
        return
    needed = sum(parameter_counts(recipe).values()) * FP32_BYTES * LEAST_COPIES + EVENTS_BYTES
    free = shutil.disk_usage(there).free
    if free < needed:
        raise BadInput(
            f"{run}: its disk has {show_size(free, 1)} free, and the first checkpoint takes at least "
            f"{show_size(needed, 1)}; free some room, or choose another --out"
        )


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
    say, show = _while_it_can(say), _while_it_can(show)
    with ExitStack() as opened:
        ranks, options = opened.enter_context(_joined(options or TrainingOptions(), say))
        if ranks.rank == 0:
            loaded = load_recipe(recipe, overrides) if isinstance(recipe, str) else recipe
            for line in _what_overrides_do(recipe, overrides):
                say(line)
            folder = _run_folder(recipe, loaded, out)
            start = _refuse_early(loaded, folder, init, init_classes)
            sources, facts = _open_pictures(recipe, loaded, folder, data, map_classes, say, progress)
            run = TrainRun(
                recipe=loaded,
                name=facts.name,
                sources=sources,
                data=facts.data,
                folder=folder,
                log=NoEvents(),
                options=options,
                say=say,
                start=start,
                command=_command(folder, data, options, ranks),
                ranks=ranks,
            )
            run = opened.enter_context(_locked(run, facts, show))
        else:
            run = opened.enter_context(_taken_part_in(data, options, ranks, say))

        # Train; where it diverges, from the last sound checkpoint again, as far as the recipe lets.
        recovery = NOTHING_HAPPENED
        while True:
            with run.log.subscribers_of_its_own():
                loop = begin(run, recovery)
                device = loop.state.device
                try:
                    finished = loop.train(run.stop)
                    threads = torch.get_num_threads()
                    return TrainingResult(run.folder.path, loop.state.step, finished, loop.seconds, threads, ranks.rank)
                except Diverged as error:
                    recovery = ranks.broadcast(recover(run, error, recovery, device) if run.is_first else recovery)
            del loop  # before the next one takes its room
            release_memory(device)


@contextmanager
def _joined(options: TrainingOptions, say: Say) -> Iterator[tuple[Ranks, TrainingOptions]]:
    """The processes that train together, and the options with this one's device."""
    place = Place.here()
    if place.alone:
        yield OneRank(), options
        return
    from frugan.engine.ranks.joining import joined  # noqa: PLC0415  (one process needs no torch.distributed)

    if options.shares is not None:
        parse_shares(options.shares, place.size)
    device = device_of_rank(options.device, place)
    with joined(place, device) as ranks:
        if ranks.rank == 0:
            say(ranks_in_words(ranks))
        yield ranks, replace(options, device=str(device))


@dataclass(frozen=True)
class _RunFacts:
    """What the first rank tells the others of a run, so that they need nothing of its folder."""

    recipe: Mapping[str, Any]  # JSON values
    # name, folder, data: as in `TrainRun`
    name: str
    folder: Path
    data: Mapping[str, RunData]
    known: Mapping[str, RunData]  # what the run was trained on last; empty: it is new
    map_classes: Mapping[str, str] | None  # as for `train`


@contextmanager
def _locked(run: TrainRun, facts: _RunFacts, show: Callable[[Event], None]) -> Iterator[TrainRun]:
    """The run as the first rank has it: locked, with its events and what may be asked for while it goes on."""
    folder, options, say = run.folder, run.options, run.say
    is_new = not folder.path.exists()
    try:
        with (
            folder.locked(say),
            threads_put_back(),
            stop_on_signals(say) as stop,
            listening(folder.requests, stops=("SIGUSR1",) if options.requeue else ()) as (requests, keys),
            EventLog(folder.events, _keeps_events(run.recipe)) as log,
            following(folder.path, tensorboard=options.tensorboard, wandb_project=options.wandb_project) as follow,
        ):
            if keys and run.ranks.size == 1:  # torchrun keeps the console to itself
                say(KEYS_HINT)
            log.subscribe(show)
            log.subscribe(follow)
            run.ranks.pass_on(stop)
            run.ranks.broadcast(facts)
            for _ in _TURNS:
                run.ranks.barrier()  # the others open their pictures
            yield replace(run, log=log, stop=stop, requests=requests)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(folder.path)) from error  # a write does not say to where
    except BadInput:
        if is_new and not folder.exists:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise


_TURNS = (True, False)
"""Whether the first ranks of each machine open pictures now: what is prepared of them, is prepared once on each."""


@contextmanager
def _taken_part_in(data: Data, options: TrainingOptions, ranks: Ranks, say: Say) -> Iterator[TrainRun]:
    """The run as any rank but the first has it, which touches no run folder.

    Raises:
        BadInput: this rank has other pictures than the first one.
    """
    with stop_on_signals(quiet) as stop, _requests_ignored():
        ranks.pass_on(stop)
        nothing: Any = None
        facts: _RunFacts = ranks.broadcast(nothing)
        recipe = parse_recipe(facts.recipe, "the first rank's recipe")
        sources: Mapping[str, Any] = {}
        for turn in _TURNS:
            if turn == (Place.here().local_rank == 0):
                sources = open_sources(recipe, data, quiet, None, facts.known, facts.map_classes)
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
            log=NoEvents(),
            options=options,
            say=lambda line: say(f"{ranks.name}: {line}"),
            stop=stop,
            ranks=ranks,
        )


@contextmanager
def _requests_ignored() -> Iterator[None]:
    """Signals that ask the first rank for something shall not end the others."""
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_early(loaded: Recipe, run: RunFolder, init: str | Path | None, init_classes: str | None) -> Start | None:
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
    return Start.of(init, init_classes)


def _open_pictures(
    recipe: str | Recipe,
    loaded: Recipe,
    run: RunFolder,
    data: Data,
    map_classes: Mapping[str, str] | None,
    say: Say,
    progress: Progress | None,
) -> tuple[Mapping[str, Any], _RunFacts]:
    """Open the pictures, find out what their classes are called in the run, and what other ranks need of both."""
    known = last_run_data(run)
    sources = open_sources(loaded, data, say, progress, known, map_classes)
    if isinstance(recipe, str) and not run.exists and "channels" in loaded.kind.networks_type.model_fields:
        for line in advice(loaded, sources):
            say(line)
    trained_on = run_data_of(loaded, sources, known, map_classes)
    if map_classes is not None and not known:
        say("--map-class is ignored: a new run takes its classes from its pictures")
    for new, old in ((n, o) for each in trained_on.values() for n, o in (each.mapping or {}).items()):
        say(f"classes: {new} of the pictures is {old} in the run (--map-class)")
    name = recipe if isinstance(recipe, str) else loaded.family
    return sources, _RunFacts(loaded.model_dump(mode="json"), name, run.path, trained_on, known, map_classes)


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
