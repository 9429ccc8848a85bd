"""What is said in an environment? The texts of an expert's episodes, for a tokenizer that is made from nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from whetstone.environments import Environment
from whetstone.errors import TaskError, WhetstoneError
from whetstone.tasks import Expert
from whetstone.tools.threads import call_user_function
from whetstone.trajectory import Task
from whetstone.user_code import describe_exception

_MOST_TURNS = 60
_LONG_SECONDS = 5.0


def conversations(
    source: Any,
    environment: Callable[[], Environment],
    format: Any,
    count: int,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Every text of the expert's episodes of the first tasks; the actions as the format writes them.

    Args:
        say: Told where that takes a while.

    Raises:
        TaskError: An episode of the expert failed; the message says of which task, and why.
        WhetstoneError: What the environment stands on is not there.
    """
    # a loop may be running here already, and then none can be begun in this thread
    with ThreadPoolExecutor(1, thread_name_prefix="conversations") as pool:
        return pool.submit(asyncio.run, _played(source, environment, format, count, say)).result()


async def _played(
    source: Any, make: Callable[[], Environment], format: Any, count: int, say: Callable[[str], None]
) -> list[str]:
    assert isinstance(source, Expert)
    texts = []
    began = time.perf_counter()
    said = False
    for index in range(count):
        if not said and time.perf_counter() - began > _LONG_SECONDS:
            say(f"the tiny model's tokenizer is made of {count} episodes of the expert; {index} are played")
            said = True
        task = source.task(index)  # type: ignore[attr-defined]
        try:
            texts += await _episode(source, task, make(), format, seed=index)
        except WhetstoneError:
            raise
        except (Exception, SystemExit) as error:
            raise TaskError(f"the expert's episode of task {task.id} failed: {describe_exception(error)}") from error
    return texts


async def _episode(source: Expert, task: Task, environment: Environment, format: Any, *, seed: int) -> list[str]:
    texts: list[str] = []
    try:
        first = await call_user_function(environment.reset, task, seed=seed)
        said, tools = list(first.messages), first.tools
        for _ in range(_MOST_TURNS):
            action = source.demonstrate(task, said, tools)
            texts.append(format.write(action, tools))
            result = await call_user_function(environment.step, action)
            said += [action, *result.observation.messages]
            tools = result.observation.tools or tools
            if result.ended is not None:
                break
        texts += [message.text for message in said if message.role != "assistant"]
    finally:
        await call_user_function(environment.close)
    return texts
