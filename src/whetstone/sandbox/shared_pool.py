"""Shared sandbox: one fork server per process for all episodes with the same isolation and preloaded modules."""

from __future__ import annotations

import atexit
import functools

from whetstone.sandbox.pool import PRELOAD, Sandbox


@functools.cache
def shared_sandbox(isolation: str = "auto", preload: tuple[str, ...] = (), container: tuple[str, ...] = ()) -> Sandbox:
    """Return the shared sandbox of this process for these options.

    It is closed when the process ends.

    Args:
        isolation: `auto`, or the name of an isolation layer.
        preload: Modules that every interpreter has imported, in addition to the default ones.
        container: Command that starts a container; empty: none.

    Raises:
        SandboxError: If the isolation is not available on this machine.
    """
    sandbox = Sandbox(isolation=isolation, preload=(*PRELOAD, *preload), container=container)
    atexit.register(sandbox.close)
    return sandbox
