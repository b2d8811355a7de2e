"""How training runs: working weights, precision, step, EMA, checkpoints, loop."""
