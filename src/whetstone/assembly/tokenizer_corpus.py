"""Texts of an expert's episodes in an environment, for training a tokenizer from scratch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from whetstone.environments import Environment
from whetstone.errors import TaskError, WhetstoneError
from whetstone.tasks import Expert
from whetstone.tools.thread_runner import call_user_function
from whetstone.trajectory import Task
from whetstone.user_code import describe_exception

_MOST_TURNS = 60
_LONG_SECONDS = 5.0


def list_expert_texts(
    source: Any,
    environment: Callable[[], Environment],
    format: Any,
    count: int,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Return all texts of the expert's episodes of the first tasks.

    Actions are written in the format.

    Args:
        source: Task source with an expert.
        environment: Creates the environment.
        format: Tool-call format.
        count: Number of tasks.
        say: Called with a line if it takes a while.

    Raises:
        TaskError: If an episode of the expert fails; the message has the task and the reason.
        WhetstoneError: If a dependency of the environment is missing.
    """
    # an event loop may already be running, and a thread cannot run two
    with ThreadPoolExecutor(1, thread_name_prefix="conversations") as pool:
        return pool.submit(asyncio.run, _played(source, environment, format, count, say)).result()


async def _played(
    source: Any, make: Callable[[], Environment], format: Any, count: int, say: Callable[[str], None]
) -> list[str]:
    assert isinstance(source, Expert)
    texts = []
    began = time.perf_counter()
    is_reported = False
    for index in range(count):
        if not is_reported and time.perf_counter() - began > _LONG_SECONDS:
            say(f"the tiny model's tokenizer is trained on {count} episodes of the expert; {index} are finished")
            is_reported = True
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
        conversation, tools = list(first.messages), first.tools
        for _ in range(_MOST_TURNS):
            action = source.demonstrate(task, conversation, tools)
            texts.append(format.write(action, tools))
            result = await call_user_function(environment.step, action)
            conversation += [action, *result.observation.messages]
            tools = result.observation.tools or tools
            if result.ended is not None:
                break
        texts += [message.text for message in conversation if message.role != "assistant"]
    finally:
        await call_user_function(environment.close)
    return texts
