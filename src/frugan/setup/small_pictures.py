"""Pictures that are too small, refused with the cures in the words of the command that was typed."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frugan.data.survey import SmallPictures
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe
from frugan.recipe.relatives import of_resolution, picture_resolutions


@contextmanager
def small_for_training(path: Path, resolution: int, recipe: Recipe) -> Iterator[None]:
    """Raise BadInput in place of SmallPictures, with the cures for `frugan train`.

    Args:
        path: where the pictures are.
        resolution: side that the recipe reads.
        recipe: recipe of the training.
    """
    try:
        yield
    except SmallPictures as error:
        prepared = f"frugan prepare {shlex.quote(str(path))} OUT --resolution {resolution}"
        cures = [
            f"{to}, add {field} to frugan train (or {prepared} {option}, and then --data OUT)"
            for to, field, option in (
                ("to leave them out", "data.allow_upscale=leave-out", "--leave-out-small"),
                ("to enlarge them", "data.allow_upscale=true", "--allow-upscale"),
                ("to keep them whole and put background beside or around them", "data.fit=pad", "--fit pad"),
            )
        ]
        if words := of_resolution(recipe, error.least):
            cures.append(f"to train at a resolution that they have, in a new run: {shlex.join(words)}")
        raise BadInput("\n  ".join([error.reason, *cures])) from error


@contextmanager
def small_for_preparing(source: Path, out: Path, resolution: int, resample: str) -> Iterator[None]:
    """Raise BadInput in place of SmallPictures, with the cures for `frugan prepare`."""
    try:
        yield
    except SmallPictures as error:
        words = ["frugan", "prepare", str(source), str(out)]
        words += [] if resample == "bilinear" else ["--resample", resample]
        here = [*words, "--resolution", str(resolution)]
        cures = [
            f"to leave them out: {shlex.join([*here, '--leave-out-small'])}",
            f"to enlarge them: {shlex.join([*here, '--allow-upscale'])}",
            f"to keep them whole and put background beside or around them: {shlex.join([*here, '--fit', 'pad'])}",
        ]
        if fitting := [side for side in picture_resolutions() if side <= error.least]:
            smaller = shlex.join([*words, "--resolution", str(fitting[-1])])
            cures.append(f"for recipes of a resolution that they have: {smaller}")
        raise BadInput("\n  ".join([error.reason, *cures])) from error
