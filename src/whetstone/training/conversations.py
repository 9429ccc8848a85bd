"""What is said in an environment? The texts of an expert's episodes, for a tokenizer that is made from nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from whetstone.environments import Environment
from whetstone.tasks import Expert

_MOST_TURNS = 60


def conversations(source: Any, environment: Callable[[], Environment], format: Any, count: int) -> list[str]:
    """Every text of the expert's episodes of the first tasks; the actions as the format writes them."""
    texts: list[str] = []

    def play() -> None:
        texts.extend(asyncio.run(_played(source, environment, format, count)))

    # a loop may be running here already, and then none can be begun in this thread
    thread = threading.Thread(target=play, name="conversations")
    thread.start()
    thread.join()
    return texts


async def _played(source: Any, make: Callable[[], Environment], format: Any, count: int) -> list[str]:
    assert isinstance(source, Expert)
    texts = []
    for index in range(count):
        task, environment = source.task(index), make()  # type: ignore[attr-defined]
        try:
            first = await environment.reset(task, seed=index)
            said, tools = list(first.messages), first.tools
            for _ in range(_MOST_TURNS):
                action = source.demonstrate(task, said, tools)
                texts.append(format.write(action, tools))
                result = await environment.step(action)
                said += [action, *result.observation.messages]
                tools = result.observation.tools or tools
                if result.ended is not None:
                    break
            texts += [message.text for message in said if message.role != "assistant"]
        finally:
            await environment.close()
    return texts
