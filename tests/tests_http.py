"""The four servers of the project with their HTTP layer, and requests to them without a socket."""

import asyncio
import functools

import httpx2

from tests_live import LiveServed, live_recipe
from tests_served import Served, made
from tests_viewed import made_run
from tests_worlds import environment_of, source_of
from whetstone.environments.remote.server import Episodes
from whetstone.environments.remote.server import application as environment_application
from whetstone.viewing.app import Viewer, view_application
from whetstone.viewing.opened import opened_runs

SERVERS = ("serve", "live", "view", "environment")
_RUNNER = asyncio.Runner()
"""One event loop for all requests, because an engine belongs to one."""


def application_of(server, folder):
    """(application, what closes it)"""
    if server == "serve":
        served = Served(made())
        return served.app, served.close
    if server == "live":
        live = LiveServed(folder, live_recipe())
        return live.app, live.engine.close
    if server == "view":
        runs = opened_runs([made_run(folder / "run")], cache=folder / "cache")
        for run in runs:
            run.refresh()
        return view_application(Viewer(runs)), _nothing
    episodes = Episodes(functools.partial(environment_of, "household"))
    return environment_application("household", episodes, source_of("household")), episodes.close


async def _nothing():
    pass


def send(app, *requests):
    """The responses to requests of (method, path, options), one after the other."""

    async def run():
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.request(method, path, **options) for method, path, options in requests]

    return _RUNNER.run(run())


def close(closing):
    """Wait for what closes an application."""
    _RUNNER.run(closing())
