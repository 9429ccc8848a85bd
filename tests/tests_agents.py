"""Agents that know nothing of Whetstone but an address."""

import json

import openai

from whetstone.tools import Toolset
from whetstone.tools.arithmetic import pocket_calculator

TOOLS = [spec.to_openai() for spec in Toolset([pocket_calculator]).specs]


async def calculating(task: str, base_url: str, api_key: str) -> str:
    """A loop of the kind most people have."""
    messages = [{"role": "user", "content": task}]
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(4):
            told = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            said = told.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                return said.content
            for call in said.tool_calls:
                try:
                    result = pocket_calculator(**json.loads(call.function.arguments))
                except Exception as error:
                    result = f"{type(error).__name__}: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "out of turns"


def summing_up(task: str, base_url: str, api_key: str) -> None:
    """Writes its history anew behind the first answer; in a thread."""
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [{"role": "user", "content": task}]
        for _ in range(2):
            told = client.chat.completions.create(model="policy", messages=messages)
            messages = [{"role": "user", "content": f"so far: {(told.choices[0].message.content or '')[:10]}"}]
        client.post("/reward", body={"reward": 0.25}, cast_to=object)


async def silent(task: str) -> None:
    """Asks nothing."""


async def failing(task: str, base_url: str, api_key: str) -> None:
    """Asks once and falls over."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task}])
    raise ValueError("the agent's own")
