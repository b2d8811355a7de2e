"""Sets of pictures to measure quality on: embedded, from packages of the registries, and drawn by programs."""

from picture_sets.known import CHOSEN_ON, DRAWN, fold_of, load_set, part_of

__all__ = ["CHOSEN_ON", "DRAWN", "fold_of", "load_set", "part_of"]
