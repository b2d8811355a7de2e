"""How long a picture takes from a generator that is open, and a projection: python benchmarks/explore.py [RESULT.json]

Processor time of one thread, with untrained networks, whose arithmetic is that of trained ones. A picture is what the
page's tab Explore and `frugan.explore` do for one: a seed to its point, and the point drawn, median of several. Opening
is once for each generator. Of a projection a few steps are taken; told are the seconds before them, and those of one.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from frugan.recipe.loading import load_recipe
from frugan.sampling.explorer import explore
from frugan.sampling.projection import search
from frugan.setup.networks import save
from machine import describe_machine

RECIPES = (
    "biggan-small-64",
    "stylegan2-small-64",
    "r3gan-small-64",
    "r3gan-ffhq-64",
    "stylegan2-ffhq-256",
    "biggan-imagenet-256",
    "biggan-deep-imagenet-256",
    "r3gan-ffhq-256",
)
PICTURES = 4
STEPS = 6


def timed(name: str, precision: str, folder: Path) -> dict[str, float]:
    """Seconds for opening, a picture and a step of a projection."""
    recipe = load_recipe(name, [f"training.precision={precision}"])
    path = folder / "weights.safetensors"
    save({"G": recipe.kind.build(recipe.networks)["G"]}, recipe, path)
    began = time.process_time()
    with explore(path, device="cpu") as explorer:
        opened = time.process_time() - began
        classes = [0] if explorer.space.classes else None
        seconds = []
        for seed in range(PICTURES):
            began = time.process_time()
            picture = explorer.draw(explorer.seeds((seed,), classes))
            seconds.append(time.process_time() - began)
        figures = {"opening": opened, "picture": median(seconds[1:])}
        if precision == "fp32":
            steps = [time.process_time()]
            search(explorer, picture[0], steps=STEPS, progress=lambda *_: steps.append(time.process_time()))
            # of several points that are followed at first, one is left towards the end
            first, last = steps[2] - steps[1], steps[-1] - steps[-2]
            figures |= {"projection_begins": steps[1] - steps[0] - first, "first_step": first, "last_step": last}
    return {figure: round(value, 3) for figure, value in figures.items()}


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", nargs="?", type=Path)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    given = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, object] = {"machine": describe_machine()}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.recipes:
            figures[name] = {each: timed(name, each, Path(folder)) for each in ("fp32", "bf16")}
            print(name, json.dumps(figures[name]), flush=True)
            if given.result is not None:
                given.result.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
