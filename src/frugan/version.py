"""Which frugan this is; `pyproject.toml` has it from here, and so it is known where nothing is installed."""

__version__ = "0.1.0"
