"""Lines about pictures beside a recipe: what they are, and which are too small for it."""

from collections.abc import Iterator
from pathlib import Path

from frugan.data.facts import PictureFacts, look_at
from frugan.data.formats.decoding import background
from frugan.data.formats.source import local_path
from frugan.data.picture_needs import PictureNeeds
from frugan.data.pixel_lines import colour_name
from frugan.data.survey import Fitting
from frugan.errors import BadInput
from frugan.progress import Progress
from frugan.recipe.recipe import Recipe
from frugan.wording import count


def lines_beside(recipe: Recipe, data: str | Path, progress: Progress | None = None) -> tuple[str, ...]:
    """Describe pictures for a recipe that somebody has chosen.

    Args:
        data: path of the pictures.
        progress: gets (headers read, pictures).

    Raises:
        BadInput: as `look_at`; or the recipe takes several sets.
    """
    need = next(iter(recipe.sources.values()))
    if len(recipe.sources) != 1 or not isinstance(need, PictureNeeds):
        if not Path(data).exists():
            raise BadInput(f"--data {data}: does not exist; check the path")
        raise BadInput(
            f"--data {data}: plans look at one set of pictures, and this recipe takes {' and '.join(recipe.sources)}: "
            "leave --data out, the plan is the same; training says what it leaves out of them"
        )
    facts = look_at(local_path(data), progress, background(recipe.data.background), recipe.data.range)
    lines = [*facts.left_out, f"pictures: {facts}", *facts.duplicate_lines, *enlarged_lines(facts, recipe)]
    if need.channels == 3 and facts.grey and "channels" in type(recipe.networks).model_fields:
        lines.append("grey: networks.channels=1 draws grey pictures, where three channels may tint them")
    classes = len(facts.class_counts)
    if need.classes is not None and classes not in (0, need.classes):
        lines.append(f"classes: {classes} of the pictures, {need.classes} of the recipe: networks.classes={classes}")
    return tuple(lines)


def enlarged_lines(facts: PictureFacts, recipe: Recipe) -> Iterator[str]:
    """Say how many pictures are enlarged, padded all around or left out, if any are, and which are the smallest."""
    data, side = recipe.data, recipe.resolution
    small = facts.smaller_than(side, whole=data.fit == "pad")
    smallest = facts.smallest(Fitting(side, fit=data.fit))
    of_them = f"{small:,} of {count(facts.pictures, 'picture')}, smaller than {side} pixels"
    which = f"; the smallest: {smallest}" if smallest else ""
    leave_out = "to leave them out: data.allow_upscale=leave-out, or a smaller networks.resolution"
    if small and data.allow_upscale == "leave-out":
        yield f"left out: {of_them}{which}"
    elif small and data.allow_upscale:
        yield f"enlarged: {of_them}: expect them to be soft{which}; {leave_out}"
    elif small and data.fit == "pad":
        colour = colour_name(background(data.background))
        yield f"padded: {of_them}, with {colour} all around{which}; {leave_out}"
    elif small and facts.few_smaller_than(side):  # more are refused
        yield f"left out: {of_them}{which}; to enlarge them: data.allow_upscale=true"
