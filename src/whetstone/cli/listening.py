"""Options and sockets of the commands that serve something: address, keys, access log."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from whetstone.errors import RecipeError
from whetstone.network.http_layer import ACCESS_LOG
from whetstone.network.loopback import LOOPBACK
from whetstone.serving.access import Keys


def access_log_option(default: str) -> Callable[[Any], Any]:
    """Return the option `--access-log` of a command."""
    text = "File for one line per request; - is standard error, off disables the log."
    return click.option("--access-log", metavar="FILE", default=default, show_default=True, help=text)


def start_access_log(target: str) -> None:
    """Write the access log to a file, or to standard error.

    Args:
        target: Path of the file; `-` is standard error; `off` disables the log.

    Raises:
        RecipeError: The file cannot be opened.
    """
    if target == "off":
        return
    try:
        handler = logging.StreamHandler() if target == "-" else logging.FileHandler(target, encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"--access-log {target}: {error.strerror or error}") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    ACCESS_LOG.handlers[:] = [handler]
    ACCESS_LOG.setLevel(logging.INFO)
    ACCESS_LOG.propagate = False


def keys_for(address: str, file: Path | None) -> Keys:
    """Who may ask there.

    Raises:
        RecipeError: The address is beyond this machine, and there are no keys.
    """
    known = Keys.read(file) if file is not None else Keys()
    if not len(known) and address not in LOOPBACK:
        raise RecipeError(
            f"--host {address}: beyond this machine keys are asked for: --keys FILE (whetstone serve --new-key NAME)"
        )
    return known


def served_at(bound: socket.socket) -> str:
    """What agents are given as `base_url`."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def bound_to(address: str, port: int) -> socket.socket:
    """A socket that listens there. What is written to who connects is sent at once: asyncio asks for that itself only
    where a socket says that it is TCP, which Python's does not, and every answer would wait 40 ms.

    Raises:
        RecipeError: It cannot.
    """
    try:
        bound = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise RecipeError(f"http://{address}:{port} cannot be served: {error.strerror or error}") from None
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # who is accepted inherits it
    return bound
