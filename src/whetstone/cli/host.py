"""`whetstone host`: an environment over HTTP, for any client."""

from __future__ import annotations

import os
import secrets
import socket

import click

from whetstone.cli.tasks import contract_of, read_options
from whetstone.environments.remote.guard import LOOPBACK, TOKEN
from whetstone.environments.remote.server import Episodes, application
from whetstone.errors import RecipeError
from whetstone.extras import install_command


@click.command()
@click.argument("environment")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--tasks", "source", help="Where its tasks come from; the source of the same name unless said.")
@click.option("--address", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8100, show_default=True, help="0 takes a free one.")
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Episodes open at once; more are refused.",
)
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="After which a forgotten episode is closed.",
)
def host(
    environment: str,
    options: tuple[str, ...],
    source: str | None,
    address: str,
    port: int,
    capacity: int,
    idle_seconds: float,
) -> None:
    """Serve ENVIRONMENT and its tasks over HTTP until stopped. Elsewhere a recipe says
    `environment: {name: remote, url: http://HOST:8100}`, and `tasks: {source: remote, url: …}`.

    Whoever may ask is told the tasks with their answers. So beyond this machine a token is asked for, which both sides
    find in the environment variable WHETSTONE_TOKEN; where it is not set, one is made and shown."""
    try:
        import uvicorn
    except ImportError:
        raise RecipeError(f"serving needs starlette and uvicorn: {install_command('serve')}") from None
    contract = contract_of(environment, read_options(options), source=source)
    episodes = Episodes(contract.make, capacity=capacity, idle_seconds=idle_seconds)
    token = os.environ.get(TOKEN, "")
    made = "" if token or address in LOOPBACK else secrets.token_urlsafe(24)
    served = application(environment, episodes, contract.source, token=token or made)
    try:
        bound = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise RecipeError(f"http://{address}:{port} cannot be served: {error.strerror or error}") from None
    with bound:
        click.echo(f"{environment} at http://{address}:{bound.getsockname()[1]}, {capacity} episodes at once")
        if made:
            click.echo(f"who asks needs {TOKEN}={made}")
        uvicorn.Server(uvicorn.Config(served, log_level="warning")).run(sockets=[bound])
