"""Train an unmodified LangGraph agent: only the `base_url` of its model is set.

python examples/langgraph_agent.py [RUN_DIR]

Requires: pip install langgraph langchain-openai 'whetstone-rl[serve]'
"""

import ssl
import sys
from pathlib import Path
from typing import Any

import httpx
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from own_agent import calculate, halve

import whetstone
from whetstone.tools import effects
from whetstone.training import RunSummary

TOOLS = [tool(calculate), tool(halve)]
TRUSTED = ssl.create_default_context()
"""Loaded once: loading it in every client would take longer than all model responses of an episode."""
PLAIN = httpx.Client(verify=TRUSTED)
"""Synchronous client, which is never used; without it, one would be created for each address."""


@effects("read")
async def agent(task: str, base_url: str, api_key: str) -> str:
    """Alternate between model and tools until the model makes no call."""
    async with httpx.AsyncClient(verify=TRUSTED) as http:
        clients = {"http_async_client": http, "http_client": PLAIN}
        model = ChatOpenAI(model="policy", base_url=base_url, api_key=api_key, **clients).bind_tools(TOOLS)

        async def think(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("think", think)
        graph.add_node("tools", ToolNode(TOOLS))
        graph.add_edge(START, "think")
        graph.add_conditional_edges("think", tools_condition)
        graph.add_edge("tools", "think")
        state = await graph.compile().ainvoke({"messages": [("user", task)]})
        return state["messages"][-1].text


def main(run_dir: str = "runs/langgraph-agent", **sections: Any) -> RunSummary:
    """Train with a warm-up on demonstrations, then reinforcement."""
    recipe = whetstone.load_recipe(Path(__file__).with_name("calculating.yaml"), **sections)
    run = whetstone.train(recipe.with_changes(environment={"function": agent}), run_dir)
    print(f"{run.before.success:.0%} → {run.after.success:.0%}")
    return run


if __name__ == "__main__":
    main(*sys.argv[1:])
