"""Augmentation in recipes and in phases: settings, random inputs, and the controller of its probability."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self, get_args

import torch
from pydantic import model_validator
from torch import Tensor

from frugan.augment.ada import Ada
from frugan.augment.diffaugment import DiffAugment
from frugan.contract.phase import Carried, Draw, Draws, MicroBatch, PhaseState
from frugan.contract.settings import ADDED, CHANGEABLE, Settings, setting

# Settings of a recipe.

Method = Literal["diffaugment", "ada"]
DiffAugmentOperation = Literal["colour", "translation", "cutout"]
AdaOperation = Literal["blit", "geometry", "colour", "filter", "noise", "cutout"]

OPERATIONS: dict[Method, tuple[str, ...]] = {
    "diffaugment": get_args(DiffAugmentOperation),
    "ada": get_args(AdaOperation),
}
"""Operations of each method, in the order in which they act."""
USUAL: dict[Method, tuple[str, ...]] = {
    "diffaugment": OPERATIONS["diffaugment"],
    "ada": ("blit", "geometry", "colour"),
}
"""Operations that are on if a recipe names none: for ADA those that its authors train with."""


class AugmentationSettings(Settings):
    """Section `augmentation` of a recipe: changes of all pictures that the discriminator sees."""

    method: Method | None = setting(
        None,
        "diffaugment: a few strong operations, always on; ada: more operations, as often as needed; none: off",
        CHANGEABLE,
    )
    operations: tuple[DiffAugmentOperation | AdaOperation, ...] | None = setting(
        None, "which operations to use; none: all of diffaugment's, or ada's blit, geometry and colour", CHANGEABLE
    )
    probability: float = setting(
        0.0, "ada: probability of each operation at the start of training", CHANGEABLE, ge=0, le=1
    )
    final_probability: float | None = setting(
        None,
        "ada without a target: probability at the end of training.burn_in; none: it stays the same. R3GAN: 0.3 to 0.55",
        CHANGEABLE | ADDED,
        ge=0,
        le=1,
    )
    colour_share: float = setting(
        1.0,
        "ada: how often each colour operation acts, as a share of the probability; R3GAN: 0.5",
        CHANGEABLE | ADDED,
        gt=0,
        le=1,
    )
    target: float | None = setting(
        0.6,
        "ada: the probability is adjusted until the mean sign of the discriminator's output on real "
        "pictures is this; none: the probability stays as it is",
        CHANGEABLE,
    )
    ramp_images: int = setting(500_000, "ada: images that it takes to move the probability by 1", CHANGEABLE, ge=1)
    interval: int = setting(4, "ada: updates between adjustments of the probability", CHANGEABLE, ge=1)

    @model_validator(mode="after")
    def _operations_belong_to_the_method(self) -> Self:
        if wrong := [name for name in self.operations or () if name not in self._known]:
            known = f"{self.method} has {', '.join(self._known)}"
            cure = known if self.method else "set method to diffaugment or ada as well"
            raise ValueError(f"operations {', '.join(wrong)}: {cure}")
        return self

    @model_validator(mode="after")
    def _target_is_a_mean_sign(self) -> Self:
        if self.target is not None and not -1 < self.target < 1:
            raise ValueError(
                f"target {self.target:g}: a mean of signs lies between -1 and 1, and at either end the probability "
                "would go one way only; expected a number between, such as 0.6, or none for a fixed probability"
            )
        return self

    @model_validator(mode="after")
    def _something_happens(self) -> Self:
        if self.final_probability is not None and (self.method != "ada" or self.target is not None):
            raise ValueError(
                f"final_probability {self.final_probability:g}: goes with method = 'ada' and target = 'none', under "
                "which the probability is not steered otherwise"
            )
        if self.method == "ada" and self.target is None and self.probability == 0 and not self.final_probability:
            raise ValueError("target none, probability 0: ada would change no picture; set probability, or a target")
        return self

    @property
    def _known(self) -> tuple[str, ...]:
        return OPERATIONS[self.method] if self.method is not None else ()

    @property
    def chosen(self) -> tuple[str, ...]:
        """Operations that are on, in the order in which they act."""
        if self.method is None:
            return ()
        wanted = self.operations if self.operations is not None else USUAL[self.method]
        return tuple(name for name in self._known if name in wanted)


# Augmentation in phases: its random inputs, its application, and the controller of its probability.

STATE = "augmentation"
"""Name of the controller's state among the carried state of phases."""


@dataclass(frozen=True)
class Augmentation:
    """Random changes of pictures on their way to the discriminator.

    Every operation is drawn for each picture separately, so that the result does not depend on micro-batches.
    """

    settings: AugmentationSettings
    pipeline: Ada | DiffAugment | None  # changes pictures; None: augmentation is off

    @classmethod
    def of(cls, settings: AugmentationSettings) -> "Augmentation":
        """Make the pipeline of a recipe's settings."""
        if not settings.chosen:
            return cls(settings, None)
        if settings.method == "ada":
            return cls(settings, Ada(settings.chosen, settings.colour_share))
        return cls(settings, DiffAugment(settings.chosen))

    @property
    def adapts(self) -> bool:
        """Whether the probability is steered."""
        return self.pipeline is not None and self.settings.method == "ada" and self.settings.target is not None

    def draws(self, *names: str, shape: tuple[int, int, int]) -> Draws:
        """Random inputs that a phase needs to change pictures.

        Args:
            names: a name for each kind of picture of the phase, as `apply` takes them.
            shape: of a picture [C, H, W].
        """
        if self.pipeline is None:
            return {}
        by_kind = {
            "uniform": Draw("uniform", (self.pipeline.uniforms,)),
            "normal": Draw("normal", (self.pipeline.normals,)),
        }
        if self.pipeline.noisy:
            by_kind["noise"] = Draw("normal", shape, per_image=True)
        return {f"augment_{name}.{kind}": draw for name in names for kind, draw in by_kind.items()}

    def carried(self) -> Mapping[str, Carried]:
        """State that every phase with augmented pictures carries."""
        if not self.adapts:
            return {}
        first = (self.settings.probability, 0, 0, 0, 0)
        return {STATE: Carried(first, partial(_moved, self.settings), shown="augmentation probability")}

    def apply(self, pictures: Tensor, micro: MicroBatch, state: PhaseState, *names: str) -> Tensor:
        """Change pictures in [-1, 1] differentiably, by the random inputs of some names.

        Args:
            pictures: n pictures for each name, one name after the other [names·n, C, H, W].
            micro: micro-batch with the random inputs of `draws`.
            state: state of the phase.
            names: as `draws` was given them.
        """
        if self.pipeline is None:
            return pictures

        def drawn(kind: str) -> Tensor:
            first, *others = (micro.draws[f"augment_{name}.{kind}"] for name in names)
            return torch.cat([first, *others]) if others else first

        if self.adapts:
            probability = state.read(STATE)[0]
        else:
            now = state.between(self.settings.probability, self.settings.final_probability)
            probability = now if isinstance(now, Tensor) else torch.full((), now, device=pictures.device)
        noise = drawn("noise") if self.pipeline.noisy else None
        return self.pipeline(pictures.float(), drawn("uniform"), drawn("normal"), probability, noise)

    def observe(self, outputs: Tensor, micro: MicroBatch, state: PhaseState, *, counts: bool = True) -> None:
        """Observe the discriminator's outputs on real pictures, by whose signs the probability is steered.

        Args:
            outputs: [n, 1].
            micro: their micro-batch.
            state: state of the phase.
            counts: whether these pictures count as seen, and this update towards the interval; True in one phase only.
        """
        if self.adapts:
            sign = outputs.detach().sign().mean()
            state.observe(STATE, torch.stack([sign, torch.full_like(sign, float(counts))]), micro.size)


def adapted(probability: Tensor, sign: Tensor, target: float, images: Tensor | int, ramp_images: int) -> Tensor:
    """Next probability, never below 0 and without an upper limit.

    Args:
        probability: probability so far.
        sign: mean sign of the discriminator's outputs on real pictures since the last adjustment.
        target: see `AugmentationSettings`.
        images: images seen since the last adjustment.
        ramp_images: see `AugmentationSettings`.

    Source: Karras et al. 2020 (arXiv 2006.06676), section 3.1; the measure is their r_t.
    """
    return (probability + (sign - target).sign() * images / ramp_images).clamp_min(0)


def _moved(settings: AugmentationSettings, before: Tensor, mean: Tensor, samples: int) -> Tensor:
    """State of the controller after one more update: the probability, then sums since its last adjustment.

    Args:
        settings: of the recipe.
        before: probability, sum of signs, pictures with a sign, pictures that count as seen, updates [5].
        mean: mean sign, and whether the update counts [2].
        samples: pictures with a sign in this update.
    """
    assert settings.target is not None
    probability, signs, judged, seen, updates = before.unbind()
    sign, counts = mean.unbind()
    signs, judged = signs + sign * samples, judged + samples
    seen, updates = seen + counts * samples, updates + counts
    changed = adapted(probability, signs / judged, settings.target, seen, settings.ramp_images)
    none = torch.zeros_like(probability)
    return torch.where(
        updates >= settings.interval,
        torch.stack([changed, none, none, none, none]),
        torch.stack([probability, signs, judged, seen, updates]),
    )
