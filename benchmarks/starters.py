"""Trains the weights that ship with the small recipes, on drawn pictures of many kinds that nobody owns.

    python benchmarks/starters.py train RECIPE RUN [key.sub=value ...] [--steps N] [--pictures N] [--without KIND,...]
        [--init RECIPE|FILE]
    python benchmarks/starters.py write RUN|FILE [--networks D] [--out FILE.safetensors]
    python benchmarks/starters.py traces RUN SET [--archives DIR] [--picture OUT.webp]

`train` draws so many pictures of each kind that settings may be chosen on (benchmarks/picture_sets/kinds.py), a class
for each kind, and trains the recipe on them; a run that was stopped goes on. `write` takes the averaged generator and
the discriminator of a run's newest checkpoint, rounds them to half precision, and writes them where `frugan train`
looks for them, beside the recipe; or some of these networks alone. The file names its recipe with the seed, the kinds
and the number of steps.

`traces` counts whether drawn pictures shine through in a run that began from these weights and was trained on a set:
how often the nearest of as many pictures of both is a drawn one, for generated pictures and for real ones that the run
has not seen. The picture shows those generated that are most like drawn ones, each above its nearest drawn and its
nearest real one.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from frugan.data.batches import random_order
from frugan.data.digits import as_tensors
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import Weights, networks_from, save
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from picture_sets import load_set, part_of
from picture_sets.kinds import KINDS
from picture_sets.known import drawn_pictures, picture_set, shapes
from quality import drawn

MIB = 2**20
MOST_MIB = 8
"""Size of a file that ships, at most."""
LICENCE = "apache-2.0"
GENERATED = 500
SHOWN = 10
LOOKED_AT_SIDE = 16
"""Pixels a side of the pictures whose nearest ones are looked for."""


def main() -> None:
    """Train, or write what was trained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    training = commands.add_parser("train")
    training.add_argument("recipe")
    training.add_argument("run", type=Path)
    training.add_argument("overrides", nargs="*")
    training.add_argument("--steps", type=int, default=9000)
    training.add_argument("--pictures", type=int, default=4000, help="of each kind")
    training.add_argument("--without", default="", help="kinds that are left out, to measure on them")
    training.add_argument("--init", help="weights of the same kinds to go on from; default: noise")
    tracing = commands.add_parser("traces")
    tracing.add_argument("run", type=Path)
    tracing.add_argument("set")
    tracing.add_argument("--archives", type=Path, help="folder with the packages that some sets are in")
    tracing.add_argument("--picture", type=Path)
    writing = commands.add_parser("write")
    writing.add_argument("run", type=Path)
    writing.add_argument("--networks", default="G,D", help="which are written")
    writing.add_argument("--out", type=Path, help="default: where it ships")
    given = parser.parse_args()
    if given.command == "write":
        write(given.run, given.networks.split(","), given.out)
        return
    if given.command == "traces":
        print(json.dumps(traces(given.run, given.set, given.archives, given.picture)))
        return
    without = given.without.split(",") if given.without else ()
    side = load_recipe(given.recipe).resolution
    pictures = picture_set(many_kinds(given.pictures, side, without), side)
    words = [f"networks.classes={len(pictures.class_names)}", f"training.duration={given.steps} steps"]
    recipe = load_recipe(given.recipe, [*words, *given.overrides])
    options = TrainingOptions(device="cpu")
    train(recipe, {"images": pictures}, given.run, init=given.init, options=options, say=print)


def many_kinds(count: int, side: int, without: tuple[str, ...] | list[str] = ()) -> Iterator[tuple[str, Image.Image]]:
    """Pictures with their kind's name: of each that is not held out, and of shapes."""
    for name, kind in KINDS.items():
        if not kind.held_out and name not in without:
            for _, picture in drawn_pictures(kind, count, side):
                yield name, picture
    if "shapes" not in without:
        for _, picture in shapes():
            yield "shapes", picture


def write(run: Path, names: Sequence[str], out: Path | None) -> None:
    """Write a run's averaged generator and its discriminator in half precision, or one of the two.

    Raises:
        SystemExit: the file would be too large to ship.
    """
    averaged = Weights.open(run)
    networks: dict[str, nn.Module] = {**networks_from(averaged.trained), **networks_from(averaged)}
    recipe = averaged.recipe
    name = f"biggan-small-{recipe.resolution}"
    path = out or Path(str(resources.files("frugan.recipes") / f"{name}.safetensors"))
    halves = {key: networks[key].half() for key in names}
    save(halves, recipe, path, averaged.class_names, step=averaged.step, licence=LICENCE)
    mib = path.stat().st_size / MIB
    if mib > MOST_MIB:
        raise SystemExit(f"{path}: {mib:.1f} MiB; what ships has at most {MOST_MIB}")
    print(f"{path}: {', '.join(halves)}, {averaged.step:,} steps, {len(averaged.class_names)} kinds, {mib:.2f} MiB")


def traces(run: Path, of: str, archives: Path | None, picture: Path | None) -> dict[str, float | str]:
    """Shares of generated and of unseen real pictures whose nearest one is drawn; where asked for, a picture."""
    averaged = Weights.open(run)
    side = averaged.recipe.resolution
    fit, unseen = load_set(of, side, archives)
    drawn_ones = picture_set(many_kinds(-(-len(fit) // len(KINDS)), side), side)
    some = part_of(drawn_ones, random_order("traces", len(drawn_ones))[: len(fit)])
    made, _ = drawn(averaged.path, fit, count=GENERATED)
    known = [as_tensors(pictures)[0] for pictures in (some, fit)]
    seen = {"generated": made, "real": as_tensors(unseen)[0][:GENERATED]}
    apart = {
        name: torch.stack([torch.cdist(_looks(pictures), _looks(others)).amin(1) for others in known])
        for name, pictures in seen.items()
    }  # each [2, N]: to drawn ones, and to those of the set
    if picture is not None:
        likest = (apart["generated"][0] - apart["generated"][1]).argsort()[:SHOWN]
        rows = [made[likest]]
        rows += [others[torch.cdist(_looks(made[likest]), _looks(others)).argmin(1)] for others in known]
        sheet = torch.stack(rows).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # [3 R, SHOWN R, C]
        Image.fromarray(((sheet + 1) * 127.5).round().byte().numpy()).save(picture)
    shares = {name: round(float((far[0] < far[1]).double().mean()), 3) for name, far in apart.items()}
    return {"run": run.name, "set": of, **shares}


def _looks(pictures: Tensor) -> Tensor:
    """Pictures as they are compared: [N, 3, R, R] -> [N, D], a few pixels a side."""
    return torch.nn.functional.adaptive_avg_pool2d(pictures, LOOKED_AT_SIDE).flatten(1)


if __name__ == "__main__":
    main()
