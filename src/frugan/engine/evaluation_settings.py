"""When and how a training is scored while it goes on."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from frugan.contract.settings import CHANGEABLE
from frugan.engine.progress import Interval


class EvaluationSettings(BaseModel):
    """Scores while training goes on; they disturb none of its random streams."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: Interval | None = Field(
        None, json_schema_extra=CHANGEABLE, description="time between scores taken during training; none: take none"
    )
    metrics: tuple[Literal["fid", "is", "kid", "pr", "intra-fid"], ...] = Field(
        ("fid",), min_length=1, json_schema_extra=CHANGEABLE, description="scores to take"
    )
    samples: int = Field(10_000, ge=10, json_schema_extra=CHANGEABLE, description="pictures to generate for each score")
    network: str = Field(
        "inception",
        json_schema_extra=CHANGEABLE,
        description="feature network: inception, digits, a TorchScript file, or module:callable",
    )
    statistics: Literal["running", "standing", "batch"] = Field(
        "running", json_schema_extra=CHANGEABLE, description="statistics that batch normalisation uses for scores"
    )
    standing_batches: int = Field(
        16, ge=1, json_schema_extra=CHANGEABLE, description="batches to measure standing statistics over"
    )
    standing_size: int | None = Field(
        None,
        ge=1,
        json_schema_extra=CHANGEABLE,
        description="samples in each of these batches; none: training.normalisation_batch",
    )
    truncation: float = Field(
        1.0, gt=0, le=100, json_schema_extra=CHANGEABLE, description="standard deviation of the latents for scores"
    )
    best_by: Literal["fid", "is_mean", "kid_mean", "precision", "recall", "f_score", "intra_fid"] = Field(
        "fid", json_schema_extra=CHANGEABLE, description="score that decides which checkpoints are best"
    )
    keep_best: int = Field(
        2,
        ge=0,
        json_schema_extra=CHANGEABLE,
        description="how many of the best checkpoints to keep, besides the newest",
    )

    @model_validator(mode="after")
    def _measures_what_it_keeps_by(self) -> Self:
        made_by = {"is_mean": "is", "kid_mean": "kid", "intra_fid": "intra-fid"}
        metric = made_by.get(self.best_by, "fid" if self.best_by == "fid" else "pr")
        if self.every is not None and self.keep_best and metric not in self.metrics:
            raise ValueError(f"best_by = {self.best_by}: needs {metric} among metrics, which are {list(self.metrics)}")
        usual = type(self).model_fields["standing_batches"].default
        if self.statistics != "standing" and (self.standing_size is not None or self.standing_batches != usual):
            raise ValueError("standing_batches and standing_size go with statistics = 'standing', and only with it")
        return self
