"""Options of a SAEHD recipe, and the architecture string of the original with the sizes that follow from it.

Names and defaults are the original's.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from frugan.contract.settings import CHANGEABLE, Settings, restarts, setting
from frugan.errors import BadInput
from frugan.faces.data.face import ColourTransfer, FaceTypeOption

# The architecture string, such as "df-ud".

LETTERS = "udtc"

_FORM = re.compile(rf"^(df|liae)(?:-([{LETTERS}]+))?$")


@dataclass(frozen=True)
class Archi:
    """Which parts the networks are made of."""

    # "df": one code, a decoder for each side. "liae": two codes, one decoder.
    kind: Literal["df", "liae"]
    normalised: bool = False  # letter u, the encoder's output has unit root mean square
    doubled: bool = False  # letter d, the networks work on half the resolution and the heads double it
    deeper: bool = False  # letter t, one more level and residual blocks in the encoder
    cosine: bool = False  # letter c, activations are x·cos(x) instead of leaky ReLU

    @classmethod
    def parse(cls, text: str) -> "Archi":
        """Read "df", "liae-ud", "df-udtc" ...

        Raises:
            ValueError: another type or letter, or a letter twice.
        """
        match = _FORM.match(text)
        letters = (match.group(2) or "") if match else ""
        if not match or len(set(letters)) != len(letters):
            raise ValueError(
                f"archi {text!r}: expected df or liae, then perhaps a dash and some of the letters u, d, t, c, "
                "each once, such as df-ud or liae-udt"
            )
        kind: Literal["df", "liae"] = "df" if match.group(1) == "df" else "liae"
        return cls(kind, "u" in letters, "d" in letters, "t" in letters, "c" in letters)

    def __str__(self) -> str:
        letters = zip(LETTERS, (self.normalised, self.doubled, self.deeper, self.cosine), strict=True)
        text = "".join(letter for letter, has in letters if has)
        return f"{self.kind}-{text}" if text else self.kind

    @property
    def multiple(self) -> int:
        """Divisor that the resolution must have."""
        return 32 if self.doubled or self.deeper else 16

    def encoded_side(self, resolution: int) -> int:
        """Side of the encoder's last map in pixels."""
        return resolution // (32 if self.deeper else 16)

    def dense_side(self, resolution: int) -> int:
        """Side of the map that the second dense layer makes."""
        return resolution // (32 if self.doubled else 16)

    def code_side(self, resolution: int) -> int:
        """Side of the code that a decoder takes."""
        return self.dense_side(resolution) * (1 if self.deeper else 2)

    def nearest_resolution(self, resolution: int, least: int, most: int) -> int:
        """The valid resolution nearest to one that is not."""
        return min(most, max(least, round(resolution / self.multiple) * self.multiple))


# Which stack of 3x3 convolutions looks at patches of a wanted size.

MOST_LAYERS = 9


@dataclass(frozen=True)
class Stack:
    """Strides of a stack of 3x3 convolutions."""

    strides: tuple[int, ...]  # of each layer, 1 or 2

    @property
    def receptive_field(self) -> int:
        """Side of the patch that one value of the last map depends on, in pixels."""
        field, step = 3, 1
        for stride in self.strides[:-1]:
            step *= stride
            field += 2 * step
        return field

    @property
    def total_stride(self) -> int:
        """Pixels per value of the last map."""
        total = 1
        for stride in self.strides:
            total *= stride
        return total


@cache
def stacks() -> Mapping[int, Stack]:
    """The stack for each receptive field that 1 to 9 layers can have: fewest layers, then largest strides.

    The first layer has stride 2. Of equals the first one found stays, trying strides of 2 early before late.
    """
    best: dict[int, Stack] = {}
    for layers in range(1, MOST_LAYERS + 1):
        for bits in reversed(range(2 ** (layers - 1))):
            stack = Stack((2, *(2 if bits >> i & 1 else 1 for i in range(layers - 1))))
            known = best.get(stack.receptive_field)
            if known is None or (len(known.strides) == layers and sum(stack.strides) > sum(known.strides)):
                best[stack.receptive_field] = stack
    return MappingProxyType(best)


def stack_for(patch: int) -> Stack:
    """The stack whose receptive field is nearest to `patch` pixels; of two as near the smaller."""
    return _nearest(stacks(), patch)


@cache
def nearest_patch(patch: int, resolution: int, least: int, most: int) -> int:
    """The patch size from `least` to `most` nearest to `patch` whose stack divides the resolution; else `patch`."""
    known = stacks()
    fitting = (p for p in range(least, most + 1) if resolution % _nearest(known, p).total_stride == 0)
    return min(fitting, key=lambda p: (abs(p - patch), p), default=patch)


def _nearest(known: Mapping[int, Stack], patch: int) -> Stack:
    return known[min(known, key=lambda field: (abs(field - patch), field))]


LEAST_RESOLUTION, MOST_RESOLUTION = 64, 640
PATCHES = (3, 640)
"""Least and most of gan_patch_size, in pixels."""
EVEN = ("e_dims", "d_dims", "d_mask_dims")
"""Widths that the original makes even."""


def with_derived_defaults(values: Mapping[str, Any], resolution: int) -> dict[str, Any]:
    """Fill in two defaults that follow from other fields, as in the original.

    Args:
        values: fields of a section `networks`.
        resolution: where they name none.
    """
    filled = dict(values)
    d_dims, resolution = filled.get("d_dims", 64), filled.get("resolution", resolution)
    if "d_mask_dims" not in filled and isinstance(d_dims, int):
        third = d_dims // 3
        filled["d_mask_dims"] = max(16, third + third % 2)
    if "gan_patch_size" not in filled and isinstance(resolution, int):
        filled["gan_patch_size"] = nearest_patch(resolution // 8, resolution, *PATCHES)
    return filled


def check_widths(widths: Mapping[str, int]) -> None:
    """Refuse odd widths.

    Raises:
        ValueError: one is odd.
    """
    for name, value in widths.items():
        if value % 2:
            raise ValueError(f"{name} {value}: expected an even number; the nearest is {value + 1}")


def check_patch(patch: int, resolution: int) -> None:
    """Refuse a patch discriminator whose maps would not fit together.

    Raises:
        ValueError: its strides do not divide the resolution.
    """
    stack = stack_for(patch)
    if resolution % stack.total_stride:
        raise ValueError(
            f"gan_patch_size {patch}: its layers halve the picture down to 1/{stack.total_stride}, which does not "
            f"divide {resolution} pixels; the nearest that does is {nearest_patch(patch, resolution, *PATCHES)}"
        )


class SAEHDNetworks(Settings):
    """Encoder, bottleneck, decoders and the two discriminators."""

    archi: str = setting(
        "liae-ud",
        "df or liae, then letters: u (codes of unit size), d (twice the resolution for the same memory), t "
        "(deeper), c (cosine activations)",
    )
    resolution: int = setting(128, "side of the faces; 64 to 640, a multiple of 16, of 32 with letters d, t")
    face_type: FaceTypeOption = setting(
        "f", "how much of the head a face shows: h (half), mf, f (full), wf (whole face) or head"
    )
    ae_dims: int = setting(256, "width of the bottleneck", ge=32, le=1024)
    e_dims: int = setting(64, "channels of the encoder", ge=16, le=256)
    d_dims: int = setting(64, "channels of the decoder", ge=16, le=256)
    d_mask_dims: int = Field(ge=16, le=256, description="channels of the mask decoder; default: a third of d_dims")
    gan_patch_size: int = Field(
        ge=3,
        le=640,
        json_schema_extra=restarts("patch_discriminator"),
        description="patch size of the GAN's discriminator, in pixels; default: about an eighth of the resolution",
    )
    gan_dims: int = setting(16, "channels of the patch discriminator", restarts("patch_discriminator"), ge=4, le=512)

    @model_validator(mode="before")
    @classmethod
    def _derived_defaults(cls, values: Any) -> Any:
        return with_derived_defaults(values, 128) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        archi = self.letters
        nearest = archi.nearest_resolution(self.resolution, LEAST_RESOLUTION, MOST_RESOLUTION)
        if nearest != self.resolution:
            raise ValueError(
                f"resolution {self.resolution}: {self.archi} is defined for multiples of {archi.multiple} from "
                f"{LEAST_RESOLUTION} to {MOST_RESOLUTION}; the nearest is {nearest}"
            )
        check_widths({name: getattr(self, name) for name in EVEN})
        check_patch(self.gan_patch_size, self.resolution)
        return self

    @property
    def letters(self) -> Archi:
        """Parsed architecture."""
        return Archi.parse(self.archi)


PRETRAINING: Mapping[str, Any] = MappingProxyType(
    {
        "random_warp": False,
        "random_src_flip": True,
        "random_dst_flip": True,
        "random_hsv_power": 0.0,
        "ct_mode": "none",
        "gan_power": 0.0,
        "face_style_power": 0.0,
        "bg_style_power": 0.0,
        "uniform_yaw": True,
    }
)
"""Options in force while pretraining lasts, whatever is set."""
PRETRAINING_ENDS = "objective.pretrain=false"
"""Word of the command line by which a resumption ends it."""


class SAEHDObjective(Settings):
    """Losses and sampling of SAEHD training; all may change in mid-run."""

    masked_training: bool = setting(True, "learn only what is inside the mask (wf and head)", CHANGEABLE)
    eyes_mouth_prio: bool = setting(False, "give eyes and mouth more weight, against a wandering gaze", CHANGEABLE)
    uniform_yaw: bool = setting(
        False, "show all head angles equally often (for sets with few profile faces)", CHANGEABLE
    )
    blur_out_mask: bool = setting(False, "blur just outside the mask", CHANGEABLE)
    random_warp: bool = setting(True, "warp the input at random; switch off towards the end, for sharpness", CHANGEABLE)
    random_src_flip: bool = setting(False, "mirror source faces at random", CHANGEABLE)
    random_dst_flip: bool = setting(True, "mirror destination faces at random", CHANGEABLE)
    random_hsv_power: float = setting(
        0.0, "how much to vary the source's hue, saturation and value at random", CHANGEABLE, ge=0, le=0.3
    )
    ct_mode: ColourTransfer = setting("none", "give source faces the colours of destination faces", CHANGEABLE)
    true_face_power: float = setting(
        0.0, "df only: makes the swap look more like the source; try 0.01", CHANGEABLE, ge=0, le=1
    )
    face_style_power: float = setting(
        0.0, "how strongly to learn the colours of the destination's face; try 1", CHANGEABLE, ge=0, le=100
    )
    bg_style_power: float = setting(
        0.0, "how strongly to learn the colours around the destination's face; try 2", CHANGEABLE, ge=0, le=100
    )
    gan_power: float = setting(
        0.0, "strength of the GAN, for fine detail; only at the very end; try 0.1", CHANGEABLE, ge=0, le=5
    )
    mixed_face_types: bool = setting(
        False, "allow source and destination of different face types; each face is cropped to the recipe's", CHANGEABLE
    )
    pretrain: bool = setting(
        False,
        "teach the networks faces of many people first (data.pretrain); false on a resumption ends it: steps count "
        "from 0 again, with a fresh bottleneck",
        CHANGEABLE,
    )

    @field_validator("ct_mode", mode="before")
    @classmethod
    def _none_is_a_mode(cls, value: Any) -> Any:
        """Recipes say nothing by "none", which is a mode here."""
        return "none" if value is None else value

    @property
    def effective(self) -> "SAEHDObjective":
        """Options in force: pretraining sets several aside, as in the original."""
        return self.model_copy(update=PRETRAINING) if self.pretrain else self


# The original's options as they are typed there.

DROPOUT, PERIOD, CLIP_NORM = 0.3, 500, 1.0
"""Settings of the optimizers where the original's lr_dropout and clipgrad are on."""
BACKUPS_KEPT = 24
"""The newest, as the original does."""
_YES_OR_NO = MappingProxyType(
    {"y": True, "yes": True, "true": True, "1": True} | dict.fromkeys(("n", "no", "false", "0"), False)
)
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "models_opt_on_gpu": "where the optimizer's state is follows from the memory; --use optimizer-on-host puts it "
        "into the computer's, --avoid optimizer-on-host keeps it on the card",
        "write_preview_history": "previews are always kept",
        "learn_mask": "masks are always learned here",
    }
)
"""Options that nothing stands for, as yes or no -> why; learn_mask is one of older versions."""


def option_words(
    name: str,
    value: str,
    networks: type[Settings] = SAEHDNetworks,
    objective: type[Settings] = SAEHDObjective,
) -> list[str] | None:
    """Words of the command line for an option of the original, none if nothing stands for it here; None: it has no
    such option.

    Args:
        networks, objective: types of a recipe's sections, whose fields are options too.

    Raises:
        BadInput: the option has no such value.
    """
    if name in LEFT_OUT:
        _is_on(value)
        return []
    if name in _OPTIONS:
        return _OPTIONS[name](value)
    for section, of in (("networks", networks), ("objective", objective)):
        if (field := of.model_fields.get(name)) is not None:
            return [f"{section}.{name}={str(_is_on(value)).lower() if field.annotation is bool else value}"]
    return None


def _is_on(value: str) -> bool:
    if value.lower() not in _YES_OR_NO:
        raise BadInput(f"{value}: expected y or n")
    return _YES_OR_NO[value.lower()]


def _or_none(value: str, of: str, unit: str, none: str) -> list[str]:
    """Return the word for a number of the original, whose 0 is none."""
    if not (value.isascii() and value.isdigit() and len(value) < 13):
        raise BadInput(f"{value}: expected a whole number; 0: none")
    return [f"{of}={int(value)}{unit}" if int(value) else f"{of}={none}"]


def _learning_rate_dropout(value: str) -> list[str]:
    is_on = value.lower() == "cpu" or _is_on(value)
    dropout, period = (DROPOUT, PERIOD) if is_on else ("none", "none")
    return [f"optimizers.default.dropout={dropout}", f"optimizers.default.period={period}"]


_OPTIONS: Mapping[str, Callable[[str], list[str]]] = MappingProxyType(
    {
        "batch_size": lambda value: [f"training.batch={value}"],
        "target_iter": lambda value: _or_none(value, "training.duration", " steps", "endless"),
        "autobackup_hour": lambda value: [
            *_or_none(value, "saving.backup_every", "h", "none"),
            f"saving.keep_backups={BACKUPS_KEPT}",
        ],
        "adabelief": lambda value: [f"optimizers.default.kind={'adabelief' if _is_on(value) else 'rmsprop'}"],
        "clipgrad": lambda value: [f"optimizers.default.clip_norm={CLIP_NORM if _is_on(value) else 'none'}"],
        "lr_dropout": _learning_rate_dropout,
    }
)
"""Option -> what its value is here, where it is no field of the same name."""
OPTION_NAMES: Mapping[str, str] = MappingProxyType(
    {name: name for name in (*_OPTIONS, *LEFT_OUT)}
    | dict.fromkeys(("iterations", "iters", "iter"), "target_iter")
    | {"bs": "batch_size"}
)
"""Word for one of these options -> its name; fields of the same name are found without."""
