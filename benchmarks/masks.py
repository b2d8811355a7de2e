"""Trains XSeg on twenty labelled drawn faces and measures its masks on others, for some seeds.

    python benchmarks/masks.py RUNS RESULT.json [--seeds 3] [--choosing] [--applied] [KEY=VALUE]...
    python benchmarks/masks.py RUNS RESULT.json --places

`xseg-small`, on one thread, learns from the first ten faces of each of the two drawn people that ship, whose labels are
the outlines of their landmarks' hulls as polygons; it is judged on their other 220 faces by intersection over union
with these hulls, in the network's square at the pictures' 128 pixels. What the recipe has was chosen on faces of other
moments, which `--choosing` draws in their place. `--applied` takes the same hulls as applied masks, of 256 pixels as
all of them. RUNS is a folder for runs and data; a run that is there already is not trained again.

`--places` trains nothing: it measures how far such masks, as samples of networks for several face types have them, meet
what polygons of the pictures' own size fill, mended and as the original takes them.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from frugan.engine.state.working_weights import prepared
from frugan.faces.data.dfl_jpeg import write_face_jpeg
from frugan.faces.data.drawn_faces import LABELLED, outline, true_mask, write_drawn_faces
from frugan.faces.data.face import Face, FaceType
from frugan.faces.data.faceset import open_faceset
from frugan.faces.data.relabel import MASK_SIDE, encoded_mask
from frugan.faces.xseg.samples import aligned, read_labelled
from frugan.progress import quiet
from frugan.recipe.loading import load_recipe
from frugan.setup.networks import Weights, networks_from
from frugan.training.run import TrainingOptions
from frugan.training.training import train
from machine import describe_machine
from tools.draw_faces.drawn_faceset import draw_faceset

CHOOSING_SEED, CHOOSING_FACES = 7, 40
SIDES = ("data_src/aligned", "data_dst/aligned")


def main() -> None:
    """Train and measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--choosing", action="store_true")
    parser.add_argument("--applied", action="store_true")
    parser.add_argument("--places", action="store_true")
    parser.add_argument("fields", nargs="*")
    arguments = parser.parse_intermixed_args()
    if arguments.places:
        labelled, _ = split(arguments.runs, choosing=False, applied=True)
        arguments.result.write_text(json.dumps(places(labelled), indent=1) + "\n", "utf-8")
        print(arguments.result.read_text("utf-8"))
        return
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    labelled, judged = split(arguments.runs, choosing=arguments.choosing, applied=arguments.applied)
    kind = ["applied"] if arguments.applied else []
    entries: list[dict[str, Any]] = []
    for seed in range(arguments.seeds):
        run = arguments.runs / "-".join(
            [f"seed-{seed}", *kind, *(field.replace(" ", "") for field in arguments.fields)]
        )
        began, cpu = time.perf_counter(), time.process_time()
        recipe = load_recipe("xseg-small", [*arguments.fields, f"training.seed={seed}"])
        train(recipe, labelled, run, options=TrainingOptions(device="cpu"), say=quiet)
        took = {"seconds": round(time.perf_counter() - began), "cpu_seconds": round(time.process_time() - cpu)}
        measured = scores(run, judged)
        entries.append(
            {"seed": seed, "fields": [*kind, *arguments.fields], **measured, **took, "machine": describe_machine()}
        )
        arguments.result.write_text("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n", "utf-8")
        print(json.dumps(entries[-1]), flush=True)


def split(runs: Path, *, choosing: bool, applied: bool) -> tuple[Path, Path]:
    """Folders of labelled faces and of those to judge by, which are made if they are not there."""
    folder = runs / (("choosing" if choosing else "judging") + ("-applied" if applied else ""))
    labelled, judged = folder / "labelled", folder / "judged"
    if judged.is_dir():
        return labelled, judged
    workspace = folder / "workspace"
    if choosing:
        for person, side in enumerate(SIDES):
            draw_faceset(workspace / side, person, CHOOSING_FACES, seed=CHOOSING_SEED, size=128)
    else:
        write_drawn_faces(workspace)
    for part in (labelled, judged):
        part.mkdir(parents=True)
    for person, side in enumerate(SIDES):
        faceset = open_faceset(workspace / side)
        for index, face in enumerate(faceset.faces):
            is_labelled = index < LABELLED
            jpeg = faceset.encoded(index)
            content = write_face_jpeg(jpeg, with_label(face, applied=applied)) if is_labelled else jpeg
            ((labelled if is_labelled else judged) / f"{person}-{face.name}").write_bytes(content)
    return labelled, judged


def with_label(face: Face, *, applied: bool) -> Face:
    """The face with its outline as a polygon, or with the hull as an applied mask."""
    if applied:
        byte = true_mask(face) * np.uint8(255)
        whole = np.asarray(cv2.resize(byte, (MASK_SIDE, MASK_SIDE), interpolation=cv2.INTER_NEAREST), np.uint8)
        return replace(face, polygons=(), xseg_mask=encoded_mask(whole))
    return replace(face, polygons=(outline(face),))


def places(labelled: Path) -> dict[str, dict[str, float]]:
    """Face type -> mean intersection over union with the right label, mended and as the original."""
    faceset, found = open_faceset(labelled), dict[str, dict[str, float]]()
    for option in ("h", "f", "head"):
        face_type, met = FaceType.from_option(option), dict[str, list[float]](mended=[], original=[])
        for index, face in enumerate(faceset.faces):
            picture, by_hand = faceset.picture(index), with_label(face, applied=False)
            right = read_labelled(by_hand, picture, face_type, MASK_SIDE, by_polygons=True).mask >= 0.5
            for name, of in met.items():
                is_original = name == "original"
                label = read_labelled(face, picture, face_type, MASK_SIDE, by_polygons=False, as_original=is_original)
                mask = label.mask >= 0.5
                of.append(float((mask & right).sum() / (mask | right).sum()))
        found[option] = {name: round(float(np.mean(of)), 3) for name, of in met.items()}
    return found


@torch.no_grad()
def scores(run: Path, judged: Path) -> dict[str, Any]:
    """Mean and least intersection over union of masks at 0.5."""
    weights = Weights.open(run)
    network, faceset, found = networks_from(weights)["xseg"], open_faceset(judged), list[float]()
    sizes: Any = weights.recipe.networks
    side, face_type = sizes.resolution, FaceType.from_option(sizes.face_type)
    with prepared(torch.nn.ModuleDict({"xseg": network})):
        for index, face in enumerate(faceset.faces):
            unit = faceset.picture(index).astype(np.float32) / np.float32(255)
            picture = torch.from_numpy(aligned(face, unit, face_type, side)).permute(2, 0, 1)
            probability = torch.sigmoid(network(picture[None].contiguous()))[0, 0].numpy()
            mask = cv2.resize(probability, (face.width, face.height)) >= 0.5
            truth = aligned(face, true_mask(face).astype(np.float32), face_type, face.width) >= 0.5
            found.append(float((mask & truth).sum() / (mask | truth).sum()))
    return {
        "step": weights.step,
        "faces": len(found),
        "mean_iou": round(float(np.mean(found)), 4),
        "least_iou": round(min(found), 4),
    }


if __name__ == "__main__":
    main()
