"""Plans for one recipe on one card: what there is to choose from, remembered between calls."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from frugan.api.plan.prediction_helper import PredictionHelper
from frugan.api.progress import quiet
from frugan.api.setup import training_of
from frugan.engine.precision import DTYPES, Precision, card_precision
from frugan.engine.training import Training
from frugan.errors import BadInput
from frugan.families import family_code
from frugan.folders import Folders
from frugan.memory.calibration import device_name, load_calibration
from frugan.memory.cards import Card, card_here, named_card, unnamed_card
from frugan.memory.plan_space import PlanSpace, Wishes
from frugan.memory.prediction import Target
from frugan.memory.prediction_store import PredictionStore, prediction_version
from frugan.memory.search import Search
from frugan.recipe.recipe import Recipe

SECONDS_PER_MODULE = 0.007
"""Of one run of a step without data: 0.006 to 0.008 over the recipes that ship, on one core of an AMD EPYC."""


@dataclass
class Planner:
    """Finds plans for a recipe.

    Attributes:
        recipe: what is trained.
        card: what on.
        precision: of the working weights, decided for the card.
        target: "cuda" for any card, wherever the planning is done.
        wishes: what is asked of plans.
        gpus: cards that share the batch.
        share: samples of a batch that this card sees; None: the most that any sees where they share it as equally as
            groups allow.
        in_parts: the recipe's normalisation groups are parts of groups that cards share.
        shipped: file of predictions that came with the package; None: there is none for this recipe.
        tell: is told how many steps were run without data so far.
    """

    recipe: Recipe
    card: Card
    precision: Precision
    target: Target = "cuda"
    wishes: Wishes = field(default_factory=Wishes)
    gpus: int = 1
    share: int | None = None
    in_parts: bool = False
    shipped: Path | None = None
    tell: Callable[[int], None] = quiet

    @cached_property
    def search(self) -> Search:
        """All plans and what is known of them.

        Raises:
            BadInput: there are more cards than normalisation groups in a batch.
        """
        space = PlanSpace(self.training, self.precision, self.wishes, on_card=self.target == "cuda")
        return Search(space, self.card, self.store)

    @cached_property
    def training(self) -> Training:
        """What this card does of what is trained."""
        training = replace(training_of(self.recipe), in_parts=self.in_parts)
        groups = -(-training.batch // training.group)
        if self.gpus > groups:
            plural = "" if groups == 1 else "s"
            of = (
                f"{groups} normalisation group{plural} of {training.group}"
                if training.group > 1
                else f"{groups} samples"
            )
            raise BadInput(
                f"--gpus {self.gpus}: a batch of this recipe is {of}, at least one to each card; plan for at most "
                f"{groups}, or give the recipe a larger training.batch (it changes the result)"
            )
        most = min(-(-groups // self.gpus) * training.group, training.batch)
        return training.shared_by(self.gpus, most if self.share is None else self.share)

    @cached_property
    def store(self) -> PredictionStore:
        """Predictions: those that ship, those made here before, and new ones."""
        training = self.training
        files = (self.shipped, self.cache_file) if self.shipped else (self.cache_file,)
        about = subject(self.recipe) | {"gpus": self.gpus} | ({"in_parts": True} if self.in_parts else {})
        if training.batch * self.gpus != self.recipe.training.batch:
            about |= {"share": training.batch}
        helper = self._helper if (os.cpu_count() or 1) > 1 else None
        return PredictionStore(
            training, self.target, about, prediction_version(), files, self.tell, helper, self._expected_seconds
        )

    def _expected_seconds(self) -> float:
        """Of one run of a plan, by the number of modules."""
        built = self.recipe.kind.build(self.recipe.networks, "meta").values()
        return SECONDS_PER_MODULE * sum(1 for network in built for _ in network.modules())

    @cached_property
    def _helper(self) -> PredictionHelper:
        return PredictionHelper(self.recipe, self.gpus, self.training.batch, self.target, self.in_parts)

    @property
    def cache_file(self) -> Path:
        """Where this user's own predictions are kept."""
        name = self.recipe.family
        return Folders.from_environment().cache / "predictions" / f"{name}-{_digest(subject(self.recipe))}.json"

    def close(self) -> None:
        """End the helping process."""
        self._helper.close()

    def remember(self) -> None:
        """Keep what was found out for the next time; a full disk or a read-only one is no reason to fail."""
        self.close()
        if self.store.ran:
            try:
                self.store.save(self.cache_file)
            except OSError:
                return


def subject(recipe: Recipe) -> dict[str, Any]:
    """The fields of a recipe that a step's memory and work depend on."""
    values = recipe.model_dump(mode="json", include={"family", "networks", "objective", "stages", "ema"})
    for section in ("networks", "objective", "ema"):
        for name in _added_and_at_default(getattr(recipe, section)):
            del values[section][name]
    optimizers = {name: type(o).__name__ for name, o in recipe.optimizer_settings().items()}
    batch = {"batch": recipe.training.batch, "normalisation_batch": recipe.training.normalisation_batch}
    code = family_code(recipe.kind)  # shipped families have a version that a person raises
    more = ({"compiled": True} if recipe.training.compile else {}) | ({"code": code} if code is not None else {})
    return values | {"optimizers": optimizers, "training": batch} | more


def _added_and_at_default(settings: BaseModel) -> Iterator[str]:
    """Fields that earlier versions did not have, and whose value leaves a step as it was then."""
    for name, setting in type(settings).model_fields.items():
        extra = setting.json_schema_extra
        if isinstance(extra, dict) and extra.get("added") and getattr(settings, name) == setting.default:
            yield name


def shipped_predictions(name: str) -> Path | None:
    """Predictions that came with the package for a built-in recipe; None if there are none."""
    file = resources.files("frugan") / "predictions" / f"{name}.json"
    return Path(str(file)) if file.is_file() else None


def choose_card(asked: str | None, device: torch.device) -> Card:
    """The card that is planned for: by name, or the device here with what was measured on it or is known of it.

    Raises:
        BadInput: a name that is not known.
    """
    if asked is not None:
        return named_card(asked)
    if device.type != "cuda":
        return unnamed_card()
    name = device_name(device)
    if (measured := load_calibration(name, Folders.from_environment().cache)) is not None:
        return measured
    memory_bytes = torch.cuda.get_device_properties(device).total_memory
    return card_here(name, memory_bytes, torch.cuda.get_device_capability(device))


def planned_precision(recipe: Recipe, card: Card) -> Precision:
    """The precision that training would have on a card."""
    asked = recipe.training.precision
    if card.capability is not None:
        return card_precision(asked, card.name, card.capability)
    if asked == "auto":
        return Precision("bf16", torch.bfloat16, "assumed: compute capability 8.0 or newer; fp16 on 7.x takes as much")
    return Precision(asked, DTYPES[asked], "asked for")


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
