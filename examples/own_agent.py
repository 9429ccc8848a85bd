"""An agent of the kind most people have, trained as it is: of Whetstone it knows an address, as its model's `base_url`.

python examples/own_agent.py [RUN_DIR]

Needs the client it is written with: pip install openai 'whetstone-rl[serve]'
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
        one, found, other = expression.partition(sign)
        if found and one.strip().isdigit() and other.strip().isdigit():
            return str(operation(int(one), int(other)))
    raise ValueError("one operation on two whole numbers")


def halve(number: int) -> str:
    """Half of a number."""
    return str(number / 2)


def declared(function: Any, **parameters: str) -> dict[str, Any]:
    """A tool as the API wants it."""
    properties = {name: {"type": kind} for name, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    about = {"name": function.__name__, "description": function.__doc__, "parameters": schema}
    return {"type": "function", "function": about}


TOOLS = {"calculate": calculate, "halve": halve}
DECLARED = [declared(calculate, expression="string"), declared(halve, number="integer")]
TRUSTED = ssl.create_default_context()
"""Read once: a client each reads it anew, which takes longer than all of an episode's answers."""


@effects("read")
async def agent(task: str, base_url: str, api_key: str) -> str:
    """Ask the model, do what it calls for, until it answers."""
    messages: list[Any] = [{"role": "user", "content": task}]
    http = openai.DefaultAsyncHttpxClient(verify=TRUSTED)
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http) as client:
        for _ in range(5):
            told = await client.chat.completions.create(model="policy", messages=messages, tools=DECLARED)  # type: ignore
            said = told.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            if not said.tool_calls:
                return said.content or ""
            for call in said.tool_calls:
                function: Any = call.function  # type: ignore
                try:
                    result = TOOLS[function.name](**json.loads(function.arguments))
                except Exception as error:
                    result = f"{type(error).__name__}: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "no answer"


def main(run_dir: str = "runs/own-agent", **sections: Any) -> RunSummary:
    """Show the model how, then let it find out."""
    recipe = whetstone.load_recipe(Path(__file__).with_name("calculating.yaml"), **sections)
    run = whetstone.train(recipe.with_changes(environment={"function": agent}), run_dir)
    print(f"{run.before.success:.0%} → {run.after.success:.0%}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
