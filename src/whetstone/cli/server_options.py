"""Options and sockets that the server commands share: address, API keys, access log."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from whetstone.errors import RecipeError
from whetstone.network.host_header import LOOPBACK
from whetstone.network.http_layer import ACCESS_LOG
from whetstone.serving.api_keys import Keys


def access_log_option(default: str) -> Callable[[Any], Any]:
    """Return a decorator that adds the option `--access-log` to a command.

    Args:
        default: Default of the option: a path, `-` or `off`.
    """
    text = "File for one line per request; - is standard error, off disables the log."
    return click.option("--access-log", metavar="FILE", default=default, show_default=True, help=text)


def start_access_log(target: str) -> None:
    """Start the access log of a server.

    Args:
        target: Path of the file; `-` is standard error; `off` disables the log.

    Raises:
        RecipeError: If the file cannot be opened.
    """
    handler: logging.Handler
    try:
        if target == "off":
            handler = logging.NullHandler()
        else:
            handler = logging.StreamHandler() if target == "-" else logging.FileHandler(target, encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"--access-log {target}: {error.strerror or error}") from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    ACCESS_LOG.handlers[:] = [handler]
    ACCESS_LOG.setLevel(logging.INFO)
    ACCESS_LOG.propagate = False


def load_api_keys(address: str, file: Path | None) -> Keys:
    """Load the API keys of a server.

    Args:
        address: Address on which the server listens.
        file: File with API keys; None: only requests from localhost are accepted.

    Raises:
        RecipeError: If the address is not localhost, and there are no keys.
    """
    known = Keys.read(file) if file is not None else Keys()
    if not len(known) and address not in LOOPBACK:
        raise RecipeError(
            f"--host {address}: an address other than localhost requires --keys FILE (whetstone serve --new-key NAME)"
        )
    return known


def server_url(bound: socket.socket) -> str:
    """Return the URL of a server for clients, from its listening socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def bind_socket(address: str, port: int) -> socket.socket:
    """Bind a listening socket with TCP_NODELAY.

    asyncio sets TCP_NODELAY only if the socket reports the protocol TCP, which Python's does not. Without TCP_NODELAY,
    every response waits 40 ms.

    Args:
        address: Address on which the server listens.
        port: Port; 0 selects a free one.

    Raises:
        RecipeError: If the address or port cannot be used.
    """
    try:
        bound = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise RecipeError(f"http://{address}:{port} cannot be served: {error.strerror or error}") from None
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted connections inherit it
    return bound
