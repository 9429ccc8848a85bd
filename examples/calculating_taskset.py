"""A taskset of the package `verifiers` with a harness of its own: products, and a calculator to find them with.

Nothing in here knows of Whetstone. `verifiers_agent.py` trains on it, in the Python that has the package.
"""

import json
import random

import httpx
import verifiers.v1 as vf


def calculate(expression: str) -> str:
    """One operation, such as 12*34."""
    one, found, other = expression.partition("*")
    if found and one.strip().isdigit() and other.strip().isdigit():
        return str(int(one) * int(other))
    return "error: one product of two whole numbers"


PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
ABOUT = {"name": "calculate", "description": calculate.__doc__, "parameters": PARAMETERS}


class ProductData(vf.TaskData):
    """A task, as it is written down."""

    answer: int


class Product(vf.Task[ProductData]):
    """Find a product."""

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        """Whether the last reply is the number."""
        return float(trace.last_reply.strip() == str(self.data.answer))


class Products(vf.Taskset[Product, vf.TasksetConfig]):
    """Six hundred products of two-digit numbers."""

    def load(self):
        """The same each time."""
        draw = random.Random(0)
        for _ in range(600):
            a, b = draw.randint(10, 99), draw.randint(10, 99)
            yield Product(ProductData(prompt=f"Compute {a}*{b}", answer=a * b), self.config.task)


class LoopConfig(vf.HarnessConfig):
    """Nothing to say."""


class Loop(vf.Harness[LoopConfig]):
    """Ask, do what is called for, ask again; at most five times."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        """In this process, over the chat API."""
        messages = [{"role": "user", "content": data.prompt}]
        tools = [{"type": "function", "function": ABOUT}]
        url, headers = f"{endpoint}/chat/completions", {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(verify=False, timeout=None) as client:
            for _ in range(5):
                body = {"model": ctx.model, "messages": messages, "tools": tools}
                told = await client.post(url, json=body, headers=headers)
                if told.is_error:
                    return vf.ProgramResult(1, "", told.text)
                said = told.json()["choices"][0]["message"]
                messages.append(said)
                for call in said.get("tool_calls") or ():
                    try:
                        result = calculate(**json.loads(call["function"]["arguments"]))
                    except Exception as error:
                        result = f"{type(error).__name__}: {error}"
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                if not said.get("tool_calls"):
                    break
        return vf.ProgramResult(0, "", "")


__all__ = ["Loop", "Products"]
