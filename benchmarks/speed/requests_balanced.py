"""Gains of independent requests, partial rollouts and prefix-aware balancing, added one after the other.

AgentMath (arXiv:2512.20745) claims a factor of four to five of all three over a fully synchronous loop. The demo after
its warm-up, with a slow calculator, one environment worker and two engine replicas on Ray. From the same weights, each
way adds one feature: turns in lockstep that wait for every tool; independent requests; asynchronous updates whose turns
in flight finish with old weights; turns that continue with new weights; and replicas selected by cached prefixes.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from slow_tools import AHEAD, ON_RAY, bench, quicker, table
from whetstone.chat import Message
from whetstone.environments import Observation, StepResult
from whetstone.environments.tool_environment import ToolEnvironment
from whetstone.trajectory import Task

TWO = [*ON_RAY, "scale.engine_replicas=2"]
BY_LOAD = "scale.routing=load"
WAYS = {
    "turn by turn": [*TWO, BY_LOAD, "environment.name=requests_balanced:TurnByTurn"],
    "request by request": [*TWO, BY_LOAD],
    "and ahead, turns whole": [*TWO, BY_LOAD, *AHEAD, "reinforcement.in_flight=drain"],
    "and turns in parts": [*TWO, BY_LOAD, *AHEAD],
    "and by prefixes": [*TWO, *AHEAD],
}


class TurnByTurn(ToolEnvironment):
    """Tools that respond once every running episode of this process has called one."""

    _playing = 0
    _waiting: tuple[asyncio.Future[None], ...] = ()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """See `Environment.reset`."""
        TurnByTurn._playing += 1
        return await super().reset(task, seed=seed)

    async def step(self, action: Message) -> StepResult:
        """See `Environment.step`."""
        result = await super().step(action)
        future = asyncio.get_running_loop().create_future()
        TurnByTurn._waiting += (future,)
        self._release()
        await future
        return result

    async def close(self) -> None:
        """See `Environment.close`."""
        TurnByTurn._playing -= 1
        self._release()
        await super().close()

    @staticmethod
    def _release() -> None:
        if len(TurnByTurn._waiting) >= TurnByTurn._playing:
            waiting, TurnByTurn._waiting = TurnByTurn._waiting, ()
            for each in waiting:
                if not each.done():
                    each.set_result(None)


def main() -> None:
    """Run the benchmark."""
    bench(__doc__, "requests_balanced", WAYS, summarize_rows=compute_gains, page=page)


def compute_gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the gain of each way over the previous one, and of all together."""
    names = list(WAYS)
    return {
        "ratios": {
            "all": statistics.median(quicker(rows, names[0], names[-1])),
            **{other: statistics.median(quicker(rows, one, other)) for one, other in pairwise(names)},
        },
        "goal": "4 to 5 of the loop in which everyone waits, which AgentMath reports",
    }


def page(result: dict[str, Any]) -> str:
    """Return the page of the results."""
    measured, ratios = result["measured"], result["ratios"]
    lines = [
        "# Independent requests, partial rollouts, prefix-aware replicas",
        "",
        f"`python -m benchmarks requests_balanced --policy FOLDER --seeds {measured['seeds']} --steps "
        f"{measured['steps']} --write`, {result['machine']['cores']} cores: the demo with a calculator that takes half "
        "a second in the median, on Ray with one environment worker and two engine replicas; 128 episodes an update. "
        "Each way adds one thing to the way before.",
        "",
        *table(measured["runs"]),
        "",
        "| feature | speedup per step, median over seeds |",
        "| --- | --- |",
        *(f"| {name} | {ratio:.2f} |" for name, ratio in ratios.items() if name != "all"),
        f"| all | {ratios['all']:.2f} |",
        "",
        "Turns that continue with new weights, and replicas selected by prefixes, gain or lose a few percent here, "
        "which two seeds do not distinguish from noise: turns and prompts are short, and 80 % of the prompt tokens "
        "are cached either way.",
        "",
        "AgentMath, arXiv:2512.20745, reports four to five times of all three, on GPUs.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
