"""After how many interactions need a user not correct the policy any more, and what do hints and rewards each do?

A policy that guesses one of four letters is asked four questions in turn by a user with a taste of his own, who says
"Thanks!" or "No, Q." (`letters.py`). It learns while it serves: from hints and rewards, from rewards alone, from hints
alone. Three users; each interaction is an episode of two requests through the official client.

Runs that were made are kept in `--folder` and not made again. Claims are those of benchmarks/evidence/live.yaml;
`--write` keeps the result among benchmarks/results/evidence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from evidence import BENCHES, keep, machine, page
from letters import QUESTIONS, guessing_policy, live_recipe, talk, taste
from whetstone.analysis.evidence import read_bench, result_of, row_of
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
    """Run them, print the table, and keep it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--interactions", type=int, default=64)
    parser.add_argument("--block", type=int, default=16, help="interactions a share is told of")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-live"), help="where runs are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="keep the result among benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings, block = read_bench(BENCHES / "live.yaml"), arguments.block
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    checkpoint = guessing_policy(arguments.folder / "guessing")
    for seed in range(arguments.seeds):
        for contender in CONTENDERS:
            folder = arguments.folder / f"{contender.replace(' ', '-')}-{seed}-{arguments.interactions}"
            made = folder.with_suffix(".json")
            if not made.is_file():
                shutil.rmtree(folder, ignore_errors=True)  # half of a run that was stopped
                work = talked(checkpoint, folder, contender, seed=seed, interactions=arguments.interactions)
                made.write_text(json.dumps(asyncio.run(work)))
            right = [float(each) for each in json.loads(made.read_text())]
            measures = {"success": statistics.fmean(right[-block:]), "all interactions": statistics.fmean(right)}
            for start in range(0, len(right), block):
                measures[f"{start + 1} to {start + block}"] = statistics.fmean(right[start : start + block])
            rows.setdefault(contender, {})[seed] = row_of(settings, contender, seed, measures, right[-block:])
            if contender == next(iter(CONTENDERS)):
                first = right[:block]
                rows.setdefault("before", {})[seed] = row_of(
                    settings, "before", seed, {"success": statistics.fmean(first)}, first
                )
            print(contender, seed, measures, file=sys.stderr, flush=True)
    told = result_of("live", settings, rows, world="demo", machine=machine(), budget={}, tasks=block)
    if arguments.write:
        keep(told)
    print(json.dumps(told) if arguments.json else page(told))


if __name__ == "__main__":
    main()
