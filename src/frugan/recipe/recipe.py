"""Recipes: what to train, complete and validated, as TOML files with overrides."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, field_validator, model_validator

from frugan.accelerator.precision import PrecisionName
from frugan.contract.data import SourceSpec
from frugan.contract.family import Family, Preliminary
from frugan.contract.settings import ADDED, CHANGEABLE, DataSettings, Settings, setting
from frugan.engine.durations import (
    ENDLESS,
    UNDECIDED_STEPS,
    Course,
    Duration,
    EvaluationSettings,
    Interval,
    IntervalOrShare,
    Length,
    Time,
    Way,
)
from frugan.engine.state.ema import EmaSettings
from frugan.engine.state.fp32_blocks import named_blocks
from frugan.engine.state.optimizer_settings import DEFAULT_KIND, KINDS, OptimizerSettings, with_lazy_phases
from frugan.errors import BadFields, BadInput
from frugan.families import family
from frugan.recipe.faults import dotted_keys, explain, reasons
from frugan.recipe.overrides import DEFAULT_OPTIMIZER, differences, put
from frugan.recipe.removed import without_removed
from frugan.wording import nearest, parse_size

MOST_BATCH = 1_000_000
"""Largest batch, far beyond any in use; the random inputs of a step are drawn for a whole batch."""
MOST_ROLLBACKS = 100
"""Largest number of rollbacks; a run that has gone back as often does not train."""
KernelChoice = Literal["auto", "torch", "triton"]
Trained = Literal["by us", "by its authors", "never"]


class About(Settings):
    """Description of a recipe, without effect on training."""

    summary: str = setting("", "what the recipe is for, in one line", CHANGEABLE)
    source: str = setting("", "where the settings come from", CHANGEABLE)
    trained: Trained = setting("never", "who has trained it to its end", CHANGEABLE)


class TrainingSettings(Settings):
    """Duration, batch, precision and the like."""

    batch: int = Field(
        ge=1,
        le=MOST_BATCH,
        json_schema_extra=CHANGEABLE,
        description="samples per optimizer update, over all devices and micro-batches",
    )
    normalisation_batch: int | None = setting(
        None,
        "samples that are normalised together (batch norm, minibatch standard deviation); none: no such layers",
        ge=1,
    )
    duration: Interval = Field(
        json_schema_extra=CHANGEABLE,
        description="how long to train, such as 150k steps, 25M images or 6h; endless: until you stop it",
    )
    time: Time | None = setting(
        None,
        "how long training takes, start, grids and scores included: its steps are decided again as it goes, and what "
        "counts in shares of the duration follows; none: as many steps as the duration says",
        CHANGEABLE | ADDED,
    )
    earlier_lengths: tuple[tuple[int, int], ...] = setting(
        (),
        "lengths before the present duration: [step until which it held, steps in all]; frugan notes them",
        CHANGEABLE | ADDED,
    )
    burn_in: Way | None = setting(
        None,
        "all values with a final one (final_learning_rate and the like) go to it along half a cosine over this time, "
        "or this share of the duration, and stay there; none: in a straight line over the duration",
        CHANGEABLE | ADDED,
    )
    seed: int = setting(0, "seed of all random numbers", ge=0)
    precision: PrecisionName = setting(
        "auto", "precision that the networks compute in; auto: the best that the device supports"
    )
    tf32: bool = setting(
        False,
        "multiply fp32 numbers by their first three digits (TF32), in losses too; for NVIDIA cards from RTX 30xx and "
        "A100 on, most of all server cards. false: by all digits, as the authors of StyleGAN2 and R3GAN have it",
        CHANGEABLE | ADDED,
    )
    fp32_blocks: tuple[str, ...] = setting(
        (),
        'blocks that compute in fp32 whatever the precision, such as ["G.blocks.3", "D.blocks.0"]; a wrong name is '
        "answered with all there are",
        ADDED,
    )
    kernels: KernelChoice = setting(
        "auto",
        "what computes some layers and losses on a CUDA card: torch, its own operations; triton, kernels of frugan's; "
        "auto, those of frugan's that agree with torch there and are faster. The same up to rounding",
        CHANGEABLE | ADDED,
    )
    rollbacks: int = setting(
        2,
        "when updates keep giving NaN: how often the run goes back to its last good checkpoint, and on "
        "with another order of the data, before it stops",
        CHANGEABLE,
        ge=0,
        le=MOST_ROLLBACKS,
    )

    @field_validator("duration", mode="before")
    @classmethod
    def _may_be_endless(cls, value: Any) -> Any:
        return ENDLESS if value == str(ENDLESS) else value

    @property
    def course(self) -> Course:
        """Course of values with a final one; they stay at the first value where the duration is unknown."""
        length = self.length
        if isinstance(self.burn_in, Duration):
            in_images = self.burn_in.unit == "images"
            images = self.burn_in.amount if in_images else self.burn_in.steps(self.batch) * self.batch
            return Course(images, cosine=True, length=length)
        share, cosine = self.burn_in or 1.0, self.burn_in is not None
        if length is None:
            return Course(cosine=cosine)
        return Course(share * length.decided[0][1] * self.batch, cosine=cosine, length=length, share=share)

    @property
    def length(self) -> Length | None:
        """Number of steps, with the decisions so far; None: it ends by the clock, or not at all."""
        steps = self.duration.known_steps(self.batch)
        if self.duration == ENDLESS and self.time is not None:
            steps = UNDECIDED_STEPS
        return None if steps is None else Length.of(steps, self.earlier_lengths)

    @model_validator(mode="after")
    def _lengths_follow(self) -> Self:
        if self.length is None:
            if self.time is not None or self.earlier_lengths:
                raise ValueError(
                    f"training.time goes with a duration in steps, which it decides again, not {self.duration}"
                )
            return self
        at = [0, *(until for until, _ in self.earlier_lengths)]
        if at != sorted(set(at)) or any(until > length for until, length in self.earlier_lengths):
            raise ValueError(
                f"training.earlier_lengths {list(map(list, self.earlier_lengths))}: expected [step, steps in all], "
                "with growing steps, each within its length"
            )
        return self

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        group = self.normalisation_batch or 1
        if self.batch % group:
            fitting = max(size for size in range(1, group) if self.batch % size == 0)
            raise ValueError(
                f"batch {self.batch} is not a multiple of normalisation_batch {group}; one that fits: "
                f"training.normalisation_batch={fitting}"
            )
        return self


class SavingSettings(Settings):
    """Times at which training writes checkpoints, samples and tables."""

    checkpoint_every: IntervalOrShare = setting(
        Duration.parse("1k steps"), "time between checkpoints, or a share of the duration", CHANGEABLE
    )
    keep_checkpoints: int = setting(2, "how many of the newest checkpoints to keep", CHANGEABLE, ge=1)
    backup_every: Interval | None = setting(
        None, "time between checkpoints that are kept beside the newest ones; none: no such checkpoints", CHANGEABLE
    )
    keep_backups: int | None = setting(
        None, "how many of the newest of these to keep; none: all of them", CHANGEABLE | ADDED, ge=1
    )
    backups_size: str | None = setting(
        None,
        "room on the disk for all of these, such as 20GiB: the oldest are deleted, the newest stays; none: any",
        CHANGEABLE | ADDED,
        max_length=40,
    )
    snapshot_every: IntervalOrShare = setting(
        Duration.parse("1k steps"),
        "time between sample grids, or a share of the duration; more are drawn after 1, 10, 100 ... steps, and if "
        "there was none for long",
        CHANGEABLE,
    )
    when_full: Literal["stop", "go-on"] = setting(
        "stop",
        "when the disk has no room for a checkpoint: stop, or go-on until it has (the last one must fit)",
        CHANGEABLE,
    )
    report_every: Interval = setting(
        Duration.parse("100 steps"), "time between tables of gradients and singular values in the events", CHANGEABLE
    )

    @field_validator("backups_size")
    @classmethod
    def _is_a_size(cls, value: str | None) -> str | None:
        if value is not None:
            parse_size(value)
        return value


class StageSettings(Settings):
    """Fields that take other values from a point of training on."""

    at: Duration = Field(description="when the stage begins, in steps or images since the start of training")
    set: dict[str, Any] = Field(
        min_length=1, description="dotted field -> value; only fields that may change during a run"
    )

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if self.at.unit == "seconds":
            raise ValueError(f"at = {self.at}: expected steps or images; a stage by the clock could not be repeated")
        return self


STAGED = frozenset({"objective", "data", "optimizers"})
"""Sections that stages may set; others are not read again while training goes on."""


class Recipe(Settings):
    """A complete description of a training; `networks` and `objective` are of the family's types."""

    family: str = Field(
        description="kind of model: amp, biggan, quick96, r3gan, saehd, stylegan2, stylegan3, xseg, or one of another "
        "package"
    )
    rule: str = setting(
        "",
        "rule that sets other fields when a command changes the resolution or the batch (stylegan2, stylegan3: auto; "
        "r3gan: guess); empty: none",
        max_length=40,
    )
    about: About = About(summary="", source="", trained="never")
    networks: SerializeAsAny[BaseModel]
    objective: SerializeAsAny[BaseModel]
    data: DataSettings = DataSettings(flip=False, allow_upscale=False)
    training: TrainingSettings
    optimizers: Annotated[dict[str, SerializeAsAny[OptimizerSettings]], Field(min_length=1)]
    stages: tuple[StageSettings, ...] = Field((), json_schema_extra=CHANGEABLE)
    ema: EmaSettings = EmaSettings(decay=0.9999, half_life_images=None, start=Duration.parse("0 steps"))
    saving: SavingSettings = Field(default_factory=lambda: SavingSettings.model_validate({}))
    evaluation: EvaluationSettings = Field(default_factory=lambda: EvaluationSettings.model_validate({}))

    @model_validator(mode="before")
    @classmethod
    def _family_types(cls, values: Any) -> Any:
        """Read the sections `networks`, `objective` and `optimizers` with the family's types."""
        if not isinstance(values, dict):
            return values
        values = without_removed(values)
        if odd := list(_not_finite(values)):
            raise ValueError("\n".join(f"{key}: {value}: expected a finite number" for key, value in odd))
        if not isinstance(values.get("family"), str):
            return values
        kind = family(values["family"])
        types = {"networks": kind.networks_type, "objective": kind.objective_type}
        read: dict[str, Any] = {name: _read(model, values.get(name, {}), name) for name, model in types.items()}
        if isinstance(optimizers := values.get("optimizers"), dict):
            kinds = {**KINDS, **kind.optimizer_types}
            read["optimizers"] = {
                name: _read_optimizer(kinds, settings, name) for name, settings in _with_default(optimizers).items()
            }
        return values | read

    @model_validator(mode="after")
    def _optimizers_match(self) -> Self:
        wanted = {phase.optimizer for phase in self.kind.phases(self.networks, self.objective)}
        named, known = set(self.optimizers), set(self.kind.optimizers)
        if unknown := named - known - {DEFAULT_OPTIMIZER}:
            raise ValueError(
                f"optimizers {sorted(unknown)}: family {self.family} has {sorted(known)}; "
                f"{DEFAULT_OPTIMIZER!r} holds for those not named"
            )
        if DEFAULT_OPTIMIZER not in named and (missing := wanted - named):
            raise ValueError(
                f"optimizers {sorted(named)}: family {self.family} needs {sorted(wanted)}; {sorted(missing)} missing"
            )
        return self

    @model_validator(mode="after")
    def _rates_can_be_known(self) -> Self:
        optimizers = {f"optimizers.{name}": settings for name, settings in self.optimizers.items()}
        sections: dict[str, BaseModel] = {**optimizers, "objective": self.objective, "ema": self.ema}
        falling = next((key for name, section in sections.items() for key in _finals(section, name)), None)
        if falling is not None and self.training.course.images is None:
            if self.training.duration == ENDLESS:
                raise ValueError(
                    f"this recipe needs an end, and {ENDLESS} has none: {falling} is reached there; give a number of "
                    f"steps, such as training.duration='100k steps', or {falling}=none, which stays at the first value"
                )
            clock = self.training.duration.unit == "seconds"
            why = "a value that follows the clock could not be repeated" if clock else "it is reached at the end"
            duration = self.training.duration
            cure = "set training.burn_in in steps or images, such as training.burn_in='5k steps'"
            reason = f"{falling} needs a duration in steps or images, not {duration}: {why}"
            if clock:
                raise ValueError(
                    f"type --for {duration} or training.time={duration} instead of training.duration={duration}: "
                    f"{reason}; or {cure}"
                )
            raise ValueError(f"{reason}; {cure}")
        return self

    @model_validator(mode="after")
    def _shares_can_be_known(self) -> Self:
        saving = self.saving
        shares = {
            "saving.checkpoint_every": isinstance(saving.checkpoint_every, float),
            "saving.snapshot_every": isinstance(saving.snapshot_every, float),
            "evaluation.every": isinstance(self.evaluation.every, float),
            "ema.run_share": self.ema.run_share is not None,
        }
        named = next((key for key, is_share in shares.items() if is_share), None)
        if named is not None and self.training.length is None:
            raise ValueError(
                f"{named}: a share of the duration needs a duration in steps or images, not {self.training.duration}"
            )
        return self

    @model_validator(mode="after")
    def _data_fit(self) -> Self:
        for need in self.sources.values():
            need.check_settings(self.data)
        if self.shows_given and self.evaluation.every is not None:
            raise ValueError(
                "evaluation.every: this model draws no pictures of its own, only what it makes of given ones, so "
                "there is nothing to score"
            )
        return self

    @model_validator(mode="after")
    def _fp32_blocks_are_known(self) -> Self:
        _ = self.fp32_blocks
        return self

    @model_validator(mode="after")
    def _standing_batches_are_whole_groups(self) -> Self:
        size, group = self.evaluation.standing_size, self.training.normalisation_batch or 1
        if size is not None and (size < 2 or size % group):
            raise ValueError(
                f"evaluation.standing_size {size}: expected a multiple of the normalisation batch, {group}, "
                "and at least 2"
            )
        return self

    @model_validator(mode="after")
    def _noise_is_of_styles(self) -> Self:
        if self.evaluation.noise != "const" and not self.kind.styles(self.networks):
            raise ValueError(
                f"evaluation.noise {self.evaluation.noise}: {self.family} has no mapping network, and its layers add "
                "none; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _stages_work(self) -> Self:
        for stage in self.stages:
            later = self._with(stage)
            changed = differences(self, later)
            objectives = self.objective, later.objective
            if any(self.kind.fresh_after(*both) for both in (objectives, objectives[::-1])):
                raise ValueError(f"stages, at {stage.at}: networks would start anew, which only a resumption does")
            if (self.preliminary is None) != (later.preliminary is None):
                raise ValueError(f"stages, at {stage.at}: steps would count anew, which only a resumption does")
            for key in stage.set:
                section, name, *_ = key.split(".")
                whole = f"{section}.{name}"  # the key of a change to another kind of optimizer
                change = changed.get(key) or changed.get(whole)
                if change is None:
                    continue
                if section not in STAGED or not change.changeable or change.restarts:
                    raise ValueError(f"stages: {key} cannot change while training goes on")
        return self

    @property
    def kind(self) -> Family:
        """Family that `family` names."""
        return family(self.family)

    @property
    def preliminary(self) -> Preliminary | None:
        """Training that comes before the usual one; None: this is the usual one."""
        return self.kind.preliminary(self.objective, self.data)

    @property
    def sources(self) -> Mapping[str, SourceSpec]:
        """Requirements on each data source, by its name."""
        return self.kind.sources(self.networks, self.objective)

    @property
    def fp32_blocks(self) -> dict[str, tuple[str, ...]]:
        """Network -> blocks that compute in fp32 whatever the precision."""
        names = self.training.fp32_blocks
        return named_blocks(names, self.kind.recomputable(self.kind.build(self.networks, "meta"))) if names else {}

    @property
    def resolution(self) -> int:
        """Side of the largest pictures that the networks read, in pixels."""
        return max(need.resolution for need in self.sources.values())

    @property
    def shows_given(self) -> bool:
        """Whether samples are made of given pictures, and not drawn from random inputs."""
        return any(need.given for need in self.sources.values())

    @property
    def classes(self) -> int:
        """Number of classes that the networks know; 1: none."""
        return max((n.classes or 1 for n in self.sources.values()), default=1)

    @property
    def conditional_classes(self) -> int | None:
        """Number of classes of a class-conditional recipe, which may be one; None: it is unconditional."""
        return next(iter(self.sources.values())).classes

    def optimizer_settings(self) -> dict[str, OptimizerSettings]:
        """Settings that each optimizer of the family runs with: defaults filled in, slowed down for lazy phases."""
        default = self.optimizers.get(DEFAULT_OPTIMIZER)
        all_settings = {name: self.optimizers.get(name, default) for name in self.kind.optimizers}
        phases = self.kind.phases(self.networks, self.objective)
        return {
            name: with_lazy_phases(settings, phases, name)
            for name, settings in all_settings.items()
            if settings is not None
        }

    def at_step(self, step: int) -> "Recipe":
        """Return the recipe with every stage that has begun by step `step`, counted from 0."""
        recipe = self
        for stage in self._in_order():
            if stage.at.steps(self.training.batch) <= step:
                recipe = recipe._with(stage)
        return recipe

    @property
    def counted_in_images(self) -> list[str]:
        """Fields whose durations a step reaches by the batch that it has: in a run they stand and fall with that."""
        ways = {
            "training.duration": self.training.duration,
            "training.burn_in": self.training.burn_in,
            **{f"the stage at {stage.at}": stage.at for stage in self.stages},
        }
        return [key for key, way in ways.items() if isinstance(way, Duration) and way.unit == "images"]

    def stage_steps(self) -> list[int]:
        """Steps at which stages begin, in order."""
        return sorted({stage.at.steps(self.training.batch) for stage in self.stages})

    def _in_order(self) -> list[StageSettings]:
        return sorted(self.stages, key=lambda stage: stage.at.steps(self.training.batch))

    def _with(self, stage: StageSettings) -> "Recipe":
        values = self.model_dump(mode="json", exclude={"stages"})
        known = known_keys(self.family, self.optimizers)
        for key, value in stage.set.items():
            if key not in known:
                raise ValueError(f"stages: {key}: unknown key{nearest(key, known)}")
            *sections, last = key.split(".")
            if not sections or (sections[0] == "optimizers" and last == "kind"):
                raise ValueError(f"stages: {key} cannot change while training goes on")
            put(values, key, value)
        try:
            return Recipe.model_validate(values)
        except ValidationError as error:
            raise ValueError(f"stages, at {stage.at}: {explain(error, Recipe)}") from error


def _finals(settings: BaseModel, section: str) -> Iterator[str]:
    """Dotted keys of the fields with final values, as far as they are set."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _finals(value, f"{section}.{name}")
        elif name.startswith("final_") and value is not None:
            yield f"{section}.{name}"


def _not_finite(values: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Dotted keys and values of numbers that are infinite or NaN."""
    if isinstance(values, float) and not math.isfinite(values):
        yield key, values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            yield from _not_finite(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _not_finite(value, key)


def _with_default(optimizers: Mapping[str, Any]) -> dict[str, Any]:
    """Complete optimizers without a kind by kind and fields of the default, if there is one."""
    default = optimizers.get(DEFAULT_OPTIMIZER)
    if isinstance(default, BaseModel):
        default = default.model_dump()
    if not isinstance(default, dict):
        return dict(optimizers)
    return {
        name: {**default, **settings} if isinstance(settings, dict) and "kind" not in settings else settings
        for name, settings in optimizers.items()
    }


def _read(model: type[BaseModel], values: Any, section: str) -> BaseModel:
    if isinstance(values, BaseModel):
        return values
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadFields(explain(error, model, section), reasons(error, model, section)) from error


def _read_optimizer(kinds: Mapping[str, type[BaseModel]], values: Any, name: str) -> BaseModel:
    if isinstance(values, BaseModel):
        return values
    if not isinstance(values, Mapping):
        raise BadInput(f"optimizers.{name}: expected a table, not {str(values)[:40]!r}")
    word = values.get("kind", DEFAULT_KIND)
    if not isinstance(word, str) or word not in kinds:
        raise BadInput(f"optimizers.{name}.kind: {word!r} is unknown; expected one of: {', '.join(kinds)}")
    return _read(kinds[word], values, f"optimizers.{name}")


def known_keys(recipe_family: str, optimizers: Iterable[str]) -> list[str]:
    """Dotted keys of all fields of a family's recipes."""
    kind = family(recipe_family)
    sections = {"networks": kind.networks_type, "objective": kind.objective_type}
    keys = [key for key in dotted_keys(Recipe) if key.split(".")[0] not in {"networks", "objective", "optimizers"}]
    keys += [key for section, model in sections.items() for key in dotted_keys(model, section)]
    names = dict.fromkeys((*optimizers, *kind.optimizers, DEFAULT_OPTIMIZER))
    models = (*KINDS.values(), *kind.optimizer_types.values())
    optimizer_keys = dict.fromkeys(key for model in models for key in dotted_keys(model))
    return keys + [f"optimizers.{name}.{key}" for name in names for key in optimizer_keys]
