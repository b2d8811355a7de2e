"""What to do with pictures that are smaller than wanted: commands that work as they stand."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frugan.api.plan.recipe_relatives import of_resolution, picture_resolutions
from frugan.data.survey import SmallPictures
from frugan.errors import BadInput
from frugan.recipe.recipe import Recipe


@contextmanager
def small_for_training(path: Path, resolution: int, recipe: Recipe) -> Iterator[None]:
    """Tell, in the words of `frugan train`, what to do with pictures at `path` that are too small for a recipe.

    Raises:
        BadInput: in place of SmallPictures.
    """
    try:
        yield
    except SmallPictures as error:
        prepared = f"frugan prepare {shlex.quote(str(path))} OUT --resolution {resolution} --allow-upscale"
        cures = [f"to enlarge them, add data.allow_upscale=true to frugan train (or {prepared}, and then --data OUT)"]
        if words := of_resolution(recipe, error.least):
            cures.append(f"to train at a resolution that they have, in a new run: {shlex.join(words)}")
        raise BadInput("\n  ".join([error.reason, *cures])) from error


@contextmanager
def small_for_preparing(source: Path, out: Path, resolution: int, resample: str) -> Iterator[None]:
    """Tell the same in the words of `frugan prepare`.

    Raises:
        BadInput: in place of SmallPictures.
    """
    try:
        yield
    except SmallPictures as error:
        words = ["frugan", "prepare", str(source), str(out)]
        words += [] if resample == "bilinear" else ["--resample", resample]
        cures = [f"to enlarge them: {shlex.join([*words, '--resolution', str(resolution), '--allow-upscale'])}"]
        if fitting := [side for side in picture_resolutions() if side <= error.least]:
            smaller = shlex.join([*words, "--resolution", str(fitting[-1])])
            cures.append(f"for recipes of a resolution that they have: {smaller}")
        raise BadInput("\n  ".join([error.reason, *cures])) from error
