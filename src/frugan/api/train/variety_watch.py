"""Measures during training how much the generator's pictures of a class vary, beside real ones.

Samples come from the networks that are trained, not from their averages: an average shows a collapse later by as many
steps as it reaches back. On the digits, of a run that collapsed between steps 400 and 600, its samples had 0.91 of the
real distance at step 600, those of the trained weights 0.58.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from frugan.contract.data import OpenedSource
from frugan.contract.family import SheetRequest
from frugan.data.picture_set import PictureSet
from frugan.data.streams import random_order
from frugan.engine.plan import Plan
from frugan.engine.state import TrainingState
from frugan.engine.working_weights import working_weights
from frugan.metrics.diversity import DiversityRatios, WithinClass, pixel_rows, ratios, within_class
from frugan.recipe.recipe import Recipe

FIRST_LOOK_STEPS = 500
FIRST_LOOK_IMAGES = 10_000
"""Before both of these a generator has learnt too little: its samples may all be alike, or differ as noise does."""
SAMPLES = 32
"""Of each class. Real pictures in their places had at least 0.89 of the real distance, as a mean over the classes, in
all of 3,600 draws from six sets; with 16 it went down to 0.83."""
MOST_CLASSES = 10
LEAST_REAL = 10
"""Pictures of a class from which on their distances say what is usual in it."""
MOST_REAL = 200
MOST_REAL_BYTES = 256 * 2**20
"""Real pictures read in all, unless `SAMPLES` of each class are more."""
TWINS_SHARE = 0.25
"""Of a class's real pictures: among so many samples, one that knows them all and nothing else seldom repeats itself."""
SEED = 4


@dataclass
class VarietyWatch:
    """Compares samples of a training with the pictures that it learns from.

    Attributes:
        recipe: of the training.
        pictures: what it learns from.
    """

    recipe: Recipe
    pictures: PictureSet

    @cached_property
    def classes(self) -> tuple[int, ...]:
        """Up to `MOST_CLASSES` of those that have pictures enough, evenly over all of them."""
        counts = np.bincount(self.pictures.labels)
        enough = np.flatnonzero(counts >= LEAST_REAL)
        if not len(enough):
            return ()
        at = np.unique(np.linspace(0, len(enough) - 1, min(MOST_CLASSES, len(enough))).round().astype(np.int64))
        return tuple(int(label) for label in enough[at])

    @cached_property
    def _real(self) -> WithinClass:
        """Distances between real pictures, of each class as many as `MOST_REAL` and `MOST_REAL_BYTES` allow."""
        share = MOST_REAL_BYTES // (len(self.classes) * self.pictures[0].nbytes)
        most = min(MOST_REAL, max(SAMPLES, share))
        order = random_order(f"variety/{self.pictures.digest}", len(self.pictures))
        labels = self.pictures.labels[order]
        chosen = {label: np.sort(order[labels == label][:most]) for label in self.classes}
        rows = [pixel_rows(torch.from_numpy(np.array(self.pictures[at]))) for at in chosen.values()]
        numbers = [torch.full((len(at),), label) for label, at in chosen.items()]
        return within_class(torch.cat(rows), torch.cat(numbers))

    def due(self, step: int) -> bool:
        """Whether there is something to measure after so many steps."""
        images = step * self.recipe.training.batch
        return bool(self.classes) and step >= FIRST_LOOK_STEPS and images >= FIRST_LOOK_IMAGES

    def measure(self, state: TrainingState, plan: Plan) -> DiversityRatios | None:
        """Variety of the generator as it is trained now; leaves no trace. None: its pictures are not finite."""
        networks = {name: state.networks[name] for name in state.shown}
        layout = plan.layout(state.device)
        request = SheetRequest(seed=SEED, classes=self.classes, columns=SAMPLES, micro_batch=plan.micro_batch)
        training = {name: network.training for name, network in networks.items()}
        for network in networks.values():
            network.eval()
        try:
            with torch.no_grad(), working_weights(networks, dict.fromkeys(networks, layout), (), None):
                sheet = self.recipe.kind.sample(self.recipe.networks, networks, request)  # [classes, SAMPLES, C, R, R]
        finally:
            for name, network in networks.items():
                network.train(training[name])
        return self.compare(sheet) if bool(torch.isfinite(sheet).all()) else None

    def compare(self, sheet: Tensor) -> DiversityRatios:
        """Compare samples with the real pictures.

        Args:
            sheet: in [-1, 1], a row for each of `classes` [classes, samples, C, R, R].
        """
        labels = torch.tensor(self.classes).repeat_interleave(sheet.shape[1])
        samples = within_class(pixel_rows(sheet.flatten(0, 1)), labels)
        return ratios(samples, self._real, real_share=TWINS_SHARE)


def variety_watch_of(recipe: Recipe, sources: Mapping[str, OpenedSource]) -> VarietyWatch | None:
    """How to watch a training; None where it does not learn pictures by classes."""
    needs = recipe.kind.sources(recipe.networks, recipe.objective)
    if len(needs) != 1:
        return None
    ((name, need),) = needs.items()
    pictures = sources[name]
    if need.classes is None or not isinstance(pictures, PictureSet):
        return None
    return VarietyWatch(recipe, pictures)
