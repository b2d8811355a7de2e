"""Previews as SAEHD's users know them: what the networks make of given faces."""

import torch
from torch import Tensor

from frugan.contract.phase import Networks
from frugan.contract.samples import SheetRequest
from frugan.data.faces.needs import FaceTypeOption
from frugan.families.saehd import flows
from frugan.families.saehd.archi import Archi

COLUMNS = ("S", "SS", "D", "DD", "SD")
"""Source, its reconstruction, destination, its reconstruction, and the swap: the destination as the source's face."""


@torch.no_grad()
def sample(archi: Archi, face_type: FaceTypeOption, networks: Networks, request: SheetRequest) -> Tensor:
    """A row for each face: S, SS, D, DD, SD; or the same through the masks. [rows, 5, 3, R, R] in [-1, 1], RGB, host.

    Masked: S and D times their own masks, DD times its made mask, SD times the made mask that the merger uses: both
    sides' masks multiplied, and the swap's alone for whole heads.

    Raises:
        ValueError: the request holds no faces.
    """
    if not request.pictures:
        raise ValueError("a preview of faces needs pictures of src and dst")
    device = next(networks["encoder"].parameters()).device
    src, dst = request.pictures["src"], request.pictures["dst"]
    rows = []
    for first in range(0, len(src["target"]), request.micro_batch):
        here = slice(first, first + request.micro_batch)
        s, d = src["target"][here].to(device), dst["target"][here].to(device)
        vectors = flows.encode(networks, s)
        ss, _ = flows.decode(archi, networks, flows.code(archi, networks, vectors, "src"), "src")
        vectors = flows.encode(networks, d)
        dd, dd_mask = flows.decode(archi, networks, flows.code(archi, networks, vectors, "dst"), "dst")
        sd, sd_mask = flows.decode(archi, networks, flows.swap_code(archi, networks, vectors), "src")
        if request.masked:
            s_mask, d_mask = src["mask"][here].to(device), dst["mask"][here].to(device)
            merged = sd_mask if face_type == "head" else sd_mask * dd_mask
            s, d, dd, sd = s * s_mask, d * d_mask, dd * dd_mask, sd * merged
        rows.append(torch.stack([s, ss, d, dd, sd], 1).float().cpu())  # [n, 5, 3, R, R]
    return torch.cat(rows).flip(2).clamp(0, 1) * 2 - 1  # BGR to RGB
