"""Helpers for tests of tools: one episode of calls."""

import asyncio
import json

from whetstone.chat import ToolCall
from whetstone.trajectory import Task


def played(toolset, *calls, task=None, seed=1):
    """Return the results of calls, each (name, arguments), of one episode; raise a failure that voids the episode."""

    async def episode():
        await toolset.open(task or Task("t", "?"), seed=seed)
        try:
            answers = [await toolset.call(ToolCall(name, json.dumps(arguments))) for name, arguments in calls]
            for answer in answers:
                if answer.failure is not None:
                    raise answer.failure
            return answers
        finally:
            await toolset.close()

    return asyncio.run(episode())
