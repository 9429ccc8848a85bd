"""Train an unmodified agent with an OpenAI client: only the `base_url` of the client is set.

python examples/own_agent.py [RUN_DIR]

Requires the client: pip install openai 'whetstone-rl[serve]'
"""

import json
import ssl
import sys
from pathlib import Path
from typing import Any

import openai

import whetstone
from whetstone.tools import effects
from whetstone.training import RunSummary


def calculate(expression: str) -> str:
    """One operation, such as 12*34."""
    for sign, operation in (("*", int.__mul__), ("+", int.__add__), ("-", int.__sub__)):
        one, symbol, other = expression.partition(sign)
        if symbol and one.strip().isdigit() and other.strip().isdigit():
            return str(operation(int(one), int(other)))
    raise ValueError("one operation on two whole numbers")


def halve(number: int) -> str:
    """Half of a number."""
    return str(number / 2)


def declared(function: Any, **parameters: str) -> dict[str, Any]:
    """Return the declaration of a tool in the OpenAI format."""
    properties = {name: {"type": kind} for name, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    about = {"name": function.__name__, "description": function.__doc__, "parameters": schema}
    return {"type": "function", "function": about}


TOOLS = {"calculate": calculate, "halve": halve}
DECLARED = [declared(calculate, expression="string"), declared(halve, number="integer")]
TRUSTED = ssl.create_default_context()
"""Loaded once: loading it in every client would take longer than all model responses of an episode."""


@effects("read")
async def agent(task: str, base_url: str, api_key: str) -> str:
    """Alternate between model and tools until the model makes no call."""
    messages: list[Any] = [{"role": "user", "content": task}]
    http = openai.DefaultAsyncHttpxClient(verify=TRUSTED)
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http) as client:
        for _ in range(5):
            response = await client.chat.completions.create(model="policy", messages=messages, tools=DECLARED)  # type: ignore
            message = response.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                function: Any = call.function  # type: ignore
                try:
                    result = TOOLS[function.name](**json.loads(function.arguments))
                except Exception as error:
                    result = f"{type(error).__name__}: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "no answer"


def main(run_dir: str = "runs/own-agent", **sections: Any) -> RunSummary:
    """Train with a warm-up on demonstrations, then reinforcement."""
    recipe = whetstone.load_recipe(Path(__file__).with_name("calculating.yaml"), **sections)
    run = whetstone.train(recipe.with_changes(environment={"function": agent}), run_dir)
    print(f"{run.before.success:.0%} → {run.after.success:.0%}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
