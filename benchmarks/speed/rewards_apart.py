"""Gain of dedicated reward workers with asynchronous episodes, as RollArt (arXiv:2512.22560) claims.

The demo after its warm-up, with a slow calculator and a reward that blocks its process (a non-blocking reward would
gain nothing). Three runs from the same weights: synchronous in one process; asynchronous on Ray; and asynchronous with
two dedicated reward workers.
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
    """Score the answer and block the process meanwhile."""
    time.sleep(JUDGE_SECONDS)  # noqa: ASYNC251 - blocking is intended
    return await exact_number(trajectory, task)


def main() -> None:
    """Run the benchmark."""
    bench(__doc__, "rewards_apart", WAYS, summarize_rows=compute_gains, page=page)


def compute_gains(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the gain of dedicated reward workers, with and without that of asynchronous updates."""
    return {
        "measured": {"judge_seconds": JUDGE_SECONDS},
        "ratios": {
            "vs_one_process": statistics.median(quicker(rows, ONE, APART)),
            "of_judging_apart": statistics.median(quicker(rows, AMONG, APART)),
        },
        "goal": "1.35 to 2.05 of one process, which RollArt reports end to end",
    }


def page(result: dict[str, Any]) -> str:
    """Return the page of the results."""
    measured, ratios = result["measured"], result["ratios"]
    lines = [
        "# Judged apart from where episodes are played",
        "",
        f"`python -m benchmarks rewards_apart --policy FOLDER --seeds {measured['seeds']} --steps {measured['steps']} "
        f"--write`, {result['machine']['cores']} cores: the demo with a calculator that takes half a second in the "
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
