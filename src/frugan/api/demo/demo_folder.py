"""Where a demo's run goes if nobody names a folder."""

from itertools import count
from pathlib import Path

from frugan.api.progress import Say
from frugan.engine.run_folder import RunFolder
from frugan.errors import BadInput
from frugan.folders import Folders
from frugan.recipe.differences import differences
from frugan.recipe.loading import load_recipe
from frugan.recipe.recipe import Recipe


def demo_folder(name: str, recipe_name: str, say: Say) -> Path:
    """The folder `name` among the runs, where a demo goes on; name-2, name-3 ... past runs of another recipe.

    So whoever has run the demo of another version gets today's, and keeps theirs.

    Args:
        recipe_name: of today's demo.
        say: is told of the runs that are left alone.
    """
    recipe, runs = load_recipe(recipe_name), Folders.from_environment().runs
    for number in count(1):
        folder = runs / (name if number == 1 else f"{name}-{number}")
        if not RunFolder(folder).exists or _goes_on(folder, recipe):
            break
        say(f"{folder} is a run of another recipe: left as it is")
    return folder


def _goes_on(folder: Path, recipe: Recipe) -> bool:
    """Whether a run can be resumed by a recipe."""
    try:
        before = load_recipe(str(folder))
    except BadInput:  # of a version whose fields are no longer known
        return False
    return before.family == recipe.family and all(each.changeable for each in differences(before, recipe).values())
