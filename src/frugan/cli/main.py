"""How the `frugan` command begins and how it ends: 0, 1 (failed) or 2 (bad input).

Processes that make face samples read the module again that the program was started with, which may be this one: the
commands, and torch with them, are imported only once one of them runs.
"""

import errno
import sys
import warnings

from rich.console import Console

from frugan.errors import BadInput, TrainingFailed

FAILED, BAD_INPUT = 1, 2
TRAINING = ("train", "demo")
"""Commands that write checkpoints."""


def run() -> None:
    """Run the command line; errors are told in words, on stderr."""
    from frugan.cli.application import application  # noqa: PLC0415  (see above)

    console = Console(stderr=True, highlight=False)

    def end(kind: str, message: str, code: int) -> None:
        console.print(f"[bold red]{kind}:[/]", end=" ")
        console.print(message, markup=False, soft_wrap=True)
        sys.exit(code)

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        console.print(f"warning: {message}", markup=False, soft_wrap=True)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn  # else a line of source code follows each
            application()()
    except BadInput as error:
        end("bad input", str(error), BAD_INPUT)
    except TrainingFailed as error:
        end("training stopped", str(error), FAILED)
    except (FileExistsError, NotADirectoryError) as error:
        end("bad input", f"{error.filename}: is a file, and a folder is wanted there; choose another path", BAD_INPUT)
    except OSError as error:
        hint = (
            " The disk is full: free some room and run the same command again." if error.errno == errno.ENOSPC else ""
        )
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        end("failed", f"{error}.{hint}{' Earlier checkpoints are untouched.' if command in TRAINING else ''}", FAILED)


if __name__ == "__main__":
    run()
