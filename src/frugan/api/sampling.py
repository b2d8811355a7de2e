"""`sample`: sheets and interpolations from a run or a weights file."""

from dataclasses import replace
from pathlib import Path

import torch

from frugan.api.devices import choose_device
from frugan.api.networks import networks_from, read_weights, weights_file
from frugan.api.pictures import Say
from frugan.engine.plan import Plan
from frugan.engine.precision import accumulate_in_fp32, resolve_precision
from frugan.engine.working_weights import working_weights
from frugan.errors import BadInput
from frugan.phase import SheetRequest
from frugan.recipe import Recipe
from frugan.report.sheets import write_sheet


def check_request(request: SheetRequest, recipe: Recipe) -> None:
    """Refuse what cannot be drawn.

    Raises:
        BadInput: a class out of range, no columns, a negative truncation.
    """
    counts = [need.classes for need in recipe.kind.sources(recipe.networks).values() if need.classes is not None]
    known = max(counts, default=1)
    for chosen in request.classes or ():
        if not 0 <= chosen < known:
            raise BadInput(f"--classes {chosen}: expected 0 to {known - 1}; this network has {known} classes")
    if request.columns < 1 or request.rows < 1 or request.micro_batch < 1:
        raise BadInput("columns, rows and micro-batch: expected at least 1")
    if request.truncation <= 0:
        raise BadInput(f"--truncation {request.truncation}: expected a number above 0; 1 is as trained")
    if request.interpolate is not None and request.columns < 2:
        raise BadInput(f"--columns {request.columns}: an interpolation has at least its 2 ends")


def sample(
    source: str | Path, out: str | Path, request: SheetRequest | None = None, *, device: str = "auto", say: Say = print
) -> list[Path]:
    """Write sheets of samples from averaged networks, in the recipe's precision.

    Args:
        source: run, checkpoint or weights file.
        out: folder for the pictures.
        request: what to draw; None: the family's own sheets.
        device: "auto", "cpu", "cuda" or "cuda:1".
        say: is given a line for every automatic choice.

    Returns:
        Paths of the sheets.

    Raises:
        BadInput: no such weights, or a request that cannot be drawn.
    """
    weights = read_weights(weights_file(Path(source)))
    recipe = weights.recipe
    if request is not None:
        check_request(request, recipe)
    where, why = choose_device(device)
    say(f"weights: {weights.path}")
    say(f"device: {where} ({why})")
    precision = resolve_precision(recipe.training.precision, where)
    if precision.warning:
        say(f"precision {precision.name}: {precision.warning}")
    accumulate_in_fp32()
    networks = networks_from(weights, where)
    missing = set(recipe.kind.averaged()) - set(networks)
    if missing:
        raise BadInput(f"{weights.path}: holds no {', '.join(sorted(missing))}, which draws the samples")
    for network in networks.values():
        network.eval()
    micro_batch = request.micro_batch if request is not None else SheetRequest().micro_batch
    layout = Plan(micro_batch, precision).layout(where)
    requests = {"samples": request} if request is not None else dict(recipe.kind.snapshots(recipe.networks))
    if request is not None and request.interpolate is not None:
        requests = {f"interpolation-{request.interpolate}": request}
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with torch.no_grad(), working_weights(networks, dict.fromkeys(networks, layout), (), None):
        for name, asked in requests.items():
            sheet = recipe.kind.sample(recipe.networks, networks, replace(asked, micro_batch=micro_batch))
            paths.append(folder / f"{name}.png")
            write_sheet(sheet, paths[-1])
    return paths
