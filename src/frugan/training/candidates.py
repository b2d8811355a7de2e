"""Candidate recipes and thresholds for the automatic choice, as recipes/choice.toml defines them."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from frugan.recipe.loading import load_recipe, recipe_with
from frugan.recipe.recipe import Recipe
from frugan.recipes import choice_toml


@dataclass(frozen=True)
class Candidate:
    """A recipe at a size that the automatic choice considers."""

    recipe: str | Recipe  # name of a built-in one, or the recipe of starting weights
    side: int  # resolution in pixels
    images: int  # fewest images seen in training for this size to be worthwhile
    on_card: bool = False  # too slow on a CPU, whatever the time
    images_from_weights: int | None = None  # as `images`, from weights that ship; None: none do
    words_of_few_steps: tuple[str, ...] = ()  # overrides of the recipe where a training from these weights has few

    def __str__(self) -> str:
        return self.recipe if isinstance(self.recipe, str) else "the weights' own"

    def loaded(self, words: Sequence[str] = ()) -> Recipe:
        """Load the recipe with `key.sub=value` overrides."""
        if isinstance(self.recipe, str):
            return load_recipe(self.recipe, words)
        return recipe_with(self.recipe.model_dump(mode="json"), words, "recipe of the weights")


class Thresholds(BaseModel):
    """Contents of recipes/choice.toml, which explains each number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    usual_time: str
    time_for_steps: float
    fewest_steps: int
    few_steps: int
    long_seconds: float
    checkpoints: int
    long_checkpoint_every: str
    scores: int
    long_score_hours: int
    images_for_samples: float
    fewest_samples: int
    average_share: float
    few_images: int
    tried_times: int
    many_times: int
    side_share: float
    side_percentile: float
    oblong_share: float
    few_pictures: int
    large_side: int
    candidates: tuple[Candidate, ...]

    @property
    def sides(self) -> tuple[int, ...]:
        """Resolutions of the candidates in pixels, smallest first."""
        return tuple(sorted({candidate.side for candidate in self.candidates}))

    def of_side(self, side: int) -> list[Candidate]:
        """Return the candidates for a resolution in pixels."""
        return [candidate for candidate in self.candidates if candidate.side == side]

    def intervals(self, seconds: float) -> tuple[str, str]:
        """Time between checkpoints and grids, and between scores, of a training of so many seconds.

        In shares of a short one, by the hour in a long one.
        """
        if seconds > self.long_seconds:
            return self.long_checkpoint_every, f"{self.long_score_hours}h"
        return str(1 / self.checkpoints), str(1 / self.scores)

    @property
    def last(self) -> Candidate:
        """The fallback where there is no time for any other candidate."""
        return self.candidates[-1]

    def is_last(self, candidate: Candidate) -> bool:
        """Return whether a candidate is the fallback, whatever it starts from."""
        return (candidate.recipe, candidate.side) == (self.last.recipe, self.last.side)


THRESHOLDS = Thresholds.model_validate(tomllib.loads(choice_toml()))


@dataclass(frozen=True)
class Trial:
    """A candidate as it would be trained, and its pace."""

    candidate: Candidate
    words: tuple[str, ...]
    recipe: Recipe
    step_seconds: float
    steps: int  # that fit into the time
    wanted_steps: int | None  # set by the user; None: not set
    larger: str = ""  # how long the next larger size would need, in words; empty: time was not what spoke against one

    def has_time_for(self, candidate: Candidate) -> bool:
        """Return whether a candidate would see enough pictures at the measured pace."""
        steps = self.steps if self.wanted_steps is None else min(self.wanted_steps, self.steps)
        return steps * self.recipe.training.batch >= candidate.images

    def seconds_for(self, candidate: Candidate) -> float:
        """Seconds in which a candidate would see enough pictures at the measured pace."""
        return candidate.images / self.recipe.training.batch * self.step_seconds / THRESHOLDS.time_for_steps
