"""Episodes that begin while a file is not there: a test decides when, whatever process they are in."""

import asyncio
import os
from pathlib import Path

import crash

GATE = "WHETSTONE_TESTS_GATE"
"""The variable that names the file."""


class Gated(crash.Talk):
    """`crash.Talk`, begun where nothing is in the way."""

    async def reset(self, task, *, seed):
        """The task."""
        while Path(os.environ[GATE]).exists():  # noqa: ASYNC110, ASYNC240 - nobody tells of it, and it is a file
            await asyncio.sleep(0.02)
        return await super().reset(task, seed=seed)
