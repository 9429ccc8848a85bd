"""What do requests of their own, partial rollouts and balancing by prefixes win, one after the other? AgentMath
2512.20745 claims four to five times of all three over a loop in which everyone waits for everyone.

The demo behind its warm-up, with a calculator that takes a while, one environment worker and two engine replicas on
Ray. From the same weights, each way adding one thing to the way before: turn by turn, nobody going on before every tool
has answered; request by request; updates that run ahead, turns under way finished with the weights they began with;
turns going on with new weights in the middle; and replicas chosen by what they have of a prompt.
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
    """Tools that answer when every episode under way in this process has asked for one."""

    _playing = 0
    _waiting: tuple[asyncio.Future[None], ...] = ()

    async def reset(self, task: Task, *, seed: int) -> Observation:
        """See `Environment.reset`."""
        TurnByTurn._playing += 1
        return await super().reset(task, seed=seed)

    async def step(self, action: Message) -> StepResult:
        """See `Environment.step`."""
        result = await super().step(action)
        mine = asyncio.get_running_loop().create_future()
        TurnByTurn._waiting += (mine,)
        self._go_on()
        await mine
        return result

    async def close(self) -> None:
        """See `Environment.close`."""
        TurnByTurn._playing -= 1
        self._go_on()
        await super().close()

    @staticmethod
    def _go_on() -> None:
        if len(TurnByTurn._waiting) >= TurnByTurn._playing:
            waiting, TurnByTurn._waiting = TurnByTurn._waiting, ()
            for each in waiting:
                if not each.done():
                    each.set_result(None)


def main() -> None:
    """Run the benchmark."""
    bench(__doc__, "requests_balanced", WAYS, found=found, page=page)


def found(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What each way wins over the way before, and all of them together."""
    names = list(WAYS)
    return {
        "ratios": {
            "all": statistics.median(quicker(rows, names[0], names[-1])),
            **{other: statistics.median(quicker(rows, one, other)) for one, other in pairwise(names)},
        },
        "goal": "4 to 5 of the loop in which everyone waits, which AgentMath reports",
    }


def page(said: dict[str, Any]) -> str:
    """The results for a reader."""
    measured, ratios = said["measured"], said["ratios"]
    lines = [
        "# Requests of their own, partial rollouts, replicas chosen by prefixes",
        "",
        f"`python benchmarks/requests_balanced.py --policy FOLDER --seeds {measured['seeds']} --steps "
        f"{measured['steps']} --write`, {said['machine']['cores']} cores: the demo with a calculator that takes half "
        "a second in the median, on Ray with one environment worker and two engine replicas; 128 episodes an update. "
        "Each way adds one thing to the way before.",
        "",
        *table(measured["runs"]),
        "",
        "| what is added | times less a step, the median over seeds |",
        "| --- | --- |",
        *(f"| {name} | {ratio:.2f} |" for name, ratio in ratios.items() if name != "all"),
        f"| all | {ratios['all']:.2f} |",
        "",
        "Turns that go on with new weights in their middle, and replicas chosen by prefixes, win or lose a few per "
        "cent here, which two seeds do not tell from noise: turns and prompts are short, and eight tenths of the "
        "prompts' tokens are at hand either way.",
        "",
        "AgentMath, arXiv:2512.20745, reports four to five times of all three, on GPUs.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
