"""Defaults that the commands' help shows. Imports nothing, so that help comes at once."""

METRICS = ("fid", "is", "kid", "pr", "intra-fid")
USUAL_METRICS = ("fid", "is", "kid", "pr")
STANDING_BATCHES = 16
"""Batches from which standing statistics are gathered, as in the BigGAN release."""
COMPARED_STEPS = 200
"""For which a recipe is trained in two precisions, side by side."""
FACES = 120
"""Drawn of each person for the demo."""
SIDE_PIXELS = 128
"""Of drawn faces."""
