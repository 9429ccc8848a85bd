"""Agents that know nothing of Whetstone but an address."""

import asyncio
import json

import openai

from whetstone.tools import Toolset
from whetstone.tools.arithmetic import pocket_calculator

TOOLS = [spec.to_openai() for spec in Toolset([pocket_calculator]).specs]


def answered(arguments: dict) -> str:
    """What the tool says."""
    try:
        return pocket_calculator(**arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


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
                result = answered(json.loads(call.function.arguments))
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


async def hanging(task: str, base_url: str, api_key: str) -> None:
    """Asks once and never ends."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task}])
    await asyncio.sleep(3600)


async def by_responses(task: str, base_url: str, api_key: str) -> str:
    """The loop of `calculating` over the Responses API, which remembers what was said."""
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    heard, before = task, openai.omit
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(4):
            told = await client.responses.create(model="policy", input=heard, tools=tools, previous_response_id=before)
            calls = [item for item in told.output if item.type == "function_call"]
            if not calls:
                return told.output_text
            results = [(call.call_id, answered(json.loads(call.arguments))) for call in calls]
            heard = [{"type": "function_call_output", "call_id": id, "output": result} for id, result in results]
            before = told.id
    return "out of turns"


async def by_messages(task: str, anthropic_base_url: str, api_key: str) -> str:
    """The same over Anthropic's API, streamed."""
    import anthropic  # takes a second, which others do not wait for

    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in TOOLS)
    ]
    messages = [{"role": "user", "content": task}]
    async with anthropic.AsyncAnthropic(base_url=anthropic_base_url, api_key=api_key) as client:
        for _ in range(4):
            asked = client.messages.stream(model="policy", messages=messages, tools=tools, max_tokens=100)
            async with asked as stream:
                told = await stream.get_final_message()
            messages.append({"role": "assistant", "content": [block.to_dict() for block in told.content]})
            calls = [block for block in told.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in told.content)
            results = [(call.id, answered(call.input)) for call in calls]
            given = [{"type": "tool_result", "tool_use_id": id, "content": result} for id, result in results]
            messages.append({"role": "user", "content": given})
    return "out of turns"


async def interleaving(task, base_url):
    """Three agents whose requests alternate: two of the same messages, one without tools."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        histories = {name: [{"role": "user", "content": f"{task} {part}"}] for name, part in PARTS.items()}
        for question in ("one", "two", "three"):
            for name, history in histories.items():
                more = {} if name == "writer" else {"tools": TOOLS}
                completion = await client.chat.completions.create(model=f"policy:{name}", messages=history, **more)
                history.append(completion.choices[0].message.model_dump(exclude_none=True, exclude={"annotations"}))
                calls = history[-1].get("tool_calls", [])
                history += [{"role": "tool", "tool_call_id": call["id"], "content": question} for call in calls]
                if not calls:
                    history.append({"role": "user", "content": question})


PARTS = {"planner": "first", "solver": "first", "writer": "second"}


async def requiring(task, base_url):
    """An agent that requires a call in its second request."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        for choice in ("auto", "required"):
            await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": task}], tools=TOOLS, tool_choice=choice
            )
