"""A taskset of the package `verifiers` with its own harness: products, and two tools, one of which computes them.

This file does not depend on Whetstone. `verifiers_agent.py` trains on it, with the interpreter that has the package.
"""

import json
import random

import httpx
import verifiers.v1 as vf


def calculate(expression: str) -> str:
    """One operation, such as 12*34."""
    one, symbol, other = expression.partition("*")
    if symbol and one.strip().isdigit() and other.strip().isdigit():
        return str(int(one) * int(other))
    raise ValueError("one product of two whole numbers")


def halve(number: int) -> str:
    """Half of a number."""
    return str(number / 2)


TOOLS = {"calculate": calculate, "halve": halve}
PARAMETERS = {"calculate": {"expression": {"type": "string"}}, "halve": {"number": {"type": "integer"}}}


def declared(name: str) -> dict:
    """Return the declaration of a tool in the OpenAI format."""
    schema = {"type": "object", "properties": PARAMETERS[name], "required": list(PARAMETERS[name])}
    about = {"name": name, "description": TOOLS[name].__doc__, "parameters": schema}
    return {"type": "function", "function": about}


class ProductData(vf.TaskData):
    """Stored data of a task."""

    answer: int


class Product(vf.Task[ProductData]):
    """Find a product."""

    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        """Return 1 if the last reply is the number."""
        return float(trace.last_reply.strip() == str(self.data.answer))


class Products(vf.Taskset[Product, vf.TasksetConfig]):
    """Six hundred products of two-digit numbers."""

    def load(self):
        """Yield the same tasks every time."""
        draw = random.Random(0)
        for _ in range(600):
            a, b = draw.randint(10, 99), draw.randint(10, 99)
            yield Product(ProductData(prompt=f"Compute {a}*{b}", answer=a * b), self.config.task)


class LoopConfig(vf.HarnessConfig):
    """Configuration without options."""


class Loop(vf.Harness[LoopConfig]):
    """Alternate between model and tools, at most five times."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        """Run the loop in this process, with the chat completions API."""
        messages = [{"role": "user", "content": data.prompt}]
        tools = [declared(name) for name in TOOLS]
        url, headers = f"{endpoint}/chat/completions", {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(verify=False, timeout=None) as client:
            for _ in range(5):
                body = {"model": ctx.model, "messages": messages, "tools": tools}
                response = await client.post(url, json=body, headers=headers)
                if response.is_error:
                    return vf.ProgramResult(1, "", response.text)
                message = response.json()["choices"][0]["message"]
                messages.append(message)
                for call in message.get("tool_calls") or ():
                    try:
                        result = TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
                    except Exception as error:
                        result = f"{type(error).__name__}: {error}"
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
                if not message.get("tool_calls"):
                    break
        return vf.ProgramResult(0, "", "")


__all__ = ["Loop", "Products"]
