"""What a recipe says about augmentation."""

from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from frugan.contract.field_marks import CHANGEABLE

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
"""Those that are on if none are named: of ADA the ones that its authors train with."""


class AugmentationSettings(BaseModel):
    """Augmentation that the discriminator sees, of real and generated pictures alike."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Method | None = Field(
        None,
        json_schema_extra=CHANGEABLE,
        description="diffaugment: a few strong operations, always on; ada: more operations, as often as needed; none: "
        "off",
    )
    operations: tuple[DiffAugmentOperation | AdaOperation, ...] | None = Field(
        None,
        json_schema_extra=CHANGEABLE,
        description="which operations to use; none: all of diffaugment's, or ada's blit, geometry and colour",
    )
    probability: float = Field(
        0.0,
        ge=0,
        le=1,
        json_schema_extra=CHANGEABLE,
        description="ada: probability of each operation at the start of training",
    )
    target: float | None = Field(
        0.6,
        json_schema_extra=CHANGEABLE,
        description="ada: the probability is adjusted until the mean sign of the discriminator's output on real "
        "pictures is this; none: the probability stays as it is",
    )
    ramp_images: int = Field(
        500_000,
        ge=1,
        json_schema_extra=CHANGEABLE,
        description="ada: images that it takes to move the probability by 1",
    )
    interval: int = Field(
        4, ge=1, json_schema_extra=CHANGEABLE, description="ada: updates between adjustments of the probability"
    )

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
        if self.method == "ada" and self.target is None and self.probability == 0:
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
