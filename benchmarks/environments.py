"""How fast is each environment, how much is ours of it, and does anything stay behind?

    speed      steps and episodes a second, alone and 64 side by side, of a random policy
    overhead   a step of ours against the same step of the bare package, in one run; the goal is 1.1 at most
    soak       episodes of a mixed pool, one after the other and side by side: processes, threads, descriptors, memory

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
from whetstone.cli.environments import contract_of
from whetstone.environments.dependencies import check_needs
from whetstone.environments.hosting import host_counts
from whetstone.errors import RecipeError
from whetstone.evaluation.contract import Contract, RandomPolicy, play

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
    """What is measured of an environment; None where its package is not installed."""
    try:
        return contract_of(name, {"actions": "text", **OTHERS[name]} if name in OTHERS else {})
    except RecipeError:
        return None


async def speed(looked_at: Contract, episodes: int, together: int) -> dict[str, float]:
    """Steps and episodes a second."""

    async def one(index: int) -> tuple[int, float]:
        task = looked_at.source.task(index % 16)
        played = await play(looked_at.make, task, RandomPolicy(index).action, seed=index, max_turns=30)
        return len(played.actions), played.seconds

    for index in range(3):
        await one(index)
    alone = [await one(index) for index in range(episodes)]
    began = time.perf_counter()
    beside = await asyncio.gather(*map(one, range(together)))
    seconds = time.perf_counter() - began
    return {
        "steps": statistics.median(steps / s for steps, s in alone),
        "episodes": 1 / statistics.median(s for _, s in alone),
        "steps_64": sum(steps for steps, _ in beside) / seconds,
        "episodes_64": together / seconds,
    }


# ------------------------------------------------------------ ours against the package's own step


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
        """What anybody has to do for a text agent: find the move, let the other move, show the board and the moves."""
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
    """Medians of a step of the package's and of ours, in turn, in microseconds."""
    from whetstone.environments import ENVIRONMENTS, played
    from whetstone.trajectory import Task

    made, options, private = BARE[name]
    try:
        check_needs(name, ENVIRONMENTS[name].needs)
    except RecipeError:
        return None
    reset, step, actions = made()
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(rounds):
        reset()
        for action in actions:
            began = time.perf_counter()
            step(action)
            bare.append(time.perf_counter() - began)
        environment = played(ENVIRONMENTS[name])(actions="text", **options)
        await environment.reset(Task("bench", "", private), seed=1)
        for action in actions:
            said = assistant(action)
            began = time.perf_counter()
            await environment.step(said)
            ours.append(time.perf_counter() - began)
        await environment.close()
    one, other = statistics.median(bare), statistics.median(ours)
    return {"bare_us": 1e6 * one, "ours_us": 1e6 * other, "ratio": other / one}


# ------------------------------------------------------------ whether anything stays


def held() -> dict[str, float]:
    """What this process and its children hold."""
    gc.collect()
    us = psutil.Process()
    return {
        "processes": len(us.children(recursive=True)),
        "threads": threading.active_count(),
        "descriptors": us.num_fds(),
        "megabytes": us.memory_info().rss / 2**20,
        "open_games": host_counts().open_games,
    }


async def soak(episodes: int, together: int) -> dict[str, Any]:
    """So many episodes of a mixed pool, every kind of hosting among them; what is held on the way."""
    pool: list[Contract] = []
    for name in (*(n for n in NATIVE if n not in SANDBOXED), "gymnasium", "openspiel", "textarena", "textworld"):
        looked_at = contract(name)
        if looked_at is not None:
            pool.append(looked_at)
    for isolation in ("thread", "process"):
        pool.append(contract_of("frozen_lake", {"isolation": isolation}))
    for name in SANDBOXED:
        pool.append(contract_of(name, {}))
    places = asyncio.Semaphore(together)
    seen: list[dict[str, float]] = []
    ended = 0

    async def one(index: int) -> None:
        nonlocal ended
        async with places:
            looked_at = pool[index % len(pool)]
            task = looked_at.source.task(index // len(pool) % 12)
            # every eleventh is cut off in the middle, as by a deadline
            playing = play(looked_at.make, task, RandomPolicy(index).action, seed=index, max_turns=6)
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
        seen.append(held())
    return {"episodes": ended, "seconds": time.perf_counter() - began, "kinds": len(pool), "held": seen}


async def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """All that was asked for."""
    found: dict[str, Any] = {}
    if "speed" in arguments.what:
        found["speed"] = {}
        for name in (*NATIVE, *OTHERS):
            looked_at = contract(name)
            if looked_at is None:
                continue
            heavy = name in SANDBOXED or name in ("scienceworld", "textworld")
            together = 8 if name == "scienceworld" else 64
            found["speed"][name] = await speed(looked_at, 5 if heavy else 40, together)
    if "overhead" in arguments.what:
        came_to = {name: await overhead(name, arguments.rounds) for name in BARE}
        found["overhead"] = {name: one for name, one in came_to.items() if one is not None}
    if "soak" in arguments.what:
        found["soak"] = await soak(arguments.episodes, 64)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--what", nargs="+", default=["speed", "overhead", "soak"], choices=["speed", "overhead", "soak"]
    )
    parser.add_argument("--episodes", type=int, default=20_000, help="of the soak")
    parser.add_argument("--rounds", type=int, default=40, help="of the overhead")
    arguments = parser.parse_args()
    began = time.perf_counter()
    found = asyncio.run(measured(arguments))
    if arguments.json:
        ratios = {f"{name}_step": 1 / one["ratio"] for name, one in found.get("overhead", {}).items()}
        print(json.dumps({
            "name": "environments", "measured": found, "ratios": ratios, "goal": {"overhead": OVERHEAD_GOAL},
            **circumstances(began),
        }))  # fmt: skip
        return
    for name, one in found.get("speed", {}).items():
        print(
            f"{name:<18} alone {one['steps']:>9,.0f} steps/s {one['episodes']:>8,.1f} episodes/s"
            f"   64 at once {one['steps_64']:>9,.0f} {one['episodes_64']:>8,.1f}"
        )
    for name, one in found.get("overhead", {}).items():
        print(
            f"{name:<18} bare {one['bare_us']:>9,.1f} µs   ours {one['ours_us']:>9,.1f} µs   {one['ratio']:.2f} times"
        )
    if "soak" in found:
        came_to = found["soak"]
        print(f"{came_to['episodes']:,} episodes of {came_to['kinds']} kinds in {came_to['seconds']:.0f} s")
        for k, one in enumerate(found["soak"]["held"], start=1):
            print(f"  {k * 10:>3} %  " + "  ".join(f"{name} {value:,.0f}" for name, value in one.items()))


if __name__ == "__main__":
    main()
