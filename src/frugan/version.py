"""Version of frugan, which `pyproject.toml` takes from here, so that it is known without being installed."""

__version__ = "0.2.0"
