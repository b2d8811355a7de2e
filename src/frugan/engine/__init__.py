"""Running of trainings: working weights, precision, step, EMA, checkpoints, and the loop."""
