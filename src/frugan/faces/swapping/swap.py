"""Swap the faces of a folder of frames: threads read and cut ahead of the networks, lay on and write behind them."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frugan.engine.state.working_weights import prepared_together
from frugan.errors import BadInput
from frugan.faces.data.face import FaceType
from frugan.faces.data.faceset import SOURCES, Faceset, open_faceset
from frugan.faces.data.geometry import opencv
from frugan.faces.data.swap import FaceSwap, SwapsFaces
from frugan.faces.swapping.composing import Look, Picture, SwappedFace, compose, uses_xseg
from frugan.faces.swapping.frames import Frame, SwapFolder, copy_frame, find_frames, open_out, write_frame
from frugan.progress import Progress, Say
from frugan.sampling.generators import Opened, open_networks
from frugan.setup.run_data_sources import checkpoint_data
from frugan.wording import count, family_name

LEAST_XSEG = 0.1
"""Smaller probabilities of XSeg count as none."""


@dataclass(frozen=True)
class SwapResult:
    """Numbers of frames."""

    swapped: int  # whose faces were replaced
    copied: int  # without faces, copied as they are
    kept: int  # that were there already
    faces: int  # replaced
    anew: int  # of the swapped and copied ones, those that were there, with another picture, faces, model or settings
    damaged: Mapping[str, str]  # name of each frame that cannot be read or cut -> why; the next call tries it again


@dataclass(frozen=True)
class MaskNetwork:
    """XSeg as one call."""

    resolution: int  # side of its square
    face_type: FaceType  # how much of the head that shows
    call: Callable[[Tensor], Tensor]  # faces [n, 3, R, R], BGR in [0, 1] -> masks [n, 1, R, R] in [0, 1]


@dataclass(frozen=True, eq=False)
class _Cut:
    """A frame that was read, and the squares of its faces."""

    frame: Frame
    pixels: NDArray[np.uint8]
    matrices: list[NDArray[np.float32]]
    squares: list[Picture]  # as the model sees them
    mask_matrices: list[NDArray[np.float32]]
    mask_squares: list[Picture]  # as XSeg sees them; empty: it is not asked


@dataclass(frozen=True)
class Swapper:
    """Networks and a look, by which frames are made."""

    swap: FaceSwap
    xseg: MaskNetwork | None
    look: Look
    device: torch.device

    def cut(self, frame: Frame) -> _Cut:
        """Read a frame and cut its faces out.

        Raises:
            BadInput: it cannot be read, or landmarks are those of no face.
        """
        pixels, face_type = frame.picture(), FaceType.from_option(self.swap.face_type)
        unit: Picture = pixels.astype(np.float32) / np.float32(255)
        matrices = frame.matrices(self.swap.resolution, face_type)
        mask_matrices: list[NDArray[np.float32]] = []
        if self.xseg is not None:
            mask_matrices = frame.matrices(self.xseg.resolution, self.xseg.face_type)
        side = self.xseg.resolution if self.xseg is not None else 0
        squares = [_square(unit, matrix, self.swap.resolution) for matrix in matrices]
        return _Cut(frame, pixels, matrices, squares, mask_matrices, [_square(unit, m, side) for m in mask_matrices])

    def faces(self, cut: _Cut) -> list[SwappedFace]:
        """Run the networks on a frame's faces."""
        batch = _batch(cut.squares, self.device)
        swapped, *learned = (_pictures(part) for part in self.swap.call(batch))
        masks = dict(zip(("prd", "dst"), ([mask[..., 0] for mask in of] for of in learned), strict=True))
        found = self._xseg_masks(cut, swapped) if self.xseg is not None else {}
        return [
            SwappedFace(
                cut.matrices[at],
                cut.squares[at],
                swapped[at].clip(0, 1),
                tuple(of[name][at] for of, name in self._counted(masks, found)),
            )
            for at in range(len(cut.squares))
        ]

    def _counted(
        self, learned: Mapping[str, list[Picture]], found: Mapping[str, list[Picture]]
    ) -> Iterator[tuple[Mapping[str, list[Picture]], str]]:
        """The masks whose product counts. Of whole heads the model's mask of the destination never does."""
        source, _, side = self.look.mask.partition("-")
        for of, name in ((learned, "learned"), (found, "xseg")):
            if source in (name, "all"):
                sides = (side,) if side else ("prd", "dst")
                if of is learned and not side and self.swap.face_type == "head":
                    sides = ("prd",)
                yield from ((of, one) for one in sides)

    def _xseg_masks(self, cut: _Cut, swapped: Sequence[Picture]) -> dict[str, list[Picture]]:
        """Masks in the model's square: of the swapped faces as they are, and of the frame."""
        assert self.xseg is not None
        cv2, side, mine = opencv(), self.xseg.resolution, self.swap.resolution
        masks: dict[str, list[Picture]] = {}
        if self.look.mask != "xseg-dst":
            resized = [cv2.resize(face, (side, side), interpolation=cv2.INTER_CUBIC) for face in swapped]
            found = [mask[..., 0] for mask in _pictures(self.xseg.call(_batch(resized, self.device)))]
            masks["prd"] = [cv2.resize(_without_traces(m), (mine, mine), interpolation=cv2.INTER_CUBIC) for m in found]
        if self.look.mask != "xseg-prd":
            found = [mask[..., 0] for mask in _pictures(self.xseg.call(_batch(cut.mask_squares, self.device)))]
            masks["dst"] = [
                cv2.warpAffine(_without_traces(mask), _between(theirs, ours), (mine, mine), flags=cv2.INTER_CUBIC)
                for mask, theirs, ours in zip(found, cut.mask_matrices, cut.matrices, strict=True)
            ]
        return {name: [mask.clip(0, 1) for mask in of] for name, of in masks.items()}

    def compose(self, cut: _Cut, faces: list[SwappedFace]) -> NDArray[np.uint8]:
        """The frame with its faces replaced."""
        return compose(cut.pixels, faces, self.look, cut.frame.number)


def _square(unit: Picture, matrix: NDArray[np.float32], side: int) -> Picture:
    cv2 = opencv()
    cut: Picture = cv2.warpAffine(unit, matrix, (side, side), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    return cut.clip(0, 1)


def _batch(pictures: Sequence[Picture], device: torch.device) -> Tensor:
    """[n, 3, R, R]."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous().to(device)


def _pictures(tensors: Tensor) -> list[Picture]:
    """[n, C, R, R] -> n of [R, R, C]."""
    return list(tensors.float().cpu().permute(0, 2, 3, 1).contiguous().numpy())


def _without_traces(mask: Picture) -> Picture:
    return np.where(mask < LEAST_XSEG, np.float32(0), mask)


def _between(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """The map from one square to another of the same frame, [2, 3]."""
    full = [np.vstack([matrix.astype(np.float64), [0, 0, 1]]) for matrix in (first, second)]
    between: NDArray[np.float64] = (full[1] @ np.linalg.inv(full[0]))[:2]
    return between


def swap_frames(
    source: str | Path,
    frames: str | Path,
    aligned: str | Path,
    out: str | Path,
    look: Look | None = None,
    *,
    xseg: str | Path | None = None,
    replace_files: bool = False,
    device: str = "auto",
    workers: int = 2,
    say: Say = print,
    progress: Progress | None = None,
) -> SwapResult:
    """Write every frame with its faces replaced; frames without faces are copied, and those that are there stay.

    Where a frame or its faces have changed since, it is made anew. Damaged frames are not made, and end nothing.

    Args:
        source: run, checkpoint or weights of a face model.
        frames: folder of the film's frames.
        aligned: faces that were cut from them, which say where.
        out: folder for the swapped frames, new or left by an earlier call with the same settings.
        look: how faces are laid on; None: the usual way.
        xseg: run, checkpoint or weights of XSeg, for masks that ask for it.
        replace_files: frames of another model or other settings may be in `out`; they are made anew.
        workers: threads that read, lay on and write.

    Raises:
        BadInput: weights, frames or faces are not what they should be, or `out` holds other files.
        OSError: the disk is full or cannot be written; frames that are done stay.
    """
    look = look or Look()
    if workers < 1:
        raise BadInput(f"--workers {workers}: expected at least 1")
    if uses_xseg(look.mask) != (xseg is not None):
        needed = "needs a network of XSeg: add --xseg RUN" if xseg is None else "asks for none: leave out --xseg"
        raise BadInput(f"--mask {look.mask}: {needed}")
    faceset = open_faceset(Path(aligned))
    there = find_frames(Path(frames), faceset, say)
    with _opened(source, xseg, look, device, say) as (swapper, steps, opened):
        if _are_source(faceset, opened.weights.checkpoint):
            say(
                f"warning: {aligned}: the very faces that the run has as its source, so these frames show that face "
                "already; to swap, name frames and faces of the destination, such as data_dst and data_dst/aligned"
            )
        folder = open_out(Path(out), there, {**asdict(look), **steps}, replace_files=replace_files)
        left, anew = folder.left, len(folder.changed)
        with_faces = [frame for frame in left if frame.faces]
        if kept := len(there) - len(left):
            say(f"{count(kept, 'frame')} there already")
        if anew:
            say(f"{count(anew, 'frame')} there made anew: picture, faces, model or settings have changed")
        done = 0

        def note() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, len(left))

        try:
            for frame in left:
                if not frame.faces:
                    with folder.making(frame) as path:
                        copy_frame(frame.path, path)
                    note()
            damaged = _run(swapper, with_faces, folder, opened.provenance, workers, note)
        except KeyboardInterrupt:
            say(f"{out}: {folder.done:,} of {count(len(there), 'frame')} done; the same command goes on")
            raise
        finally:
            folder.note()
    swapped = [frame for frame in with_faces if frame.path.name not in damaged]
    faces = sum(len(frame.faces) for frame in swapped)
    anew -= len(folder.changed & damaged.keys())
    result = SwapResult(len(swapped), len(left) - len(with_faces), kept, faces, anew, damaged)
    if result.copied:
        say(f"{count(result.copied, 'frame')} without aligned faces copied as they are")
    return result


def _are_source(faceset: Faceset, checkpoint: Path | None) -> bool:
    """Return whether these are the faces that a checkpoint's run has as its source, and not as its destination too."""
    known = checkpoint_data(checkpoint)
    source, destination = (known[side].digest if side in known else None for side in SOURCES)
    return faceset.digest == source != destination


def _run(
    swapper: Swapper,
    frames: Sequence[Frame],
    folder: SwapFolder,
    about: Mapping[str, str],
    workers: int,
    note: Callable[[], None],
) -> Mapping[str, str]:
    """Threads read ahead and write behind; at most so many frames are held that all threads are busy.

    Returns:
        Name of each frame that is damaged -> why it was not made.
    """

    def write(cut: _Cut, faces: list[SwappedFace]) -> None:
        with folder.making(cut.frame) as path:
            write_frame(path, swapper.compose(cut, faces), about)

    coming, waiting = iter(frames), 2 * workers
    damaged: dict[str, str] = {}
    with ThreadPoolExecutor(workers, "frugan-swap") as pool:
        reading: deque[tuple[Frame, Future[_Cut]]] = deque()
        writing: deque[Future[None]] = deque()
        try:
            while True:
                while len(reading) < waiting and (frame := next(coming, None)) is not None:
                    reading.append((frame, pool.submit(swapper.cut, frame)))
                if not reading:
                    break
                frame, coming_cut = reading.popleft()
                try:
                    cut = coming_cut.result()
                except BadInput as error:  # of this frame alone
                    damaged[frame.path.name] = str(error)
                    note()
                    continue
                writing.append(pool.submit(write, cut, swapper.faces(cut)))
                while len(writing) > waiting:
                    writing.popleft().result()
                    note()
            while writing:
                writing.popleft().result()
                note()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return damaged


@contextmanager
def _opened(
    source: str | Path, xseg: str | Path | None, look: Look, device: str, say: Say
) -> Iterator[tuple[Swapper, dict[str, str], Opened]]:
    """Give the networks, prepared, which ones they are, for the settings that OUT keeps, and the face model itself.

    Raises:
        BadInput: there are no such weights, or they swap no faces.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        opened = open_networks(source, device, say)
        recipe = opened.recipe
        stack.enter_context(prepared_together(opened.networks, opened.layout))
        if not isinstance(recipe.kind, SwapsFaces):
            raise BadInput(
                f"{source}: weights of {family_name(recipe.family)}, which swaps no faces; name a face model"
            )
        if recipe.preliminary is not None:
            raise BadInput(f"{source}: is still {recipe.preliminary.name}, on faces of many people: it swaps none yet")
        swap = recipe.kind.face_swap(recipe.networks, opened.networks)
        which = {"model": f"{opened.weights.path.resolve()} at step {opened.weights.step}"}
        masks = None
        if xseg is not None:
            of_masks = open_networks(xseg, device, say)
            if of_masks.recipe.family != "xseg" or of_masks.recipe.preliminary is not None:
                raise BadInput(f"--xseg {xseg}: expected a trained network of XSeg")
            stack.enter_context(prepared_together(of_masks.networks, of_masks.layout))
            sizes: Any = of_masks.recipe.networks
            network = of_masks.networks["xseg"]
            masks = MaskNetwork(
                sizes.resolution,
                FaceType.from_option(sizes.face_type),
                lambda faces: torch.sigmoid(network(faces).float()),
            )
            which["xseg"] = f"{of_masks.weights.path.resolve()} at step {of_masks.weights.step}"
        device_used = next(next(iter(opened.networks.values())).parameters()).device
        yield Swapper(swap, masks, look, device_used), which, opened
