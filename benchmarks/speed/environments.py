"""Speed of each environment, overhead over the wrapped package, and leaked resources.

    speed      steps and episodes per second of a random policy, single and 64 concurrent episodes
    overhead   a step of the environment against the same step of the bare package, in one run; at most 1.1
    soak       episodes of a mixed pool, sequential and concurrent: processes, threads, descriptors, memory

Prints a table, or one JSON object with `--json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from circumstances import circumstances
from whetstone.chat import assistant
from whetstone.cli.environments import create_contract
from whetstone.environments.dependencies import check_requirements
from whetstone.environments.hosting import copy_host_counts
from whetstone.errors import RecipeError
from whetstone.evaluation.environment_checks import Contract, RandomPolicy, play_with_policy

NATIVE = (
    "adventure", "apis", "bargaining", "battleship", "bug_repair", "chores", "frozen_lake", "household", "knapsack",
    "multi_hop_search", "negotiation", "sokoban", "support", "tables", "text_to_sql", "twenty_questions", "web_shop",
    "wordle",
)  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "gymnasium": {"id": "FrozenLake-v1"},
    "openspiel": {"id": "tic_tac_toe", "success_at": 0},
    "reasoning_gym": {"datasets": ["leg_counting"]},
    "textarena": {"id": "TicTacToe-v0"},
    "textworld": {"text": "facts", "games": 100},
    "scienceworld": {"variations": 20},
}
SANDBOXED = ("bug_repair", "chores", "tables")
OVERHEAD_GOAL = 1.1


def contract(name: str) -> Contract | None:
    """Return the contract of an environment; None if its package is not installed."""
    try:
        return create_contract(name, {"actions": "text", **OTHERS[name]} if name in OTHERS else {})
    except RecipeError:
        return None


async def speed(looked_at: Contract, episodes: int, together: int) -> dict[str, float]:
    """Measure steps and episodes per second."""

    async def one(index: int) -> tuple[int, float]:
        task = looked_at.source.task(index % 16)
        played = await play_with_policy(
            looked_at.make, task, RandomPolicy(index).choose_action, seed=index, max_turns=30
        )
        return len(played.actions), played.seconds

    for index in range(3):
        await one(index)
    sequential = [await one(index) for index in range(episodes)]
    began = time.perf_counter()
    concurrent = await asyncio.gather(*map(one, range(together)))
    seconds = time.perf_counter() - began
    return {
        "steps": statistics.median(steps / s for steps, s in sequential),
        "episodes": 1 / statistics.median(s for _, s in sequential),
        "steps_64": sum(steps for steps, _ in concurrent) / seconds,
        "episodes_64": together / seconds,
    }


# ------------------------------------------------------------ overhead over the package's own step


def _gymnasium() -> tuple[Callable[[], Any], Callable[[str], Any], list[str]]:
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    return lambda: env.reset(seed=1), lambda a: env.step(int(a)), ["0", "1"] * 6


def _textworld() -> tuple[Callable[[], Any], Callable[[str], Any], list[str]]:
    import textworld

    from whetstone.environments.adapters.textworld import game_file

    infos = textworld.EnvInfos(
        admissible_commands=True, policy_commands=True, won=True, lost=True, score=True, max_score=True,
        feedback=True, objective=True, inventory=True, facts=True, game=True,
    )  # fmt: skip
    env = textworld.start(game_file("full", 3, 4, 6, 4), infos)
    return env.reset, env.step, ["look", "inventory"] * 6


def _scienceworld() -> tuple[Callable[[], Any], Callable[[str], Any], list[str]]:
    from scienceworld import ScienceWorldEnv

    env = ScienceWorldEnv("", envStepLimit=10_000)

    def reset() -> None:
        env.load("find-plant", 0, "easy")
        env.reset()

    return reset, env.step, ["look around", "inventory"] * 6


def _textarena() -> tuple[Callable[[], Any], Callable[[str], Any], list[str]]:
    import textarena

    state: dict[str, Any] = {}

    def reset() -> None:
        state["env"] = textarena.make("GuessTheNumber-v0")
        state["env"].reset(num_players=1, seed=1)
        state["env"].get_observation()

    def step(action: str) -> None:
        state["env"].step(action)
        state["env"].get_observation()

    return reset, step, [f"[{k}]" for k in range(1, 7)]


def _openspiel() -> tuple[Callable[[], Any], Callable[[str], Any], list[str]]:
    import random

    import pyspiel

    game, draw = pyspiel.load_game("connect_four"), random.Random(1)
    state: dict[str, Any] = {}

    def reset() -> None:
        state["state"] = game.new_initial_state()

    def step(action: str) -> None:
        """Do the work that any text environment requires: parse the move, move the opponent, render the board."""
        now = state["state"]
        moves = {now.action_to_string(0, a): a for a in now.legal_actions()}
        now.apply_action(moves[action])
        now.apply_action(draw.choice(now.legal_actions()))
        now.observation_string(0)
        [now.action_to_string(0, a) for a in now.legal_actions()]

    return reset, step, ["x0", "x6"]


BARE: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "gymnasium": (_gymnasium, {"id": "CartPole-v1"}, {"id": "CartPole-v1", "seed": 1}),
    "textworld": (_textworld, {"text": "full"}, {"seed": 3, "rooms": 4, "objects": 6, "quest": 4}),
    "scienceworld": (_scienceworld, {}, {"task": "find-plant", "variation": 0}),
    "textarena": (_textarena, {"id": "GuessTheNumber-v0", "players": 1}, {"id": "GuessTheNumber-v0", "seed": 1}),
    "openspiel": (_openspiel, {"id": "connect_four"}, {"seed": 1}),
}


async def overhead(name: str, rounds: int) -> dict[str, float] | None:
    """Return the median microseconds of a step of the package and of the environment, measured alternately."""
    from whetstone.environments import ENVIRONMENTS, as_environment
    from whetstone.trajectory import Task

    factory, options, private = BARE[name]
    try:
        check_requirements(name, ENVIRONMENTS[name].needs)
    except RecipeError:
        return None
    reset, step, actions = factory()
    bare: list[float] = []
    wrapped: list[float] = []
    for _ in range(rounds):
        reset()
        for action in actions:
            began = time.perf_counter()
            step(action)
            bare.append(time.perf_counter() - began)
        environment = as_environment(ENVIRONMENTS[name])(actions="text", **options)
        await environment.reset(Task("bench", "", private), seed=1)
        for action in actions:
            message = assistant(action)
            began = time.perf_counter()
            await environment.step(message)
            wrapped.append(time.perf_counter() - began)
        await environment.close()
    one, other = statistics.median(bare), statistics.median(wrapped)
    return {"bare_us": 1e6 * one, "ours_us": 1e6 * other, "ratio": other / one}


# ------------------------------------------------------------ leaked resources


def measure_resources() -> dict[str, float]:
    """Return the resources of this process and its children."""
    gc.collect()
    us = psutil.Process()
    return {
        "processes": len(us.children(recursive=True)),
        "threads": threading.active_count(),
        "descriptors": us.num_fds(),
        "megabytes": us.memory_info().rss / 2**20,
        "open_games": copy_host_counts().open_games,
    }


async def soak(episodes: int, together: int) -> dict[str, Any]:
    """Play episodes of a mixed pool with every kind of hosting, and return the resources over time."""
    pool: list[Contract] = []
    for name in (*(n for n in NATIVE if n not in SANDBOXED), "gymnasium", "openspiel", "textarena", "textworld"):
        looked_at = contract(name)
        if looked_at is not None:
            pool.append(looked_at)
    for isolation in ("thread", "process"):
        pool.append(create_contract("frozen_lake", {"isolation": isolation}))
    for name in SANDBOXED:
        pool.append(create_contract(name, {}))
    places = asyncio.Semaphore(together)
    resources: list[dict[str, float]] = []
    ended = 0

    async def one(index: int) -> None:
        nonlocal ended
        async with places:
            looked_at = pool[index % len(pool)]
            task = looked_at.source.task(index // len(pool) % 12)
            # every eleventh episode is canceled early, as by a deadline
            playing = play_with_policy(looked_at.make, task, RandomPolicy(index).choose_action, seed=index, max_turns=6)
            if index % 11 == 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(playing, 0.002)
            else:
                await playing
            ended += 1

    marks = [episodes * k // 10 for k in range(1, 11)]
    began, first = time.perf_counter(), 0
    for mark in marks:
        await asyncio.gather(*map(one, range(first, mark)))
        first = mark
        resources.append(measure_resources())
    return {"episodes": ended, "seconds": time.perf_counter() - began, "kinds": len(pool), "held": resources}


async def run_measurements(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the selected measurements."""
    results: dict[str, Any] = {}
    if "speed" in arguments.what:
        results["speed"] = {}
        for name in (*NATIVE, *OTHERS):
            looked_at = contract(name)
            if looked_at is None:
                continue
            heavy = name in SANDBOXED or name in ("scienceworld", "textworld")
            together = 8 if name == "scienceworld" else 64
            results["speed"][name] = await speed(looked_at, 5 if heavy else 40, together)
    if "overhead" in arguments.what:
        overheads = {name: await overhead(name, arguments.rounds) for name in BARE}
        results["overhead"] = {name: one for name, one in overheads.items() if one is not None}
    if "soak" in arguments.what:
        results["soak"] = await soak(arguments.episodes, 64)
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--what", nargs="+", default=["speed", "overhead", "soak"], choices=["speed", "overhead", "soak"]
    )
    parser.add_argument("--episodes", type=int, default=20_000, help="episodes of soak")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of overhead")
    arguments = parser.parse_args()
    began = time.perf_counter()
    results = asyncio.run(run_measurements(arguments))
    if arguments.json:
        ratios = {f"{name}_step": 1 / one["ratio"] for name, one in results.get("overhead", {}).items()}
        print(json.dumps({
            "name": "environments", "measured": results, "ratios": ratios, "goal": {"overhead": OVERHEAD_GOAL},
            **circumstances(began),
        }))  # fmt: skip
        return
    for name, one in results.get("speed", {}).items():
        print(
            f"{name:<18} single {one['steps']:>9,.0f} steps/s {one['episodes']:>8,.1f} episodes/s"
            f"   64 concurrent {one['steps_64']:>9,.0f} {one['episodes_64']:>8,.1f}"
        )
    for name, one in results.get("overhead", {}).items():
        print(
            f"{name:<18} bare {one['bare_us']:>9,.1f} µs   wrapped {one['ours_us']:>9,.1f} µs   "
            f"{one['ratio']:.2f} times"
        )
    if "soak" in results:
        soak_result = results["soak"]
        print(f"{soak_result['episodes']:,} episodes of {soak_result['kinds']} kinds in {soak_result['seconds']:.0f} s")
        for k, one in enumerate(results["soak"]["held"], start=1):
            print(f"  {k * 10:>3} %  " + "  ".join(f"{name} {value:,.0f}" for name, value in one.items()))


if __name__ == "__main__":
    main()
