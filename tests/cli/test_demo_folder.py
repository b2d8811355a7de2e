"""A demo goes on in its folder, and leaves runs of other recipes alone."""

from pathlib import Path

from frugan.cli.demo import demo_folder
from frugan.engine.run.run_folder import RunFolder
from frugan.engine.run.tensor_files import write_json
from frugan.files import Folders
from frugan.recipe.loading import load_recipe

RECIPE = "biggan-digits-32"


def _begun(name: str, *overrides: str) -> Path:
    run = RunFolder(Folders.from_environment().runs / name)
    run.checkpoints.mkdir(parents=True)
    write_json(run.recipe, load_recipe(RECIPE, list(overrides)).model_dump(mode="json"))
    return run.path


def test_an_interrupted_demo_goes_on_also_with_another_length(said: list[str]) -> None:
    assert demo_folder("demo", RECIPE, said.append) == Folders.from_environment().runs / "demo"
    begun = _begun("demo", "training.duration=7 steps")
    assert demo_folder("demo", RECIPE, said.append) == begun
    assert said == []


def test_runs_of_other_recipes_are_left_alone(said: list[str]) -> None:
    """Of an earlier version, of one whose fields are not known any more, and of another family."""
    others = [_begun("demo", "training.batch=32", "training.normalisation_batch=32"), _begun("demo-2")]
    write_json(RunFolder(others[1]).recipe, {"family": "biggan", "unheard_of": 1})
    face = RunFolder(_begun("demo-3"))
    write_json(face.recipe, load_recipe("saehd-demo-64").model_dump(mode="json"))
    assert demo_folder("demo", RECIPE, said.append).name == "demo-4"
    assert said == [f"{each} is a run of another recipe: left as it is" for each in (*others, face.path)]
