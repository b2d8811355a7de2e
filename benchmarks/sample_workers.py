"""Measures what processes that make face samples take, by their number and by the number of faces.

    python benchmarks/sample_workers.py RESULT.json [--faces 120 50000] [--workers 1 2 4]

Memory is that of the processes by proportional share (Pss of Linux), in which pages that several of them hold count as
often as they are there; "trainer" is this process, which holds the faces too. Large sets are the drawn faces over and
over, each with metadata of its own.
"""

import argparse
import json
import os
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MIB = 1 << 20


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--faces", type=int, nargs="+", default=[120, 50_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    entries: list[dict[str, Any]] = []
    for faces in arguments.faces:
        for workers in arguments.workers:
            entries.append(measured(faces, workers))
            arguments.result.write_text("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n", "utf-8")
            print(json.dumps(entries[-1]), flush=True)


def measured(faces: int, workers: int) -> dict[str, Any]:
    """Memory after a batch that every process had a part in."""
    # here, since each process runs this file too, and samples need no torch
    from frugan.faces.data.batches import FaceBatches  # noqa: PLC0415
    from frugan.faces.data.drawn_faces import write_drawn_faces  # noqa: PLC0415
    from frugan.faces.data.face import FaceType, SampleSettings  # noqa: PLC0415
    from frugan.faces.data.faceset import open_faceset  # noqa: PLC0415
    from frugan.faces.data.sample_processes import SampleProcesses  # noqa: PLC0415

    with TemporaryDirectory() as folder:
        few = open_faceset(write_drawn_faces(Path(folder) / "workspace") / "data_dst" / "aligned")
        copies = -(-faces // len(few))
        named = [
            replace(face, name=f"{number:07d}_0.jpg", landmarks=face.landmarks.copy())
            for number, face in enumerate(([*few.faces] * copies)[:faces])
        ]
        many = replace(few, faces=tuple(named), places=tuple(([*few.places] * copies)[:faces]))
        processes = SampleProcesses(workers)
        settings = SampleSettings(128, FaceType.WHOLE_FACE, random_warp=True, random_flip=True)
        batches = FaceBatches(many, settings, seed=0, name="dst", processes=processes)
        batches.take(0, 8 * workers)
        each = [pss(process.pid) for process in active_children()]
        trainer = pss(os.getpid())
        batches.close()
        processes.close()
    return {
        "faces": faces,
        "workers": workers,
        "workers_mib": [round(one / MIB) for one in each],
        "trainer_mib": round(trainer / MIB),
    }


def pss(pid: int | None) -> int:
    """Proportional share of a process's memory, in bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


if __name__ == "__main__":
    main()
