"""One training step: what it is given, forward, backward, and the update."""
