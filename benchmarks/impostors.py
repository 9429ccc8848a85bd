"""Does anybody win without doing the task? Impostors over every world, every adapter and every recipe.

    worlds, adapters   the check "nothing for nothing" of `whetstone environments check`
    recipes            the checks of `whetstone rewards audit`; recipes of the same tasks, world and reward are one line

Each is tried in a process of its own, so that one that hangs or ends its process is a line of the table, and no more.
What was found is written behind each, and is not tried again; `--again` begins anew. What is not installed is said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from circumstances import circumstances
from environments import NATIVE
from whetstone import assembly
from whetstone.cli.environments import contract_of
from whetstone.errors import WhetstoneError
from whetstone.evaluation.audit import Audit
from whetstone.evaluation.checks import CheckStatus
from whetstone.evaluation.contract.impostors import NEVER_ACT
from whetstone.evaluation.contract.nothing import Nothing
from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe
from whetstone.renames import COMPONENTS, RECIPES

RESULTS = Path(__file__).parent / "results"
_DATA = Path(os.environ.get("WHETSTONE_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""Where `tau2/retail` and `gsm8k` are, if anywhere; said by WHETSTONE_DATA."""
_LONGEST = 150
"""Seconds a line may take."""
_GYMNASIUM = (
    "Acrobot-v1", "Blackjack-v1", "CartPole-v1", "FrozenLake-v1", "MountainCar-v0", "Taxi-v4",
    "MiniGrid-Empty-5x5-v0", "BabyAI-GoToLocal-v0",
)  # fmt: skip
_OPENSPIEL = (
    "backgammon", "breakthrough", "chess", "clobber", "connect_four", "go", "havannah", "hex", "kuhn_poker",
    "leduc_poker", "liars_dice", "mancala", "nim", "othello", "pathfinding", "pig", "tic_tac_toe", "y",
    "hanabi", "oh_hell", "first_sealed_auction", "bargaining", "tiny_hanabi", "coop_to_1p", "solitaire",
)  # fmt: skip
_TEXTARENA = (
    "2048-v0", "Battleship-v0", "Breakthrough-v0", "ColonelBlotto-v0", "ConnectFour-v0", "FrozenLake-v0",
    "GameOfPureStrategy-v0", "GuessTheNumber-v0", "HighSociety-v0", "IndianPoker-v0",
    "IteratedTwoThirdsAverage-v0", "LiarsDice-v0", "Mastermind-v0", "Minesweeper-v0", "Nim-v0", "PegJump-v0",
    "Poker-v0", "RushHour-v0", "SantoriniBaseFixed-v0", "Secretary-v0", "SimpleTak-v0", "Snake-v0", "Sokoban-v0",
    "Sudoku-v0", "Surround-v0", "TicTacToe-v0", "TowerOfHanoi-v0", "TruthAndDeception-v0", "UltimateTicTacToe-v0",
)  # fmt: skip
_ALONE = (
    "2048-v0", "FrozenLake-v0", "GuessTheNumber-v0", "Mastermind-v0", "Minesweeper-v0", "PegJump-v0", "RushHour-v0",
    "Secretary-v0", "Sokoban-v0", "Sudoku-v0", "TowerOfHanoi-v0",
)  # fmt: skip
"""Of those, games with one seat."""


def _reasoning_gym() -> list[str]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        return ["leg_counting"]
    return sorted(DATASETS)


def _worlds() -> dict[str, tuple[str, dict[str, Any]]]:
    """By the name of a line, an environment and its options."""
    found: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in NATIVE}
    for name in ("wordle", "bargaining", "negotiation", "web_shop", "sokoban"):
        found[f"{name} (text)"] = (name, {"actions": "text"})
    found["retail"] = ("retail", {"path": str(_DATA / "tau2" / "retail")})
    found["textworld facts"] = ("textworld", {"text": "facts", "games": 100})
    found["textworld full"] = ("textworld", {"text": "full", "games": 100})
    found["scienceworld"] = ("scienceworld", {"variations": 20})
    for id in _GYMNASIUM:
        found[f"gymnasium {id}"] = ("gymnasium", {"id": id})
    for id in _OPENSPIEL:
        found[f"openspiel {id}"] = ("openspiel", {"id": id})
    for id in _TEXTARENA:
        found[f"textarena {id}"] = ("textarena", {"id": id, **({"players": 1} if id in _ALONE else {})})
    for name in _reasoning_gym():
        found[f"reasoning_gym {name}"] = ("reasoning_gym", {"datasets": [name], "actions": "text"})
    return found


def _recipes() -> dict[str, list[str]]:
    """By the first of each kind, the recipes of the same tasks, world and reward."""
    kinds: dict[str, list[str]] = {}
    for name in sorted((*built_in_recipes(), *built_in_methods())):
        recipe = load_recipe(name).recipe
        kind = json.dumps([asdict_or(part) for part in (recipe.tasks, recipe.environment, recipe.reward)], default=str)
        kinds.setdefault(kind, []).append(name)
    return {names[0]: names for names in kinds.values()}


def asdict_or(part: Any) -> Any:
    """A part of a recipe as plain data."""
    return part.model_dump() if hasattr(part, "model_dump") else asdict(part)


# ------------------------------------------------------------ one line


async def world(name: str) -> dict[str, Any]:
    """What impostors came to in a world."""
    environment, options = _worlds()[name]
    looked_at = contract_of(environment, options)
    tried = Nothing(looked_at.make, looked_at.source, looked_at.reward, seconds=20)
    check = await tried.check()
    attempts = tried.attempts
    return {
        "verdict": check.verdict,
        "said": ascii(check.said)[1:-1],
        "won": {each.player: f"{each.wins}/{each.episodes}" for each in attempts.values() if each.wins},
        "right": sum(each.right for each in attempts.values()),
        "episodes": sum(each.episodes for each in attempts.values()),
        "highest": max(attempts[player].highest for player in NEVER_ACT),
        "faults": sum(len(each.faults) for each in attempts.values()),
    }


async def recipe(name: str) -> dict[str, Any]:
    """What the audit says of a recipe."""
    resolved = load_recipe(name, [f"tasks.path={_DATA / 'gsm8k'}"] if name == "gsm8k-tiny" else [])
    source, make, reward = assembly.judged_parts(resolved)
    turns = min(40, resolved.recipe.environment.max_turns)
    tried = Audit(make, source, reward, tasks=12, max_turns=turns)
    checks = [check async for check in tried.checks()]
    never = [one for one in tried.tried if one.player in ("nothing", "garbage", "nonsense")]
    stopping = [one for one in tried.tried if one.player in ("one move", "stops")]
    won: dict[str, str] = {}
    for player in ("nothing", "garbage", "nonsense", "one move", "stops"):
        mine = [one for one in (*never, *stopping) if one.player == player]
        wins = sum(bool(one.trajectory.score and one.trajectory.score.success) for one in mine)
        if wins:
            won[player] = f"{wins}/{len(mine)}"
    bad = [check for check in checks if check.verdict is CheckStatus.FAIL]
    return {
        "verdict": CheckStatus.FAIL if bad else CheckStatus.WARN if won else CheckStatus.PASS,
        "said": ascii("; ".join(f"{check.name}: {check.said}" for check in bad))[1:-1],
        "won": won,
        "right": 0,
        "episodes": len(never) + len(stopping),
        "highest": max(one.value or 0.0 for one in never),
        "faults": sum(one.value is None for one in (*never, *stopping)),
    }


def one_line(kind: str, name: str) -> dict[str, Any]:
    """In this process."""
    try:
        return asyncio.run(world(name) if kind == "world" else recipe(name))
    except (WhetstoneError, ImportError) as left_out:
        return {"verdict": "left out", "said": ascii(f"{type(left_out).__name__}: {left_out}")[1:-1][:300]}


def _written(kind: str, name: str, path: str) -> None:
    Path(path).write_text(json.dumps(one_line(kind, name)))


def apart(kind: str, name: str) -> dict[str, Any]:
    """In a process of its own, a fork with everything imported, and no longer than so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found"
        process = multiprocessing.get_context("fork").Process(target=_written, args=(kind, name, str(path)))
        process.start()
        process.join(_LONGEST)
        if process.is_alive():
            process.kill()
            process.join()
            return {"verdict": "fail", "said": f"it did not come back within {_LONGEST} s"}
        if not path.is_file():
            return {"verdict": "fail", "said": f"its process ended with {process.exitcode}"}
        found: dict[str, Any] = json.loads(path.read_text())
    return found


def _current(key: str) -> str:
    """Return the key of a stored row with the name of the recipe or environment of this release."""
    kind, _, name = key.partition(":")
    first, *rest = name.split(" ")
    renamed = RECIPES if kind == "recipe" else COMPONENTS["environment"]
    return f"{kind}:{' '.join([renamed.get(first, first), *rest])}"


# ------------------------------------------------------------ all of them

_RENAMED = {"good": "pass", "note": "warn", "bad": "fail"}

_ABOVE = """# Impostors

Five players that do not do the task: *idle* says nothing, *garbage* one word for ever, *nonsense* goes through what is
odd (texts, commands, calls that cannot be read), *early* makes one move and gives up, *stopper* says what ends things.
A win of the first three is a fault (`fail`); of the others where luck does not explain it: one right move among those a
world lists, or one win in twenty where it lists none, more often than once in a thousand times. A score without acting,
and a win explained by luck, are a `warn`. `python benchmarks/impostors.py` makes this table again.
"""


def table(rows: dict[str, dict[str, Any]], of_recipes: dict[str, list[str]]) -> str:
    """As Markdown, worlds first."""
    lines = [_ABOVE]
    for kind, title in (("world", "Worlds and adapters"), ("recipe", "Recipes, by `rewards audit`")):
        mine = {key.partition(":")[2]: row for key, row in rows.items() if key.startswith(f"{kind}:")}
        tried = {name: row for name, row in mine.items() if row["verdict"] != "left out"}
        count = {
            verdict: sum(row["verdict"] == verdict for row in mine.values()) for verdict in ("pass", "warn", "fail")
        }
        said = ", ".join(f"{number} {verdict}" for verdict, number in count.items())
        lines.append(f"\n## {title}\n\n{len(tried)} tried: {said}; {len(mine) - len(tried)} left out.\n")
        lines.append("| | episodes | players that won | highest score without acting | faults | verdict |")
        lines.append("| --- | --: | --- | --: | --: | --- |")
        for name, row in tried.items():
            won = ", ".join(f"{player} {share}" for player, share in row.get("won", {}).items()) or "–"
            won += f"; {row['right']} rightly" if row.get("right") else ""
            others = len(of_recipes.get(name, [name])) - 1
            shown = f"{name} and {others} more" if kind == "recipe" and others else name
            highest = f"{row['highest']:.3g}" if "highest" in row else ""
            why = f": {_cell(row['said'])}" if row["verdict"] == "fail" else ""
            episodes = row.get("episodes", "")
            lines.append(
                f"| {shown} | {episodes} | {won} | {highest} | {row.get('faults', '')} | {row['verdict']}{why} |"
            )
        out = {name: row for name, row in mine.items() if row["verdict"] == "left out"}
        if out:
            lines.append("\nLeft out:\n")
            lines += [f"- {name}: {_cell(row['said'])}" for name, row in out.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")[:260]


def main() -> None:
    """Try all, and write the table behind each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="names, or beginnings of names; all unless said")
    parser.add_argument("--again", action="store_true", help="what was tried before, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    began = time.perf_counter()
    kept, of_recipes = arguments.results / "impostors.json", _recipes()
    stored: dict[str, dict[str, Any]] = json.loads(kept.read_text())["measured"] if kept.is_file() else {}
    rows = {_current(key): row for key, row in stored.items()}
    for row in rows.values():  # of an earlier release
        row["verdict"] = _RENAMED.get(row["verdict"], row["verdict"])
    chosen: Callable[[str], bool] = lambda name: not arguments.only or name.startswith(tuple(arguments.only))  # noqa: E731
    every = [*(("recipe", name) for name in of_recipes), *(("world", name) for name in _worlds())]
    for kind, name in every:
        key = f"{kind}:{name}"
        if not chosen(name) or (key in rows and not arguments.again):
            continue
        rows[key] = apart(kind, name)
        if not arguments.json:
            print(f"{rows[key]['verdict']:<9} {key:<50} {rows[key]['said'][:160]}", flush=True)
        in_order = {f"{k}:{n}": rows[f"{k}:{n}"] for k, n in every if f"{k}:{n}" in rows}
        report = {"name": "impostors", "measured": in_order, "ratios": {}, "goal": "no line is fail"}
        kept.write_text(json.dumps({**report, **circumstances(began)}, indent=1) + "\n")
        (arguments.results / "impostors.md").write_text(table(in_order, of_recipes))
    if arguments.json:
        print(kept.read_text())


if __name__ == "__main__":
    main()
