"""One fork server for all that run foreign code alike in this process, however many episodes there are."""

from __future__ import annotations

import atexit
import functools

from whetstone.sandbox.pool import PRELOAD, Sandbox


@functools.cache
def shared_sandbox(isolation: str = "auto", preload: tuple[str, ...] = (), container: tuple[str, ...] = ()) -> Sandbox:
    """The sandbox of this isolation whose interpreters have imported these modules, too; closed when the process ends.

    Raises:
        SandboxError: The isolation cannot be had here.
    """
    sandbox = Sandbox(isolation=isolation, preload=(*PRELOAD, *preload), container=container)
    atexit.register(sandbox.close)
    return sandbox
