"""`train`: from a recipe and pictures to a run, new or resumed."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from frugan.accelerator.device import release_memory
from frugan.engine.run.checkpoint import list_checkpoints
from frugan.engine.run.events import Event
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.step_log import Diverged
from frugan.engine.run.threads import threads_put_back
from frugan.errors import checked
from frugan.progress import Progress, Say, quiet
from frugan.recipe.recipe import Recipe
from frugan.recipes import built_in
from frugan.setup.devices import joined_ranks
from frugan.setup.recipe_setup import frozen_layers
from frugan.setup.run_data_sources import Data
from frugan.training.beginning import begin
from frugan.training.choice import RecipeChoice
from frugan.training.kept_time import named_fields, with_length_by_hand, with_time
from frugan.training.observers import following
from frugan.training.open_run import (
    are_there,
    chosen_for,
    command_of,
    joined_run,
    locked,
    open_pictures,
    recipe_for,
    refuse_early,
    resolve_recipe,
    start_of,
    where_line,
)
from frugan.training.recovery import CHOSEN, NO_RECOVERY, finished_before, init_of, recover
from frugan.training.run import TrainingOptions, TrainingResult, TrainRun
from frugan.training.starting_weights import refuse_untrained


def _ignore_closed_console(show: Callable[[Any], None]) -> Callable[[Any], None]:
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


@checked
def train(
    recipe: str | Recipe | None,
    data: Data,
    out: str | Path | None = None,
    *,
    for_time: str | None = None,
    overrides: Sequence[str] = (),
    init: str | Path | None = None,
    init_classes: str | None = None,
    map_classes: Mapping[str, str] | None = None,
    options: TrainingOptions | None = None,
    say: Say = print,
    show: Callable[[Event], None] = quiet,
    progress: Progress | None = None,
    began: float | None = None,
) -> TrainingResult:
    """Train a recipe, or go on with the run in `out` if there is one.

    Started by torchrun, it trains with all the processes that torchrun starts (docs/cluster.md).

    Args:
        recipe: built-in name, path of a TOML file, a run (its own recipe, as it was trained with), or a loaded recipe;
            None: that of the run in `out`, and for a new run one that is chosen for the pictures.
        data: pictures: a path or an opened set, or where a recipe reads several sources those by source name.
        out: run folder; default: one in the folder for runs, named after the recipe; where that is chosen, the one
            that was begun for the same path, or a new one.
        for_time: how long the run takes, start, grids and scores included, such as "2h"; None: 30 minutes where its
            recipe is chosen, else as many steps as the recipe says.
        overrides: `key.sub=value` words.
        init: weights file, checkpoint or run whose weights a new run starts from.
        init_classes: what tables of classes start from where those weights know other classes: "mean", "fresh" or
            "copy=FILE", a file with a line `CLASS = CLASS OF THE WEIGHTS` for each.
        map_classes: class of the pictures -> its name in the run that goes on, where classes were renamed; those not
            named are found by their names, in whatever order. Kept in the run. None: as kept, else the classes must be
            those of the run.
        options: how to run it here.
        say: is given a line for every automatic choice, and for what a run that goes on has otherwise than before.
        show: is given every event.
        progress: (done, all) while pictures are prepared.
        began: when the time began that training keeps, by `time.perf_counter`; None: now.

    Raises:
        BadInput: anything given that cannot be used; nothing is lost then.
        TrainingFailed: training stopped by itself.
    """
    began = time.perf_counter() if began is None else began
    say, show = _ignore_closed_console(say), _ignore_closed_console(show)
    with ExitStack() as opened:
        options = options or TrainingOptions()
        ranks, device_here = opened.enter_context(joined_ranks(options.device, options.shares, say))
        options = replace(options, device=device_here)
        opened.enter_context(threads_put_back())
        if ranks.rank == 0:
            choice: RecipeChoice | None = None
            typed = overrides
            if recipe is not None and for_time is not None:
                recipe, overrides = with_time(recipe, overrides, for_time, say)
            if recipe is None:
                recipe, overrides, choice = recipe_for(data, out, overrides, for_time, options, init, say, progress)
            words = recipe if isinstance(recipe, str) else None
            loaded = resolve_recipe(recipe, overrides, say)
            folder = RunFolder.to_train(words, loaded.family, out, shipped=built_in())
            if choice is not None and out is None:
                folder = folder.unused()
            if out is None and (line := where_line(folder, words)) is not None:
                say(line)
            loaded = with_length_by_hand(loaded, folder, overrides, say)
            command = command_of(folder, data, options, ranks)
            # --init and --map-class are answered where a run is opened, and other ranks wait for that
            if ranks.size == 1 and init is None and map_classes is None and are_there(data):
                over = finished_before(folder, loaded, command, say)
                if over is not None:
                    return over
            refuse_early(loaded, folder, data)
            by_name, is_new = words is not None, not folder.exists
            start = start_of(folder, choice, init, init_classes, say)
            if start is None and not list_checkpoints(folder.checkpoints):
                refuse_untrained(frozen_layers(loaded))
            sources, trained_on, known = open_pictures(
                loaded, folder, data, map_classes, say, progress, by_name=by_name
            )
            prepared = TrainRun(
                recipe=loaded,
                name=words or loaded.family,
                sources=sources,
                data=trained_on,
                folder=folder,
                options=options,
                say=say,
                start=start,
                command=command,
                ranks=ranks,
                began=began,
                named=named_fields(loaded, typed),
            )
            run = opened.enter_context(locked(prepared, known, is_new=is_new))
            if choice is not None:
                _log_choice(run, choice, {**chosen_for(data, init), **init_of(start), "by_itself": init is None})
            _subscribe(run, show, opened)
        else:
            run = opened.enter_context(joined_run(data, map_classes, options, ranks, say))
        return _train_until_done(run)


def _subscribe(run: TrainRun, show: Callable[[Event], None], opened: ExitStack) -> None:
    """Have events shown, and sent on where the options say so; what is opened for it goes on a stack."""
    run.log.subscribe(show)
    tensorboard, wandb_project = run.options.tensorboard, run.options.wandb_project
    follow = following(run.folder.path, tensorboard=tensorboard, wandb_project=wandb_project)
    run.log.subscribe(opened.enter_context(follow))


def _log_choice(run: TrainRun, choice: RecipeChoice, chosen: Mapping[str, Any]) -> None:
    for line in choice.lines:
        run.log.write("choice", line=line)
    run.log.write(CHOSEN, **chosen)


def _train_until_done(run: TrainRun) -> TrainingResult:
    """Train; where it diverges, go on from the last sound checkpoint as often as the recipe allows."""
    ranks = run.ranks
    recovery = NO_RECOVERY
    while True:
        with run.log.scoped_subscribers():
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
