"""The two ways in which frugan refuses: the input is bad, or the work failed."""


class BadInput(ValueError):
    """Something the user gave cannot be used; commands print it and exit 2.

    The message names the value, what was expected, and the next thing to try.
    """


class TrainingFailed(RuntimeError):
    """Training stopped by itself and cannot go on as it is; commands print it and exit 1."""
