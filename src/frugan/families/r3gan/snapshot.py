"""Snapshots of the R3GAN program."""

from collections.abc import Mapping
from typing import Literal

from frugan.contract.name_table import NameTable, Row
from frugan.families.r3gan.config import R3GANNetworks

# Names of tensors: stages are counted from 4 pixels up in the generator and from the picture on in the discriminator,
# and what a stage is made of from 0 in the order in which it runs.

BLOCK_PARTS: Mapping[str, str] = {
    "LinearLayer1.Layer.weight": "conv1.weight",
    "LinearLayer2.Layer.weight": "conv2.weight",
    "LinearLayer3.Layer.weight": "conv3.weight",
    "NonLinearity1.Bias": "bias1",
    "NonLinearity2.Bias": "bias2",
}
RESAMPLING_PARTS: Mapping[str, str] = {
    "Resampler.Kernel": "resample_filter",
    "LinearLayer.Layer.weight": "conv.weight",
}
FILTER = "resample_filter"


def name_table(networks: R3GANNetworks, network: Literal["G", "D"]) -> NameTable:
    """Names of a network's tensors in its state dict there, and here."""
    rows = [Row("Model.EmbeddingLayer.weight", "embed.weight")]
    if network == "G":
        rows += [
            Row("Model.MainLayers.0.Layers.0.Basis", "b4.basis"),
            Row("Model.MainLayers.0.Layers.0.LinearLayer.weight", "b4.linear.weight"),
            Row("Model.MainLayers.{stage}.Layers.0.{resampling}", "b{stage}.resample.{resampling}"),
            Row("Model.MainLayers.{stage}.Layers.{block}.{part}", "b{stage}.blocks.{block}.{part}"),
            Row("Model.AggregationLayer.Layer.weight", "torgb.weight"),
        ]
        sides, first = networks.sides, 1
    else:
        sides, first = networks.sides[::-1], 0
        rows.append(Row("Model.ExtractionLayer.Layer.weight", "fromrgb.weight"))
        for stage, (side, blocks) in enumerate(zip(sides, networks.stages("D", "blocks")[::-1], strict=True)):
            last = f"Model.MainLayers.{stage}.Layers.{blocks}."
            if side == 4:
                rows += [Row(f"{last}Basis.weight", "b4.basis.weight")]
                rows += [Row(f"{last}LinearLayer.weight", "b4.linear.weight")]
            else:
                rows.append(Row(f"{last}{{resampling}}", f"b{side}.resample.{{resampling}}"))
        rows.append(Row("Model.MainLayers.{stage}.Layers.{block}.{part}", "b{stage}.blocks.{block}.{part}"))
    most = max(networks.stages(network, "blocks"))
    holes: Mapping[str, Mapping[str, str]] = {
        "stage": {str(stage): str(side) for stage, side in enumerate(sides)},
        "block": {str(block + first): str(block) for block in range(most)},
        "part": BLOCK_PARTS,
        "resampling": RESAMPLING_PARTS,
    }
    return NameTable(rows, holes)
