"""The command line, and how its commands end: exit codes, and which leave checkpoints behind.

Imports nothing, so that Ctrl-C is told in a sentence while everything else is still being imported.
"""

FAILED, BAD_INPUT = 1, 2
INTERRUPTED = 130
"""As shells say of a program that Ctrl-C ended: 128, and SIGINT's number."""
REQUEUE = 75
"""Stopped before its end, to go on another time: EX_TEMPFAIL of sysexits.h, for schedulers that requeue by it."""
TRAINING = ("train", "demo")
"""Commands that write checkpoints."""
