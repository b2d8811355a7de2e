"""`python -m frugan` is the `frugan` command."""

from frugan.cli.main import run

if __name__ == "__main__":
    run()
