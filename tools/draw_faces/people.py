"""The two imaginary people that are drawn: as unlike as the same model of a head allows."""

from tools.draw_faces.person import Bones, Brows, Eyes, Hair, Lips, Person, Skin

# fmt: off
PEOPLE = (
    Person(
        name="Amara",
        bones=Bones(width=0.95, length=0.92, face=53.5, jaw=27, chin=5, chin_forward=1, cheek=2, brow=-2,
                    nose_width=14.0, nose_tip=6.8, nose_length=5, nose_drop=0, bridge=1, neck=41, shoulders=165),
        eyes=Eyes(apart=32.5, width=19.0, height=14.6, tilt=2.4, iris=8.4, colour=(0.16, 0.065, 0.022),
                  ring=(0.03, 0.012, 0.006), lashes=1.0),
        brows=Brows(inner=13, outer=53, above=20.5, arch=4.5, slant=-0.5, thickness=4.8,
                    colour=(0.022, 0.012, 0.008)),
        lips=Lips(width=23.5, upper=6.6, lower=9.0, bow=1.9, full=4.0, colour=(0.40, 0.075, 0.08), gloss=0.8),
        skin=Skin(colour=(0.50, 0.25, 0.145), blush=(0.52, 0.205, 0.12), freckles=0, beard=0.0),
        hair=Hair(
            long=True,
            opening=((-0.30, -1.03), (0.05, -0.93), (0.38, -0.78), (0.70, -0.64), (0.94, -0.38), (1.07, 0.02),
                     (1.08, 0.4), (1.03, 0.8), (0.98, 1.12), (0.86, 1.38), (0.0, 1.50)),
            opening_left=((-0.30, -1.03), (-0.55, -0.84), (-0.82, -0.63), (-1.00, -0.36), (-1.08, 0.02), (-1.08, 0.4),
                          (-1.03, 0.8), (-0.98, 1.12), (-0.86, 1.38), (0.0, 1.50)),
            pole=(-0.27, -0.92, 0.33),
            colour=(0.022, 0.012, 0.009),
            tips=(0.17, 0.075, 0.04),
            wave=0.05,
        ),
        cloth=((0.55, 0.12, 0.08), (0.75, 0.68, 0.58), (0.04, 0.20, 0.22)),
        neckline=16,
    ),
    Person(
        name="Bran",
        bones=Bones(width=1.02, length=1.03, face=64, jaw=44, chin=13, chin_forward=3, cheek=0, brow=2,
                    nose_width=17.5, nose_tip=8.5, nose_length=8, nose_drop=2.5, bridge=3, neck=53, shoulders=195),
        eyes=Eyes(apart=31, width=13.8, height=8.6, tilt=0.4, iris=6.0, colour=(0.16, 0.34, 0.36),
                  ring=(0.03, 0.07, 0.09), lashes=0.35),
        brows=Brows(inner=12, outer=50, above=14.5, arch=2.5, slant=0.5, thickness=7.0, colour=(0.16, 0.06, 0.02)),
        lips=Lips(width=26.5, upper=5.2, lower=7.5, bow=1.2, full=2.6, colour=(0.56, 0.22, 0.18), gloss=0.3),
        skin=Skin(colour=(0.74, 0.475, 0.365), blush=(0.74, 0.36, 0.27), freckles=260, beard=0.9),
        hair=Hair(
            long=False,
            opening=((0.0, -0.96), (0.3, -0.97), (0.58, -0.93), (0.80, -0.78), (0.90, -0.58), (1.02, -0.36),
                     (1.10, -0.16), (1.13, 0.05), (1.24, 0.05), (1.25, -0.35), (1.20, -0.74), (1.30, -0.88),
                     (1.52, -0.84), (1.68, -0.45), (1.72, 0.0), (1.64, 0.45), (1.55, 0.6), (0.9, 1.55), (0.0, 1.7)),
            opening_left=((0.0, -0.96), (-0.3, -0.99), (-0.60, -0.97), (-0.80, -0.80), (-0.90, -0.58), (-1.02, -0.36),
                          (-1.10, -0.16), (-1.13, 0.05), (-1.24, 0.05), (-1.25, -0.35), (-1.20, -0.74), (-1.30, -0.88),
                          (-1.52, -0.84), (-1.68, -0.45), (-1.72, 0.0), (-1.64, 0.45), (-1.55, 0.6), (-0.9, 1.55),
                          (0.0, 1.7)),
            pole=(-0.50, -0.80, 0.10),
            colour=(0.25, 0.075, 0.018),
            tips=(0.62, 0.25, 0.075),
            wave=0.03,
        ),
        cloth=((0.03, 0.06, 0.16), (0.10, 0.16, 0.09), (0.35, 0.34, 0.33)),
        neckline=2,
    ),
)
# fmt: on
