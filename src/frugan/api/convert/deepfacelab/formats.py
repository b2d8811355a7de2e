"""DeepFaceLab's models and DeepFaceLive's files, as `convert` asks for them."""

from frugan.api.convert.deepfacelab.export_dfm import to_dfm
from frugan.api.convert.deepfacelab.export_leras import to_leras
from frugan.api.convert.deepfacelab.import_leras import from_leras
from frugan.contract.formats import Conversion, Converted
from frugan.errors import BadInput


class Leras:
    """DeepFaceLab's own: weights, optimizer state, options, iteration and loss history, in both directions."""

    program = "a model of DeepFaceLab's"
    reads = frozenset({"overrides", "name"})
    writes = frozenset({"name", "data", "replace"})

    def read(self, asked: Conversion) -> Converted:
        """Make a run of a model; see `from_leras`."""
        made = from_leras(asked.source, asked.out, name=asked.name, overrides=asked.overrides, say=asked.say)
        facts = {"run": str(made.run), "recipe": str(made.recipe), "name": made.name, "iteration": made.step}
        return Converted(
            facts,
            [
                f"{made.run}: model {made.name!r} at iteration {made.step:,}",
                f"Next: frugan train {made.recipe} --data WORKSPACE --out {made.run}",
            ],
        )

    def write(self, asked: Conversion) -> Converted:
        """Write a run as a model; see `to_leras`."""
        model = to_leras(
            asked.source, asked.out, name=asked.name, replace=asked.replace, data=asked.data, say=asked.say
        )
        replaced = str(model.backup) if model.backup else None
        facts = {"folder": str(model.folder), "name": model.name, "iteration": model.iteration, "replaced": replaced}
        lines = [f"{model.folder}: model {model.name!r} at iteration {model.iteration:,}"]
        return Converted(facts, lines + ([f"The files that it replaced: {replaced}"] if replaced else []))


class Dfm:
    """DeepFaceLive's: one ONNX file that swaps faces; there is no way back."""

    program = "a file for DeepFaceLive"
    reads = None
    writes = frozenset({"data", "replace", "half"})

    def read(self, asked: Conversion) -> Converted:
        """It holds no training state, and cannot be gone on with.

        Raises:
            BadInput: always.
        """
        raise BadInput(f"{asked.source}: a DFM file cannot be read back")

    def write(self, asked: Conversion) -> Converted:
        """Write a run as a DFM file; see `to_dfm`."""
        dfm = to_dfm(asked.source, asked.out, half=asked.half, replace=asked.replace, data=asked.data, say=asked.say)
        facts = {"file": str(asked.out), "iteration": dfm.step, "difference": dfm.difference}
        away = f"at most {dfm.difference:.1g} of 1 away from the networks' pictures"
        return Converted(facts, [f"{asked.out}: iteration {dfm.step:,}; {away}"])
