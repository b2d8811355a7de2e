"""Draws docs/pictures/sticking.png, in which StyleGAN2's texture sticks to the screen and StyleGAN3's does not.

    python benchmarks/sticking.py pictures FOLDER
    SMALL="networks.resolution=32 networks.channel_base=512 networks.channel_max=48 evaluation.every=none"
    frugan train stylegan2-small-64 $SMALL "training.duration=1500 steps" --data FOLDER --out STYLEGAN2
    SMALL="$SMALL networks.layers=4 networks.generator_channel_base=256 networks.generator_channel_max=32"
    frugan train stylegan3-small-64 $SMALL "training.duration=900 steps" --data FOLDER --out STYLEGAN3
    python benchmarks/sticking.py slice STYLEGAN2 STYLEGAN3

For the picture in docs the first was stopped at step 932 (Ctrl-C), the second at 628.

The pictures are balls with stripes, anywhere. For each run a film goes from seed to seed; the column of pixels in the
middle of each frame stands beside that of the frame before: time goes to the right. What sticks to the screen is a
level streak.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import frugan
from frugan.sampling.generation import pixels

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "sticking.png"
SIDE = 32
COUNT = 2000
FINE = 4
"""Samples in the width of a pixel, over which pictures are averaged."""
PERIOD = 4.0
"""Pixels from stripe to stripe."""
SEEDS = (1, 2, 3, 4)
FRAMES = 160
LARGER = 4
GAP = 2


def ball(random: np.random.Generator) -> Image.Image:
    """A ball whose stripes go where it goes."""
    x, y = random.uniform(8, 24, 2)
    radius, angle = random.uniform(6, 10), random.uniform(-0.6, 0.6)
    at = (np.arange(SIDE * FINE) + 0.5) / FINE
    across, down = at[None] - x, at[:, None] - y
    light = np.cos(2 * np.pi * (across * np.sin(angle) + down * np.cos(angle)) / PERIOD) > 0
    striped = np.where(light[..., None], (235, 150, 50), (60, 35, 20))
    sky = np.array([70, 90, 120]) + 30 * at[:, None, None] / SIDE
    drawn = np.where((np.hypot(across, down) < radius)[..., None], striped, sky)
    small = drawn.reshape(SIDE, FINE, SIDE, FINE, 3).mean((1, 3))
    return Image.fromarray(small.round().astype(np.uint8))


def write_pictures(folder: Path) -> None:
    """Write all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(COUNT):
        ball(np.random.default_rng(number)).save(folder / f"{number:04}.png")


def film(run: Path) -> np.ndarray:
    """Frames [FRAMES, C, R, R] from seed to seed."""
    with frugan.explore(run, device="cpu") as generator:
        return pixels(generator.draw(generator.seeds(SEEDS).walk(FRAMES))).numpy()


def sliced(frames: np.ndarray) -> np.ndarray:
    """The first frame, and the middle columns of all [R, R + GAP + FRAMES, C]."""
    first = frames[0].transpose(1, 2, 0)
    columns = frames[:, :, :, frames.shape[3] // 2].transpose(2, 0, 1)  # [R, FRAMES, C]
    return np.concatenate([first, np.full_like(first[:, :GAP], 255), columns], 1)


def main() -> None:
    """Draw what is asked for."""
    match sys.argv[1:]:
        case ["pictures", folder]:
            write_pictures(Path(folder))
        case ["slice", *runs] if runs:
            rows = [sliced(film(Path(run))) for run in runs]
            gap = np.full_like(rows[0][:GAP], 255)
            whole = np.concatenate([part for row in rows for part in (gap, row)][1:], 0)
            Image.fromarray(whole.repeat(LARGER, 0).repeat(LARGER, 1)).save(OUT, optimize=True)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
