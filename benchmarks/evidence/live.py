"""Live learning of a user's preference: number of corrections with hints, with rewards, and with both.

A policy that guesses one of four letters receives four alternating questions of a user with a hidden preference, whose
reply is "Thanks!" or "No, Q." (`letters.py`). It trains while it serves, on hints and rewards, only rewards, or only
hints. Three users; each interaction is an episode of two requests through the official client.

`--folder` stores the runs; finished ones are reused. Claims are those of evidence/benchmarks/live.yaml; `--write`
stores the result in benchmarks/results/evidence.
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

from claims.bench_settings import read_bench
from claims.evidence import build_result, build_row
from evidence import BENCHES, describe_machine, page, store_result
from letter_preferences import QUESTIONS, live_recipe, talk, taste, train_guessing_policy
from whetstone.serving.online.service import LiveService

CONTENDERS: dict[str, dict[str, Any]] = {
    "hints and rewards": {},
    "rewards only": {"hint_weight": 0.0},
    "hints only": {"reward_weight": 0.0},
}


async def run_interactions(
    checkpoint: Path, folder: Path, contender: str, *, seed: int, interactions: int
) -> list[bool]:
    """Run the interactions and return whether each first answer was right."""
    preferred = taste(seed)
    live = {"turns_per_update": 4, "reference_kl": 0.02, **CONTENDERS[contender]}
    recipe = live_recipe(checkpoint, folder.with_suffix(".jsonl"), preferred, live)
    are_right = []
    async with LiveService(recipe, folder, name="letters") as service:
        for number in range(interactions):
            question = QUESTIONS[number % len(QUESTIONS)]
            seeded = 1000 * seed + 2 * number
            are_right.append(await talk(service.app, number, question, preferred, seed=seeded))
            await service.live.wait_idle()  # makes the result independent of timing
    return are_right


def main() -> None:
    """Run all contenders, print the table, and optionally store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--interactions", type=int, default=64)
    parser.add_argument("--block", type=int, default=16, help="interactions per reported fraction")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/bench-live"), help="folder of runs; finished ones are reused"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help="store the result in benchmarks/results/evidence")
    arguments = parser.parse_args()
    settings, block = read_bench(BENCHES / "live.yaml"), arguments.block
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    checkpoint = train_guessing_policy(arguments.folder / "guessing")
    for seed in range(arguments.seeds):
        for contender in CONTENDERS:
            folder = arguments.folder / f"{contender.replace(' ', '-')}-{seed}-{arguments.interactions}"
            stored_path = folder.with_suffix(".json")
            if not stored_path.is_file():
                shutil.rmtree(folder, ignore_errors=True)  # an interrupted run
                work = run_interactions(checkpoint, folder, contender, seed=seed, interactions=arguments.interactions)
                stored_path.write_text(json.dumps(asyncio.run(work)))
            right = [float(each) for each in json.loads(stored_path.read_text())]
            measures = {"success": statistics.fmean(right[-block:]), "all interactions": statistics.fmean(right)}
            for start in range(0, len(right), block):
                measures[f"{start + 1} to {start + block}"] = statistics.fmean(right[start : start + block])
            rows.setdefault(contender, {})[seed] = build_row(settings, contender, seed, measures, right[-block:])
            if contender == next(iter(CONTENDERS)):
                first = right[:block]
                rows.setdefault("before", {})[seed] = build_row(
                    settings, "before", seed, {"success": statistics.fmean(first)}, first
                )
            print(contender, seed, measures, file=sys.stderr, flush=True)
    result = build_result("live", settings, rows, world="demo", machine=describe_machine(), budget={}, tasks=block)
    if arguments.write:
        store_result(result)
    print(json.dumps(result) if arguments.json else page(result))


if __name__ == "__main__":
    main()
