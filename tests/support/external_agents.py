"""Agents that are independent of Whetstone and know only the address of a server."""

import asyncio
import json

import openai

from whetstone.tools import Toolset
from whetstone.tools.arithmetic_tools import pocket_calculator

TOOLS = [spec.to_openai() for spec in Toolset([pocket_calculator]).specs]


def run_tool(arguments: dict) -> str:
    """Return the result of the tool."""
    try:
        return pocket_calculator(**arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def calculating(task: str, base_url: str, api_key: str) -> str:
    """Run the usual loop of an agent with tools."""
    messages = [{"role": "user", "content": task}]
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(4):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content
            for call in message.tool_calls:
                result = run_tool(json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "out of turns"


def summing_up(task: str, base_url: str, api_key: str) -> None:
    """Rewrite the history after the first response; synchronous, in a thread."""
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [{"role": "user", "content": task}]
        for _ in range(2):
            response = client.chat.completions.create(model="policy", messages=messages)
            messages = [{"role": "user", "content": f"so far: {(response.choices[0].message.content or '')[:10]}"}]
        client.post("/reward", body={"reward": 0.25}, cast_to=object)


async def silent(task: str) -> None:
    """Send no request."""


async def failing(task: str, base_url: str, api_key: str) -> None:
    """Send one request and fail."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task}])
    raise ValueError("the agent's own")


async def hanging(task: str, base_url: str, api_key: str) -> None:
    """Send one request and never end."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": task}])
    await asyncio.sleep(3600)


async def by_responses(task: str, base_url: str, api_key: str) -> str:
    """Run the loop of `calculating` with the Responses API, which stores the conversation."""
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    items, before = task, openai.omit
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(4):
            response = await client.responses.create(
                model="policy", input=items, tools=tools, previous_response_id=before
            )
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return response.output_text
            results = [(call.call_id, run_tool(json.loads(call.arguments))) for call in calls]
            items = [{"type": "function_call_output", "call_id": id, "output": result} for id, result in results]
            before = response.id
    return "out of turns"


async def by_messages(task: str, anthropic_base_url: str, api_key: str) -> str:
    """Run the same loop with the streaming API of Anthropic."""
    import anthropic  # takes a second, which others do not wait for

    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in TOOLS)
    ]
    messages = [{"role": "user", "content": task}]
    async with anthropic.AsyncAnthropic(base_url=anthropic_base_url, api_key=api_key) as client:
        for _ in range(4):
            stream_context = client.messages.stream(model="policy", messages=messages, tools=tools, max_tokens=100)
            async with stream_context as stream:
                response = await stream.get_final_message()
            messages.append({"role": "assistant", "content": [block.to_dict() for block in response.content]})
            calls = [block for block in response.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in response.content)
            results = [(call.id, run_tool(call.input)) for call in calls]
            results_content = [{"type": "tool_result", "tool_use_id": id, "content": result} for id, result in results]
            messages.append({"role": "user", "content": results_content})
    return "out of turns"


async def interleaving(task, base_url):
    """Alternate the requests of three agents: two with the same messages, one without tools."""
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
    """Require a call in the second request."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        for choice in ("auto", "required"):
            await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": task}], tools=TOOLS, tool_choice=choice
            )


async def branching(task, base_url):
    """Send one request, and then two at once that extend its answer; the first of them is followed by a summary."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:

        async def ask(history):
            completion = await client.chat.completions.create(model="policy", messages=history)
            message = completion.choices[0].message
            return [*history, {"role": "assistant", "content": message.content or ""}]

        root = await ask([{"role": "user", "content": task}])
        ends = await asyncio.gather(*(ask([*root, {"role": "user", "content": part}]) for part in BRANCHES))
        await ask([*ends[1], {"role": "user", "content": "more"}])
        await ask([{"role": "user", "content": "In short: " + task}])


BRANCHES = ("left", "right")


async def sending_at_once(task, base_url):
    """Send three requests of separate conversations at once, each followed by a second one."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:

        async def work(name):
            history = [{"role": "user", "content": f"{task} {name}"}]
            for _ in range(2):
                completion = await client.chat.completions.create(model=f"policy:{name}", messages=history)
                content = completion.choices[0].message.content or ""
                history += [{"role": "assistant", "content": content}, {"role": "user", "content": "on"}]

        await asyncio.gather(*map(work, ("a", "b", "c")))
