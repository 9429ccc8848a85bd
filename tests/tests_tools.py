"""What the tests of tools share: one episode of calls."""

import asyncio
import json

from whetstone.chat import ToolCall
from whetstone.trajectory import Task


def played(toolset, *calls, task=None, seed=1):
    """The answers to calls, (name, arguments) each, of one episode; what leaves it void is raised, as it is there."""

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
