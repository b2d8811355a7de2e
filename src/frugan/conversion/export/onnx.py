"""`export`: the generator of a run as an ONNX model, compared with torch's before it is given its name."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from frugan.contract.family import Drawing
from frugan.contract.layers import use_ops
from frugan.contract.ops import PLAIN
from frugan.conversion.export.graph import OPSET, Graph, Samples
from frugan.conversion.export.tracing import WholeMaps, translate
from frugan.engine.plan import Layout
from frugan.engine.state.working_weights import prepared
from frugan.errors import BadInput, checked, optional_module
from frugan.files import atomic_file, write_flushed
from frugan.progress import Say
from frugan.recipe.recipe import Recipe
from frugan.sampling.generators import networks_to_draw
from frugan.setup.networks import Weights
from frugan.wording import family_name

LATENTS, CLASSES, PSI, PICTURES = "z", "classes", "psi", "pictures"
"""Names of the inputs and of what is made."""
BOUNDS: Mapping[bool, float] = {False: 1e-4, True: 0.05}
"""Largest difference of any colour from torch's fp32 pictures, in a range of 2: of fp32 and of fp16."""
CHECKED = 4
"""Pictures at each psi that are compared."""
PSIS = (1.0, 0.5)

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Exported:
    """A model that was written."""

    path: Path  # the file, or the folder of a page
    bytes: int  # of it
    inputs: Mapping[str, str]  # what it takes: name -> shape and meaning
    difference: float  # the largest one from torch's fp32 pictures, in a range of 2
    mean_difference: float
    pictures: int  # that were compared

    @property
    def facts(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "path": str(self.path),
            "bytes": self.bytes,
            "inputs": dict(self.inputs),
            "difference": self.difference,
            "mean_difference": self.mean_difference,
            "pictures_compared": self.pictures,
        }

    @property
    def lines(self) -> list[str]:
        """Return the result as lines of text."""
        return [
            f"{self.path}: {self.bytes / 1e6:,.1f} MB, ONNX opset {OPSET}",
            *(f"  {name}: {meaning}" for name, meaning in self.inputs.items()),
            f"  {self.pictures} pictures by onnxruntime differ from torch's in fp32 by at most {self.difference:.2g}, "
            f"{self.mean_difference:.2g} on average, in a range of 2",
        ]


@checked
def export(source: str | Path | Weights, path: str | Path, *, half: bool = False, say: Say = print) -> Exported:
    """Write the averaged generator of a run as an ONNX model.

    Args:
        source: run, checkpoint or weights file, or what `Weights.open` made of one.
        path: a new file, whose name ends in .onnx.
        half: weights and computation in fp16, but for what the recipe's networks keep in fp32; inputs and pictures are
            fp32.
        say: is given a line for what was done.

    Raises:
        BadInput: no such weights, networks that draw nothing from latents, another ending, the file is there, onnx or
            onnxruntime is missing, or its pictures are not torch's: nothing is left then.
        OSError: the disk is full or the path cannot be written.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise BadInput(f"{path}: expected a name that ends in .onnx, or --web for a folder with a page")
    if path.exists():
        raise BadInput(f"{path}: is there already; choose another name, or delete it first")
    generator = Generator.open(source, say)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_model(generator, path, half=half, say=say)


@dataclass(frozen=True)
class Generator:
    """A network that draws from latents, with what is known of it."""

    weights: Weights
    network: nn.Module
    drawing: Drawing

    @classmethod
    def open(cls, source: str | Path | Weights, say: Say) -> "Generator":
        """The averaged one of a run, a checkpoint or a file.

        Raises:
            BadInput: no such weights, or none that draws from latents.
        """
        weights = Weights.open(source, say)
        recipe = weights.recipe
        networks = networks_to_draw(weights, torch.device("cpu"))
        drawing = recipe.kind.drawing(recipe.networks, networks)
        if drawing is None:
            raise BadInput(
                f"{weights.path}: {recipe.family} makes pictures of given ones and draws none from latents: it has no "
                "generator to export; for DeepFaceLive, `frugan convert RUN swap.dfm --to dfm` writes a face model"
            )
        say(f"weights: {weights.path}")
        return cls(weights, networks[drawing.network], drawing)

    @property
    def recipe(self) -> Recipe:
        """Recipe that the generator was trained by."""
        return self.weights.recipe

    @property
    def inputs(self) -> dict[str, str]:
        """Inputs of the model: name -> shape and meaning."""
        drawing = self.drawing
        length = "" if drawing.psi else "; shorter ones (times 0.5, say) give less variety: that is their truncation"
        found = {LATENTS: f"float32 [n, {drawing.latent_size}]: latents, normal numbers of deviation 1{length}"}
        if drawing.classes:
            found[CLASSES] = (
                f"float32 [n, {drawing.classes}]: share of each class, 1 for one of them and 0 for the others; shares "
                "that sum to 1 mix classes"
            )
        if drawing.psi:
            found[PSI] = "float32 []: truncation; 1: styles as trained, 0: the mean style, which is always the same"
        return found

    def about(self) -> dict[str, str]:
        """Notes that go with the model."""
        weights, recipe = self.weights, self.recipe
        notes = {
            "software": "frugan",
            "description": f"synthetic pictures, made by a {family_name(recipe.family)} network at step {weights.step}",
            "recipe": recipe.about.summary or family_name(recipe.family),
            "recipe_digest": weights.metadata.get("recipe_digest", ""),
            "step": str(weights.step),
            "licence": weights.licence,
            "class_names": json.dumps(list(weights.class_names), ensure_ascii=False) if weights.class_names else "",
            "inputs": json.dumps(self.inputs),
        }
        return {name: note for name, note in notes.items() if note}

    def test_inputs(self, psi: float) -> dict[str, Tensor]:
        """Latents of a fixed seed: of the first classes, and of a mixture of two."""
        drawing = self.drawing
        inputs = {LATENTS: torch.randn(CHECKED, drawing.latent_size, generator=torch.Generator().manual_seed(0))}
        if drawing.classes:
            shares = torch.eye(drawing.classes)[torch.arange(CHECKED) % drawing.classes]
            shares[-1] = shares[:2].mean(0)
            inputs[CLASSES] = shares
        if drawing.psi:
            inputs[PSI] = torch.tensor(psi)
        return inputs

    @torch.no_grad()
    def pictures(self, inputs: Mapping[str, Tensor]) -> Array:
        """Torch's, in fp32: [n, C, R, R]."""
        with prepared(self.network):
            return np.concatenate(
                [self.drawing.call(*one).numpy() for one in zip(*map(_one_by_one, inputs.values()), strict=False)]
            )


def _one_by_one(batch: Tensor) -> list[Tensor]:
    """An input for each of the samples."""
    return [batch] * CHECKED if batch.ndim == 0 else list(batch.split(1))


def write_model(generator: Generator, path: Path, *, half: bool, say: Say) -> Exported:
    """Translate, write beside `path`, compare, and only then give the file its name.

    Raises:
        BadInput: as `export`.
    """
    optional_module("onnxruntime", "checking an ONNX model needs onnxruntime", "export")  # before the work
    began = time.monotonic()
    content = model_of(generator, half=half)
    with atomic_file(path) as beside:
        write_flushed(beside, content)
        say(f"translated in {time.monotonic() - began:.1f} s; now its pictures are compared with torch's")
        largest, mean, count = compared(generator, beside)
        if not largest <= BOUNDS[half]:  # NaN is not either
            raise BadInput(
                f"{path}: onnxruntime's pictures differ from torch's by up to {largest:.3g}, in a range of 2; expected "
                f"at most {BOUNDS[half]:g}, so nothing was written; "
                + ("without --fp16 they will agree" if half else "please report it with the recipe")
            )
    return Exported(path, len(content), generator.inputs, largest, mean, count)


def model_of(generator: Generator, *, half: bool) -> bytes:
    """The ONNX model.

    Raises:
        BadInput: onnx is missing, or the network does what has no translation.
    """
    drawing = generator.drawing
    graph = Graph()
    sizes = {LATENTS: (Samples(1), drawing.latent_size), CLASSES: (Samples(1), drawing.classes), PSI: ()}
    for name, document in generator.inputs.items():
        graph.input(name, sizes[name], document)
    use_ops(generator.network, WholeMaps())
    try:
        with prepared(generator.network, Layout(torch.float16 if half else torch.float32)):
            value = translate(graph, generator.network, drawing.call)
    finally:
        use_ops(generator.network, PLAIN)
    document = f"float32 [n, {', '.join(map(str, value.size[1:]))}]: pictures in [-1, 1], channels first"
    return graph.finish(PICTURES, value, document, generator.about())


def compared(generator: Generator, path: Path) -> tuple[float, float, int]:
    """Run a model on latents as torch runs the network, several at once and one alone.

    Returns:
        Largest and mean difference of any colour, in a range of 2, and pictures that were compared.
    """
    differences = []
    run = session(path)
    for psi in PSIS if generator.drawing.psi else PSIS[:1]:
        inputs = generator.test_inputs(psi)
        arrays = {name: value.numpy() for name, value in inputs.items()}
        expected = generator.pictures(inputs)
        differences.append(np.abs(run(arrays) - expected))
        first = {name: value[:1] if value.ndim else value for name, value in arrays.items()}
        differences.append(np.abs(run(first) - expected[:1]))
    every = np.concatenate(differences)
    return float(every.max()), float(every.mean()), len(every)


def session(path: Path) -> Any:
    """inputs -> pictures [n, C, R, R], by onnxruntime on the CPU.

    Raises:
        BadInput: onnxruntime is missing.
    """
    runtime = optional_module("onnxruntime", "checking an ONNX model needs onnxruntime", "export")
    inference_session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda inputs: inference_session.run([PICTURES], dict(inputs))[0]
