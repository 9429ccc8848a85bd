"""Train an unmodified agent of the OpenAI Agents SDK: only the `base_url` of its client is set.

python examples/agents_sdk_agent.py [RUN_DIR]

Requires: pip install openai-agents 'whetstone-rl[serve]'
"""

import ssl
import sys
from pathlib import Path
from typing import Any

import openai
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner, function_tool
from own_agent import calculate, halve

import whetstone
from whetstone.tools import effects
from whetstone.training import RunSummary

TOOLS = [function_tool(calculate), function_tool(halve)]
TRUSTED = ssl.create_default_context()
"""Loaded once: loading it in every client would take longer than all model responses of an episode."""


@effects("read")
async def agent(task: str, base_url: str, api_key: str, wire: Any = OpenAIResponsesModel) -> str:
    """Run the agent with the Responses API, the default of the SDK."""
    http = openai.DefaultAsyncHttpxClient(verify=TRUSTED)
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http) as client:
        calculating = Agent(name="calculating", tools=TOOLS, model=wire("policy", client))
        done = await Runner.run(calculating, task, max_turns=5, run_config=RunConfig(tracing_disabled=True))
    return str(done.final_output)


@effects("read")
async def chatting(task: str, base_url: str, api_key: str) -> str:
    """Run the agent with the chat completions API."""
    return await agent(task, base_url, api_key, OpenAIChatCompletionsModel)


def main(run_dir: str = "runs/agents-sdk-agent", **sections: Any) -> RunSummary:
    """Train with a warm-up on demonstrations, then reinforcement."""
    recipe = whetstone.load_recipe(Path(__file__).with_name("calculating.yaml"), **sections)
    run = whetstone.train(recipe.with_changes(environment={"function": agent}), run_dir)
    print(f"{run.before.success:.0%} → {run.after.success:.0%}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
