"""Shared sandbox: one fork server per process for all episodes with the same isolation and preloaded modules."""

from __future__ import annotations

import atexit
import functools

from whetstone.sandbox.pool import PRELOAD, Sandbox


@functools.cache
def shared_sandbox(isolation: str = "auto", preload: tuple[str, ...] = (), container: tuple[str, ...] = ()) -> Sandbox:
    """Return the sandbox of an isolation with these preloaded modules.

    It is closed when the process ends.

    Raises:
        SandboxError: The isolation is not available on this machine.
    """
    sandbox = Sandbox(isolation=isolation, preload=(*PRELOAD, *preload), container=container)
    atexit.register(sandbox.close)
    return sandbox
