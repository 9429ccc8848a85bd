"""Servers for tests: real ones with a few routes, in a thread."""

import asyncio
import contextlib
import json
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from whetstone.evaluation.environment_checks import play_with_policy

uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install -e '.[serve]'")
SERVERS = Path(__file__).resolve().parents[2] / "servers"


@contextlib.contextmanager
def served(app):
    """Serve an application in a thread during a block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextlib.contextmanager
def started(python, application):
    """Serve an application of `data/servers` in a process of another interpreter during a block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "uvicorn", application, "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1] / "data" / "servers")
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def routes(**handlers):
    """Serve JSON routes: name → function of the body."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    def route(name, handler):
        async def answer(request):
            body = json.loads(await request.body() or b"{}")
            reply = handler(body)
            status, value = reply if isinstance(reply, tuple) else (200, reply)
            return JSONResponse(value, status_code=status)

        return Route(f"/{name}", answer, methods=["GET", "POST"])

    return Starlette(routes=[route(name, handler) for name, handler in handlers.items()])


def by(make, task, *actions):
    """Play an episode with these actions."""
    left = iter(actions)
    return asyncio.run(play_with_policy(make, task, lambda *_: next(left), seed=0, max_turns=len(actions))).trajectory


def installed_python(name, packages):
    """Return the interpreter of an environment in `servers/`; skip the test if it does not exist."""
    place = SERVERS / name / "bin" / "python"
    if not place.exists():
        pytest.skip(f"{place} is missing: python -m venv servers/{name} && servers/{name}/bin/pip install {packages}")
    return str(place)
