"""What the tests of tools share: one episode of calls."""

import asyncio
import json

from whetstone.chat import ToolCall
from whetstone.trajectory import Task


def played(toolset, *calls, task=None, seed=1):
    """The answers to calls, (name, arguments) each, of one episode."""

    async def episode():
        await toolset.open(task or Task("t", "?"), seed=seed)
        try:
            return [await toolset.call(ToolCall(name, json.dumps(arguments))) for name, arguments in calls]
        finally:
            await toolset.close()

    return asyncio.run(episode())
