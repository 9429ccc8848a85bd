"""What does it win to judge apart from where episodes are played? RollArt 2512.22560 claims it of rewards on machines
of their own, with episodes that do not wait for one another.

The demo behind its warm-up, with a calculator that takes a while and a judge that holds up its process for as long as
it judges (one that waits without holding anything up would win nothing). Three runs from the same weights: everything
in one process, update by update; the same on Ray with updates that run ahead; and that with two workers who do nothing
but judge.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slow_tools import AHEAD, ON_RAY, bench, quicker, table
from whetstone.rewards.answers.exact_number import exact_number
from whetstone.trajectory import Score, Task, Trajectory

JUDGE_SECONDS = 0.03
ONE, AMONG, APART = (
    "one process, update by update",
    "Ray, ahead, judged where it is played",
    "Ray, ahead, two workers judge",
)
JUDGED = ["reward=rewards_apart:judged_slowly"]
WAYS = {
    ONE: JUDGED,
    AMONG: [*JUDGED, *AHEAD, *ON_RAY],
    APART: [*JUDGED, *AHEAD, *ON_RAY, "scale.reward_workers=2"],
}


async def judged_slowly(trajectory: Trajectory, task: Task) -> Score:
    """The number is right; whoever asks is held up meanwhile."""
    time.sleep(JUDGE_SECONDS)  # noqa: ASYNC251 - that is what it is for
    return await exact_number(trajectory, task)


def main() -> None:
    """Run the benchmark."""
    bench(__doc__, "rewards_apart", WAYS, found=found, page=page)


def found(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What judging apart wins, with running ahead and of it alone."""
    return {
        "measured": {"judge_seconds": JUDGE_SECONDS},
        "ratios": {
            "vs_one_process": statistics.median(quicker(rows, ONE, APART)),
            "of_judging_apart": statistics.median(quicker(rows, AMONG, APART)),
        },
        "goal": "1.35 to 2.05 of one process, which RollArt reports end to end",
    }


def page(said: dict[str, Any]) -> str:
    """The results for a reader."""
    measured, ratios = said["measured"], said["ratios"]
    lines = [
        "# Judged apart from where episodes are played",
        "",
        f"`python benchmarks/rewards_apart.py --policy FOLDER --seeds {measured['seeds']} --steps {measured['steps']} "
        f"--write`, {said['machine']['cores']} cores: the demo with a calculator that takes half a second in the "
        f"median, and a judge that holds up its process for {1000 * measured['judge_seconds']:.0f} ms an episode; 128 "
        "episodes an update.",
        "",
        *table(measured["runs"]),
        "",
        f"Running ahead with judges apart takes {ratios['vs_one_process']:.2f} times less than one process, and "
        f"{ratios['of_judging_apart']:.2f} times less than running ahead with the judge among the episodes (medians "
        "over seeds). RollArt, arXiv:2512.22560, reports 1.35 to 2.05 times end to end, on GPUs.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
