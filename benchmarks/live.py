"""After how many interactions need a user not correct the policy any more, and what do hints and rewards each do?

A policy that guesses one of four letters is asked four questions in turn by a user with a taste of his own, who says
"Thanks!" or "No, Q." (`letters.py`). It learns while it serves: from hints and rewards, from rewards alone, from hints
alone. Three users; each interaction is an episode of two requests through the official client.

Runs that were made are kept in `--folder` and not made again. `--write FOLDER` puts the table into FOLDER/live.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from circumstances import circumstances
from letters import QUESTIONS, guessing_policy, live_recipe, talk, taste
from publishing import publish, with_publishing
from whetstone.serving.live.service import LiveService

CONTENDERS: dict[str, dict[str, Any]] = {
    "hints and rewards": {},
    "rewards alone": {"hint_weight": 0.0},
    "hints alone": {"reward_weight": 0.0},
}


async def talked(checkpoint: Path, folder: Path, contender: str, *, seed: int, interactions: int) -> list[bool]:
    """Whether the first answer of each interaction was right, in order."""
    wanted = taste(seed)
    live = {"turns_per_update": 4, "reference_kl": 0.02, **CONTENDERS[contender]}
    recipe = live_recipe(checkpoint, folder.with_suffix(".jsonl"), wanted, live)
    found = []
    async with LiveService(recipe, folder, name="letters") as service:
        for number in range(interactions):
            question = QUESTIONS[number % len(QUESTIONS)]
            seeded = 1000 * seed + 2 * number
            found.append(await talk(service.app, number, question, wanted, seed=seeded))
            await service.live.settled()  # so that timing decides nothing
    return found


def main() -> None:
    """Run them, print the table, and write it where asked."""
    parser = with_publishing(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--interactions", type=int, default=64)
    parser.add_argument("--block", type=int, default=16, help="interactions a share is told of")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-live"), help="where runs are kept")
    arguments = parser.parse_args()
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    checkpoint = guessing_policy(arguments.folder / "guessing")
    for seed in range(arguments.seeds):
        for contender in CONTENDERS:
            folder = arguments.folder / f"{contender.replace(' ', '-')}-{seed}-{arguments.interactions}"
            made = folder.with_suffix(".json")
            if not made.is_file():
                shutil.rmtree(folder, ignore_errors=True)  # half of a run that was stopped
                work = talked(checkpoint, folder, contender, seed=seed, interactions=arguments.interactions)
                made.write_text(json.dumps(asyncio.run(work)))
            right = json.loads(made.read_text())
            rows.append({"seed": seed, "contender": contender, "right": right})
            print(contender, seed, shares(right, arguments.block), file=sys.stderr, flush=True)
    budget = {key: getattr(arguments, key) for key in ("seeds", "interactions", "block")}
    told = {"name": "live", "measured": {"runs": rows, "budget": budget}, **circumstances(began)}
    publish(told, table_of, arguments)


def shares(right: list[bool], block: int) -> list[float]:
    """The share of right first answers in each block of interactions."""
    return [statistics.fmean(right[start : start + block]) for start in range(0, len(right), block)]


def table_of(told: dict[str, Any]) -> str:
    """The table as a page."""
    budget, rows = told["measured"]["budget"], told["measured"]["runs"]
    block = budget["block"]
    heads = [f"{start + 1}–{start + block}" for start in range(0, budget["interactions"], block)]
    lines = [
        "# Learning while serving",
        "",
        "The share of first answers the user need not correct, in blocks of interactions: the mean over "
        f"{budget['seeds']} users,",
        "and each of them in brackets. The policy begins by guessing one of four letters, answer by answer. Four",
        "judged answers make an update. `make bench NAME=live`.",
        "",
        f"| learns from | {' | '.join(heads)} |",
        f"| --- |{' --- |' * len(heads)}",
    ]
    for contender in CONTENDERS:
        each = [shares(row["right"], block) for row in rows if row["contender"] == contender]
        cells = []
        for of in zip(*each, strict=True):
            cells.append(f"{100 * statistics.fmean(of):.0f} % ({' '.join(f'{100 * share:.0f}' for share in of)})")
        lines.append(f"| {contender} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
