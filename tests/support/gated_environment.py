"""Episodes that wait while a file exists, so that a test controls their start in any process."""

import asyncio
import os
from pathlib import Path

import crash

GATE = "WHETSTONE_TESTS_GATE"
"""The variable that names the file."""


class Gated(crash.Talk):
    """`crash.Talk` that starts when the file is deleted."""

    async def reset(self, task, *, seed):
        """Return the task."""
        while Path(os.environ[GATE]).exists():  # noqa: ASYNC110, ASYNC240 - a file has no notification
            await asyncio.sleep(0.02)
        return await super().reset(task, seed=seed)
