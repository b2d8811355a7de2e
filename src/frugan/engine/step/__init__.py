"""One training step: its inputs, forward, backward, and the update."""
