"""Ports of this machine for pages: looked at before anything slow is loaded."""

import errno
import socket

from frugan.errors import BadInput
from frugan.progress import Say

LOOPBACK = "127.0.0.1"
MOST_TRIED = 100
"""Ports after one that is taken, among which a free one is looked for."""


def port_to_listen_on(asked: int | None, usual: int, say: Say) -> int:
    """A port on which a page of this machine can listen now.

    Args:
        asked: by name; 0: any that is free; None: the usual one, or else the next that is free.
        say: is told where it is not the usual one.

    Raises:
        BadInput: the one that is asked for cannot be had.
    """
    port = usual if asked is None else asked
    try:
        socket.create_server((LOOPBACK, port)).close()
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        if asked is not None or not taken or (free := _next_free(port)) is None:
            raise refused_port(port, error) from error
        say(f"port {port} is taken, perhaps by a page that is open already: {free} instead; --port chooses")
        return free
    return port


def refused_port(port: int, error: OSError | OverflowError) -> BadInput:
    """The message for a port of this machine on which a server cannot listen."""
    code, instead = error.errno if isinstance(error, OSError) else None, "Name another one"
    if isinstance(error, OverflowError):
        reason = "does not exist; expected a number from 0 to 65535"
    elif code == errno.EADDRINUSE:
        reason = "is taken by another program, perhaps by a page that is open already"
        if (free := _next_free(port)) is not None:
            instead = f"{free} is free: name that one"
    elif code in (errno.EACCES, errno.EPERM):
        reason = "may not be used by you; those from 1024 on may"
    else:
        reason = f"cannot be listened on ({error})"
    return BadInput(f"--port {port}: this port {reason}. {instead}, or 0 for any that is free")


def _next_free(port: int) -> int | None:
    """The first port after one on which a server can listen now."""
    for other in range(port + 1, min(port + MOST_TRIED, 65535) + 1):
        try:
            socket.create_server((LOOPBACK, other)).close()
        except OSError:
            continue
        return other
    return None
