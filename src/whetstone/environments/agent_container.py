"""Command of an external agent in its own container, from which it reaches only its model.

The model is at a port of the container's loopback interface; the image has the agent's program.
"""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from whetstone.environments.coding_agents import select_changed_texts
from whetstone.errors import RecipeError, SandboxError
from whetstone.plugins import OptionError
from whetstone.sandbox import CONTAINER_LIMITS, ContainerPool, Ending, sandboxed_process, shared_containers
from whetstone.sandbox.archive_transfer import upload_host_folder
from whetstone.sandbox.containers.container_options import parse_container_options
from whetstone.sandbox.containers.container_session import ContainerSession

WORKSPACE, _HOME, _ERRORS = sandboxed_process.WORKSPACE, sandboxed_process.HOME, "/tmp/agent-errors"
AGENT_CONTAINER_LIMITS = replace(CONTAINER_LIMITS, processes=512)
"""Limits of a container unless `limits` sets others."""
_MAX_AGENTS = 1024
_MAX_SECONDS = 30 * 3600.0
"""Limit of a command, whose time the episode limits."""
_MAX_ERROR_BYTES = 4096


def open_agent_containers(options: Mapping[str, Any]) -> ContainerPool:
    """Return the containers of the agents of a recipe.

    Raises:
        RecipeError: An option is invalid, or the runtime or the image is missing.
    """
    try:
        return shared_containers(parse_container_options(options), max_running=_MAX_AGENTS)
    except (OptionError, SandboxError) as error:
        raise RecipeError(f"environment agent: {error}") from None


async def run_in_container(
    session: ContainerSession,
    argv: Sequence[str],
    variables: Mapping[str, str],
    serve: Callable[[socket.socket], Awaitable[asyncio.Server]],
    workspace: str,
) -> tuple[int, str, str, dict[str, str] | None]:
    """Run a command in a new container until it exits.

    Args:
        session: Session of the container, in the folder `WORKSPACE`; the caller closes it.
        argv: Command; its program is searched in the image.
        variables: Environment variables in addition to those of the image.
        serve: Serves the model at a listening socket of the container, on `sandboxed_process.PORT`.
        workspace: Folder whose copy is the working directory; "": an empty one.

    Returns:
        Exit status, end of the output, end of the error output, and the texts of the changed files of the workspace,
        or None without a workspace.

    Raises:
        InfrastructureError: The runtime has failed.
    """
    session.ports[sandboxed_process.PORT] = serve
    await session.start()
    if workspace:
        await upload_host_folder(session, Path(workspace), WORKSPACE)
    command = f"mkdir -p {WORKSPACE} {_HOME} && cd {WORKSPACE} && PWD={WORKSPACE} {shlex.join(argv)} 2> {_ERRORS}"
    outcome = await session.shell(
        command, wall_seconds=_MAX_SECONDS, variables={"HOME": _HOME, "PYTHONHASHSEED": "0", **variables}
    )
    if outcome.ending is not Ending.OK:
        return 1, outcome.output, outcome.error or outcome.ending.value, {} if workspace else None
    complained = ""
    if outcome.exit_code:
        complained = (await session.shell(f"tail -c {_MAX_ERROR_BYTES} {_ERRORS}")).output
    files = None
    if workspace:
        contents = await session.download_folder(WORKSPACE)
        files = select_changed_texts(
            ((PurePosixPath(name), len(data), partial(bytes, data)) for name, data in sorted(contents.items())),
            Path(workspace),
        )
    return outcome.exit_code or 0, outcome.output, complained, files
