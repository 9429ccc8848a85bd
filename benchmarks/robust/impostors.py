"""Trivial policies ("impostors") on every environment, adapter and recipe: none may win without doing the task.

    worlds, adapters   the check "nothing for nothing" of `whetstone environments check`
    recipes            the checks of `whetstone rewards audit`; recipes with equal tasks, environment and reward share a
                       line

Each line runs in a separate process, so that a crash or a hang is a line of the table. Results are stored after each
line and reused; `--again` repeats all lines. Missing packages are listed.
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
from whetstone.cli.environments import create_contract
from whetstone.errors import WhetstoneError
from whetstone.evaluation.audit import Audit
from whetstone.evaluation.check_result import CheckStatus
from whetstone.evaluation.environment_checks.degenerate_policies import NEVER_ACT
from whetstone.evaluation.environment_checks.trivial_policies import TrivialPolicyCheck
from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe
from whetstone.renames import COMPONENTS, RECIPES

RESULTS = Path(__file__).parents[1] / "results"
_DATA = Path(os.environ.get("WHETSTONE_DATA", Path(__file__).parents[3] / "shared" / "data"))
"""Folder of `tau2/retail` and `gsm8k`, if present; set by WHETSTONE_DATA."""
_LONGEST = 150
"""Time limit of a line in seconds."""
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
"""Games of TextArena with one player."""


def _reasoning_gym() -> list[str]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError:
        return ["leg_counting"]
    return sorted(DATASETS)


def _worlds() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return name of a line → (environment, options)."""
    environments: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in NATIVE}
    for name in ("wordle", "bargaining", "negotiation", "web_shop", "sokoban"):
        environments[f"{name} (text)"] = (name, {"actions": "text"})
    environments["retail"] = ("retail", {"path": str(_DATA / "tau2" / "retail")})
    environments["textworld facts"] = ("textworld", {"text": "facts", "games": 100})
    environments["textworld full"] = ("textworld", {"text": "full", "games": 100})
    environments["scienceworld"] = ("scienceworld", {"variations": 20})
    for id in _GYMNASIUM:
        environments[f"gymnasium {id}"] = ("gymnasium", {"id": id})
    for id in _OPENSPIEL:
        environments[f"openspiel {id}"] = ("openspiel", {"id": id})
    for id in _TEXTARENA:
        environments[f"textarena {id}"] = ("textarena", {"id": id, **({"players": 1} if id in _ALONE else {})})
    for name in _reasoning_gym():
        environments[f"reasoning_gym {name}"] = ("reasoning_gym", {"datasets": [name], "actions": "text"})
    return environments


def _recipes() -> dict[str, list[str]]:
    """Return first recipe → all recipes with the same tasks, environment and reward."""
    kinds: dict[str, list[str]] = {}
    for name in sorted((*built_in_recipes(), *built_in_methods())):
        recipe = load_recipe(name).recipe
        kind = json.dumps([asdict_or(part) for part in (recipe.tasks, recipe.environment, recipe.reward)], default=str)
        kinds.setdefault(kind, []).append(name)
    return {names[0]: names for names in kinds.values()}


def asdict_or(part: Any) -> Any:
    """Return a component of a recipe as plain data."""
    return part.model_dump() if hasattr(part, "model_dump") else asdict(part)


# ------------------------------------------------------------ one line


async def world(name: str) -> dict[str, Any]:
    """Play trivial policies in an environment and return the result."""
    environment, options = _worlds()[name]
    looked_at = create_contract(environment, options)
    policy_check = TrivialPolicyCheck(looked_at.make, looked_at.source, looked_at.reward, seconds=20)
    check = await policy_check.check()
    attempts = policy_check.attempts
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
    """Audit a recipe and return the result."""
    resolved = load_recipe(name, [f"tasks.path={_DATA / 'gsm8k'}"] if name == "gsm8k-tiny" else [])
    source, make, reward = assembly.build_scoring_components(resolved)
    turns = min(40, resolved.recipe.environment.max_turns)
    audit = Audit(make, source, reward, tasks=12, max_turns=turns)
    checks = [check async for check in audit.run_checks()]
    never = [one for one in audit.tried if one.player in ("nothing", "garbage", "nonsense")]
    stopping = [one for one in audit.tried if one.player in ("one move", "stops")]
    won: dict[str, str] = {}
    for player in ("nothing", "garbage", "nonsense", "one move", "stops"):
        own_results = [one for one in (*never, *stopping) if one.player == player]
        wins = sum(bool(one.trajectory.score and one.trajectory.score.success) for one in own_results)
        if wins:
            won[player] = f"{wins}/{len(own_results)}"
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


def run_line(kind: str, name: str) -> dict[str, Any]:
    """Run one line in this process."""
    try:
        return asyncio.run(world(name) if kind == "world" else recipe(name))
    except (WhetstoneError, ImportError) as error:
        return {"verdict": "left out", "said": ascii(f"{type(error).__name__}: {error}")[1:-1][:300]}


def _write_line(kind: str, name: str, path: str) -> None:
    Path(path).write_text(json.dumps(run_line(kind, name)))


def run_line_in_process(kind: str, name: str) -> dict[str, Any]:
    """Run one line in a forked process with a time limit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found"
        process = multiprocessing.get_context("fork").Process(target=_write_line, args=(kind, name, str(path)))
        process.start()
        process.join(_LONGEST)
        if process.is_alive():
            process.kill()
            process.join()
            return {"verdict": "fail", "said": f"it did not come back within {_LONGEST} s"}
        if not path.is_file():
            return {"verdict": "fail", "said": f"its process ended with {process.exitcode}"}
        result: dict[str, Any] = json.loads(path.read_text())
    return result


def _current(key: str) -> str:
    """Return the key of a stored row with the name of the recipe or environment of this release."""
    kind, _, name = key.partition(":")
    first, *rest = name.split(" ")
    renamed = RECIPES if kind == "recipe" else COMPONENTS["environment"]
    return f"{kind}:{' '.join([renamed.get(first, first), *rest])}"


# ------------------------------------------------------------ all of them

_RENAMED = {"good": "pass", "note": "warn", "bad": "fail"}

_ABOVE = """# Impostors

Five players that do not do the task: *idle* is silent, *garbage* repeats one word, *nonsense* sends unusual texts,
commands and invalid calls, *early* makes one move and gives up, *stopper* sends words that end episodes. A win of the
first three is a `fail`. A win of the others is a `fail` if chance does not explain it (p < 0.001): the chance of a
right move is one over the listed moves, or one in twenty without a list. A score without an action, and a win by
chance, are a `warn`. `python -m benchmarks impostors` writes this table again.
"""


def table(rows: dict[str, dict[str, Any]], of_recipes: dict[str, list[str]]) -> str:
    """Return the page, environments first."""
    lines = [_ABOVE]
    for kind, title in (("world", "Worlds and adapters"), ("recipe", "Recipes, by `rewards audit`")):
        own_rows = {key.partition(":")[2]: row for key, row in rows.items() if key.startswith(f"{kind}:")}
        tried_rows = {name: row for name, row in own_rows.items() if row["verdict"] != "left out"}
        count = {
            verdict: sum(row["verdict"] == verdict for row in own_rows.values()) for verdict in ("pass", "warn", "fail")
        }
        counts = ", ".join(f"{number} {verdict}" for verdict, number in count.items())
        lines.append(
            f"\n## {title}\n\n{len(tried_rows)} tried: {counts}; {len(own_rows) - len(tried_rows)} left out.\n"
        )
        lines.append("| | episodes | players that won | highest score without acting | faults | verdict |")
        lines.append("| --- | --: | --- | --: | --: | --- |")
        for name, row in tried_rows.items():
            won = ", ".join(f"{player} {share}" for player, share in row.get("won", {}).items()) or "–"
            won += f"; {row['right']} rightly" if row.get("right") else ""
            others = len(of_recipes.get(name, [name])) - 1
            label = f"{name} and {others} more" if kind == "recipe" and others else name
            highest = f"{row['highest']:.3g}" if "highest" in row else ""
            why = f": {_cell(row['said'])}" if row["verdict"] == "fail" else ""
            episodes = row.get("episodes", "")
            lines.append(
                f"| {label} | {episodes} | {won} | {highest} | {row.get('faults', '')} | {row['verdict']}{why} |"
            )
        out = {name: row for name, row in own_rows.items() if row["verdict"] == "left out"}
        if out:
            lines.append("\nLeft out:\n")
            lines += [f"- {name}: {_cell(row['said'])}" for name, row in out.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")[:260]


def main() -> None:
    """Run all lines and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="names or prefixes of names; defaults to all")
    parser.add_argument("--again", action="store_true", help="repeat stored lines")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    began = time.perf_counter()
    stored_path, of_recipes = arguments.results / "raw" / "impostors.json", _recipes()
    stored: dict[str, dict[str, Any]] = json.loads(stored_path.read_text())["measured"] if stored_path.is_file() else {}
    rows = {_current(key): row for key, row in stored.items()}
    for row in rows.values():  # rows of an earlier release
        row["verdict"] = _RENAMED.get(row["verdict"], row["verdict"])
    chosen: Callable[[str], bool] = lambda name: not arguments.only or name.startswith(tuple(arguments.only))  # noqa: E731
    lines = [*(("recipe", name) for name in of_recipes), *(("world", name) for name in _worlds())]
    for kind, name in lines:
        key = f"{kind}:{name}"
        if not chosen(name) or (key in rows and not arguments.again):
            continue
        rows[key] = run_line_in_process(kind, name)
        if not arguments.json:
            print(f"{rows[key]['verdict']:<9} {key:<50} {rows[key]['said'][:160]}", flush=True)
        in_order = {f"{k}:{n}": rows[f"{k}:{n}"] for k, n in lines if f"{k}:{n}" in rows}
        report = {"name": "impostors", "measured": in_order, "ratios": {}, "goal": "no line is fail"}
        stored_path.parent.mkdir(parents=True, exist_ok=True)
        stored_path.write_text(json.dumps({**report, **circumstances(began)}, indent=1) + "\n")
        (arguments.results / "impostors.md").write_text(table(in_order, of_recipes))
    if arguments.json:
        print(stored_path.read_text())


if __name__ == "__main__":
    main()
