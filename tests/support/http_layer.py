"""The four servers of the project with their HTTP layer, and requests to them without a socket."""

import asyncio
import functools

import httpx2

from support.environments import environment_of, source_of
from support.live_serving import LiveServed, live_recipe
from support.served_policy import Served, build_assembly
from support.viewed_runs import made_run
from whetstone.environments.remote.environment_server import ServedEpisodes
from whetstone.environments.remote.environment_server import build_environment_app as environment_application
from whetstone.viewer.runs import open_runs
from whetstone.viewer.viewer_app import Viewer, view_application

SERVERS = ("serve", "live", "view", "environment")
_RUNNER = asyncio.Runner()
"""One event loop for all requests, because an engine belongs to one."""


def application_of(server, folder):
    """Return (application, a coroutine function that closes it)."""
    if server == "serve":
        served = Served(build_assembly())
        return served.app, served.close
    if server == "live":
        live = LiveServed(folder, live_recipe())
        return live.app, live.engine.close
    if server == "view":
        runs = open_runs([made_run(folder / "run")], cache=folder / "cache")
        for run in runs:
            run.refresh()
        return view_application(Viewer(runs)), _nothing
    episodes = ServedEpisodes(functools.partial(environment_of, "household"))
    return environment_application("household", episodes, source_of("household")), episodes.close


async def _nothing():
    pass


def send(app, *requests):
    """Send requests of (method, path, options) sequentially and return the responses."""

    async def run():
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.request(method, path, **options) for method, path, options in requests]

    return _RUNNER.run(run())


def close(closing):
    """Close an application and wait for it."""
    _RUNNER.run(closing())
