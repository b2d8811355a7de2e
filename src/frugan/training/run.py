"""Options, context and result of a training run."""

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from frugan.contract.data import RunData
from frugan.data.run_data import class_names
from frugan.engine.durations import Duration
from frugan.engine.ranks.place import parse_shares
from frugan.engine.ranks.ranks import OneRank, Ranks
from frugan.engine.requests import Requests, StopRequest
from frugan.engine.run.events import EventLog, NoEvents
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.training import Training
from frugan.errors import checked
from frugan.planning.plan_space import PlanConstraints
from frugan.progress import Say
from frugan.recipe.recipe import Recipe
from frugan.setup.recipe_setup import training_of
from frugan.training.starting_weights import Start
from frugan.wording import parse_size


@checked
@dataclass(frozen=True)
class TrainingOptions:
    """Options of a training besides the recipe."""

    micro_batch: int | None = None  # samples in one forward; None: by the plan, on a CPU one normalisation group
    recompute: bool = False  # recompute every recomputable block
    ema_on_host: bool = False  # keep the average in host memory
    shard_optimizer: bool = False  # shard the optimizers' state over the ranks
    device: str = "auto"  # "auto", "cpu", or a kind of card: "cuda", "cuda:1"
    workers: int | None = None  # processes that prepare face samples, over all sources; None: by the machine
    memory: str | None = None  # budget on the card, such as "6GiB"; None: what is free there less a margin
    use: Collection[str] = ()  # memory savings that the plan must use
    avoid: Collection[str] = ()  # memory savings that the plan must not use
    tensorboard: bool = False  # write TensorBoard's files into the run as well
    wandb_project: str | None = None  # send everything to this project on Weights & Biases; None: nothing
    # wall-clock time such as "23h", setup included, after which to save and stop; None: no limit
    stop_after: str | None = None
    requeue: bool = False  # SIGUSR1 saves and stops as well, as schedulers send it before a job's time is over
    # samples of a batch per rank: "equal", or numbers such as "6,5"; None: as the run had it, else equal
    shares: str | None = None

    def __post_init__(self) -> None:
        """Refuse a mistyped size or time before any picture is read.

        Raises:
            BadInput: a saving is unknown, or `memory` is none, or `stop_after`, or `shares` are none.
        """
        PlanConstraints(self.micro_batch, self.use, self.avoid)
        if self.memory is not None:
            parse_size(self.memory)
        _ = self.stop_after_seconds
        if self.shares is not None:
            parse_shares(self.shares)

    @property
    def stop_after_seconds(self) -> float | None:
        """Seconds after which to stop; None: never.

        Raises:
            BadInput: it is no time.
        """
        if self.stop_after is None:
            return None
        return Duration.parse_seconds(self.stop_after, "--stop-after")

    @property
    def savers(self) -> bool:
        """Whether memory savings are requested or excluded by name."""
        return bool(self.use or self.avoid)

    @property
    def constrains_plan(self) -> bool:
        """Whether an option sets anything that a plan decides."""
        plan_options = (self.recompute, self.ema_on_host, self.shard_optimizer, self.memory, self.savers)
        return self.micro_batch is not None or any(plan_options)


@dataclass(frozen=True)
class TrainingResult:
    """Result of `train`."""

    run: Path  # the run folder
    step: int  # steps done
    finished: bool  # whether the recipe's duration is over
    seconds: float  # of training, over all resumptions
    threads: int  # of the CPU, at the end
    rank: int = 0  # of this process; only rank 0 writes files


@dataclass(frozen=True)
class TrainRun:
    """A run with its recipe and data, on any rank; only the first one uses its folder."""

    # recipe, name: what is trained; the name finds the predictions that ship
    recipe: Recipe
    name: str
    sources: Mapping[str, Any]  # opened data by source name
    data: Mapping[str, RunData]  # what checkpoints keep of them
    folder: RunFolder  # run folder
    options: TrainingOptions  # how it runs here
    say: Say  # receives a line for every automatic choice
    log: EventLog = field(default_factory=NoEvents)  # event log and its subscribers
    # stop, requests: what is asked for while training goes on
    stop: StopRequest = field(default_factory=StopRequest)
    requests: Requests = field(default_factory=Requests)
    began: float = field(default_factory=time.perf_counter)  # `time.perf_counter` value at the command's start
    named: Collection[str] = ()  # fields of the recipe that whoever began or resumed it named: those are no choices
    start: Start | None = None  # starting weights of a new run; None: random ones
    command: str | None = None  # command line that resumes the run, for messages; None: there is none
    ranks: Ranks = field(default_factory=OneRank)  # the processes that train together

    @cached_property
    def training(self) -> Training:
        """Training definition of the recipe."""
        return training_of(self.recipe)

    @property
    def stop_at(self) -> float | None:
        """`time.perf_counter` value at which to save and stop; None: no limit."""
        after = self.options.stop_after_seconds
        return None if after is None else self.began + after

    @property
    def recipe_now(self) -> Recipe:
        """The recipe with the length as it was decided last."""
        length, training = self.training.course.length, self.recipe.training
        if length is None or length.earlier == training.earlier_lengths:
            return self.recipe
        duration = Duration.parse(f"{length.steps} steps")
        now = training.model_copy(update={"duration": duration, "earlier_lengths": length.earlier})
        return self.recipe.model_copy(update={"training": now})

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes by label; empty: there are no labels."""
        return class_names(self.data)

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes files and reports for all ranks."""
        return self.ranks.rank == 0

    def choose(self, line: str) -> None:
        """Report a choice that holds for all ranks, and log it as an event."""
        if self.is_first:
            self.say(line)
            self.log.write("choice", line=line)

    def choose_here(self, line: str) -> None:
        """Report a choice for this rank alone."""
        if self.is_first:
            self.choose(line)
        else:
            self.say(line)

    def warn(self, step: int, line: str) -> None:
        """Report a warning, and log it as an event."""
        if self.is_first:
            self.say(f"warning: {line}")
            self.log.write("warning", step=step, line=line)

    def warning_over(self, step: int, line: str) -> None:
        """Log that what a warning told of has ended."""
        if self.is_first:
            self.log.write("warning_over", step=step, line=line)
