"""Play environments of OpenEnv and tasksets of verifiers that others wrote: loaded or why not, oracle, random players.

    python -m benchmarks exchange --openenv envs --verifiers environments --servers servers --write benchmarks/results

`--openenv` is the folder `envs` of the repository of OpenEnv, `--verifiers` the folder `environments` of that of
verifiers. `--servers` has an environment of Python for each package, `openenv` and `verifiers`. An oracle plays by what
the agent reads. Data sets of the Hugging Face hub are replaced by a few rows of their format if a taskset has an option
for it; without a network, others cannot be loaded.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import base64
import contextlib
import io
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from circumstances import processor
from publishing import add_output_options, publish
from whetstone.chat import Message, ToolCall, ToolSpec, assistant
from whetstone.environments.protocol import Environment
from whetstone.environments.remote.openenv import OpenEnv
from whetstone.environments.remote.verifiers import Verifiers, VerifiersTasks
from whetstone.environments.remote.verifiers_harness import VerifiersHarness
from whetstone.errors import EpisodeError, InfrastructureError, WhetstoneError
from whetstone.evaluation.environment_checks import RandomPolicy, play_with_policy
from whetstone.trajectory import Task

Play = Callable[[Sequence[Message], Sequence[ToolSpec], Sequence[str]], Message]
_ORACLE_EPISODES = 3
_FAILURES = (WhetstoneError, InfrastructureError, EpisodeError, OSError)


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one environment."""

    package: str
    name: str
    loaded: bool
    reason: str = ""
    """Why it is not loaded or has no oracle, or a remark."""
    oracle: str = ""
    """Successes of the oracle of its episodes; empty without an oracle."""
    random: str = ""
    """Successes of random players of their episodes."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Options, oracle and remark of one environment."""

    oracle: Callable[[], Play] | None = None
    note: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the taskset, or fields of the reset request."""
    rows: Sequence[Mapping[str, Any]] = ()
    """Rows of a data set that replaces the one of the hub, by the option `dataset_name`."""
    harness: bool = False
    """Whether the taskset runs its agents itself."""
    problem: str = ""
    """Why it is not loaded, if only the output of its process has the reason."""


# ------------------------------------------------------------ oracles


def _last_json(conversation: Sequence[Message]) -> dict[str, Any]:
    """Return the last observation of an OpenEnv server."""
    text = conversation[-1].text
    parsed = json.loads(text[text.index("{") :])
    return parsed if isinstance(parsed, dict) else {}


def reverse_words() -> Play:
    """Reverse the text of the task."""
    return lambda conversation, *_: assistant(f"<reversed_text>{conversation[-1].text[::-1]}</reversed_text>")


def call_then_answer(pattern: str) -> Callable[[], Play]:
    """Return an oracle that calls the only tool with a word of the prompt and answers with the result."""

    def play(conversation: Sequence[Message], tools: Sequence[ToolSpec], _: Sequence[str]) -> Message:
        if conversation[-1].role == "tool":
            return assistant(f"<answer>{conversation[-1].text}</answer>")
        prompt = " ".join(message.text for message in conversation)
        word = re.search(pattern, prompt)
        argument = next(iter(tools[0].properties))
        return assistant("", ToolCall(tools[0].name, json.dumps({argument: word[1] if word else ""}), "call_0"))

    return lambda: play


def walk_grid() -> Play:
    """Go down and right to the goal of the grid world, which is the last cell."""

    def play(conversation: Sequence[Message], *_: Any) -> Message:
        seen = _last_json(conversation)
        return assistant(json.dumps({"action": "DOWN" if seen["x"] < 4 else "RIGHT"}))

    return play


def stack_columns() -> Play:
    """Play both players of connect four: each drops into its own column, and the first one wins."""
    moves = iter([0, 1, 0, 1, 0, 1, 0])
    return lambda conversation, *_: assistant(json.dumps({"column": next(moves)}))


def explore_maze() -> Play:
    """Walk a maze depth first with the legal actions of the server."""
    came: dict[tuple[int, ...], int | None] = {}
    tried: dict[tuple[int, ...], set[int]] = {}
    last: list[Any] = [None, None]
    opposite = {0: 1, 1: 0, 2: 3, 3: 2}

    def play(conversation: Sequence[Message], *_: Any) -> Message:
        seen = _last_json(conversation)
        cell = tuple(seen["current_position"])
        if cell not in came:
            came[cell] = None if last[0] is None else opposite[last[0]]
        left = [move for move in seen["legal_actions"] if move not in tried.setdefault(cell, set())]
        forward = [move for move in left if move != came[cell]]
        move = (forward or [came[cell]])[0]
        tried[cell].add(int(move or 0))
        last[0] = move
        return assistant(json.dumps({"action": move}))

    return play


def catch_ball() -> Play:
    """Move the paddle of the game catch below the ball."""

    def play(conversation: Sequence[Message], *_: Any) -> Message:
        board = _last_json(conversation)["info_state"]
        cells = [index for index, value in enumerate(board) if value]
        ball, paddle = cells[0] % 5, cells[-1] % 5
        return assistant(json.dumps({"action_id": 1 + (ball > paddle) - (ball < paddle)}))

    return play


def remember_answers() -> Play:
    """Answer with the solution that the server revealed in an earlier episode of the same question."""
    revealed: dict[str, str] = {}
    question = [""]

    def play(conversation: Sequence[Message], *_: Any) -> Message:
        question[0] = str(_last_json(conversation).get("question"))
        return assistant(json.dumps({"answer": revealed.get(question[0], "?")}))

    def remember(conversation: Sequence[Message]) -> None:
        revealed[question[0]] = str(_last_json(conversation).get("correct_answer"))

    play.remember = remember  # type: ignore[attr-defined]
    return play


def answer_always(text: str) -> Callable[[], Play]:
    """Return an oracle that always gives the same answer."""
    return lambda: lambda *_: assistant(text)


def run_quoted() -> Play:
    """Run the command that a task quotes, once, and answer."""

    def play(conversation: Sequence[Message], *_: Any) -> Message:
        quoted = re.search(r"`([^`]+)`", " ".join(message.text for message in conversation))
        if conversation[-1].role == "tool" or quoted is None:
            return assistant("done")
        return assistant("", ToolCall("bash", json.dumps({"command": quoted[1]}), "call_0"))

    return play


def print_expected() -> Play:
    """Write a short program with the output that a task of code golf requests."""
    programs = {"1 to 100": "print(5050)", "Fibonacci": "print('0 1 1 2 3 5 8 13 21 34')", "HELLO": "print('OLLEH')"}

    def play(conversation: Sequence[Message], *_: Any) -> Message:
        prompt = " ".join(message.text for message in conversation)
        return assistant(f"```python\n{next(code for part, code in programs.items() if part in prompt)}\n```")

    return play


def read_squares() -> Play:
    """Name the colors of all squares so far, each of one color, by their letters."""
    letters: dict[tuple[int, ...], str] = {
        (255, 0, 0): "A", (0, 255, 0): "B", (0, 0, 255): "C", (255, 255, 0): "D", (128, 0, 128): "E",
        (0, 255, 255): "F", (255, 165, 0): "G", (255, 255, 255): "H", (0, 0, 0): "I",
    }  # fmt: skip

    def play(conversation: Sequence[Message], *_: Any) -> Message:
        from PIL import Image

        urls = [part.url for message in conversation for part in message.content if hasattr(part, "url")]
        squares = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB") for url in urls]
        return assistant("".join(letters[tuple(square.tobytes()[:3])] for square in squares))

    return play


_TEXTS = tuple({"prompt": text} for text in ("a plain text", "reverse me", "one two three", "stone", "level up"))
_UNSOLVED = "no oracle is written"

VERIFIERS: dict[str, Candidate] = {
    "alphabet_sort": Candidate(harness=True),
    "bash_interception": Candidate(run_quoted, harness=True),
    "code_golf": Candidate(print_expected, harness=True),
    "color_codeword": Candidate(read_squares, harness=True),
    "deepwiki": Candidate(),
    "glossary": Candidate(call_then_answer(r'look up "([^"]+)"')),
    "grayscale_interception": Candidate(
        answer_always("a gray square"), note="its reward rates the image that was sent, not the answer", harness=True
    ),
    "gsm8k": Candidate(),
    "interception": Candidate(answer_always("STOP"), harness=True),
    "kuhn_poker": Candidate(
        note="no oracle: the agent plays both seats, whose rewards sum to 0, so that no hand is won", harness=True
    ),
    "nemo_gym_weather": Candidate(harness=True, problem="its server runs in a Python that uv downloads from GitHub"),
    "openenv_wordle": Candidate(harness=True),
    "proposer_solver": Candidate(harness=True),
    "reverse_text": Candidate(reverse_words, note="with rows in the format of its data set", rows=_TEXTS),
    "scratchpad": Candidate(call_then_answer(r'word="(\w+)"')),
    "web_search_interception": Candidate(harness=True),
    "wiki_search": Candidate(),
    "wordle": Candidate(harness=True, note="no oracle is written"),
}
OPENENV: dict[str, Candidate] = {
    "chess_env": Candidate(note="no oracle: it needs a chess engine"),
    "coding_env": Candidate(note="its reward rates any code; there is no task"),
    "connect4_env": Candidate(stack_columns, note="the agent plays both sides, so that every game is won"),
    "echo_env": Candidate(note="its reward is 0"),
    "grid_world_env": Candidate(walk_grid),
    "maze_env": Candidate(explore_maze),
    "openspiel_env": Candidate(catch_ball),
    "reasoning_gym_env": Candidate(
        remember_answers, options={"dataset_name": "leg_counting", "dataset_config": {}, "size": 5}
    ),
    "repl_env": Candidate(note="its tasks come with the request"),
    "textarena_env": Candidate(note="no oracle is written"),
}


# ------------------------------------------------------------ playing


def choose_randomly(seed: int) -> Play:
    """Return a player that samples a legal action of the observation, a value of a schema, or a word."""
    draw, policy = Random(seed), RandomPolicy(seed)

    def play(conversation: Sequence[Message], tools: Sequence[ToolSpec], admissible: Sequence[str]) -> Message:
        try:
            seen = _last_json(conversation)
        except (ValueError, IndexError):
            seen = {}
        for name in ("legal_actions", "legal_moves"):
            if seen.get(name):
                key = {"legal_moves": "move"}.get(name, "")
                move = draw.choice(seen[name])
                return assistant(json.dumps({key: move}) if key else str(move))
        brackets = re.findall(r"\[\w+\]", conversation[-1].text) if conversation else []
        if brackets and not tools:
            return assistant(draw.choice(brackets))
        if "x" in seen and "y" in seen:
            return assistant(draw.choice(("UP", "DOWN", "LEFT", "RIGHT")))
        return policy.choose_action(conversation, tools, admissible)

    return play


def play_all(
    make: Callable[[], Environment], tasks: Sequence[Task], oracle: Callable[[], Play] | None, episodes: int
) -> tuple[str, str]:
    """Return the successes of the oracle and of random players, as `3 of 3`."""

    async def play(task: Task, policy: Play, seed: int, max_turns: int = 60) -> bool:
        played = await play_with_policy(make, task, policy, seed=seed, max_turns=max_turns)
        remember = getattr(policy, "remember", None)
        if remember is not None:
            remember([message for turn in played.trajectory.turns for message in turn.observation])
        return bool(played.trajectory.final.get("success"))

    solved = ""
    if oracle is not None:
        wins = []
        for index in range(_ORACLE_EPISODES):
            policy = oracle()
            if hasattr(policy, "remember"):
                asyncio.run(play(tasks[index % len(tasks)], policy, index))
            wins.append(asyncio.run(play(tasks[index % len(tasks)], policy, index, 400)))
        solved = f"{sum(wins)} of {len(wins)}"
    random = [asyncio.run(play(tasks[n % len(tasks)], choose_randomly(n), n)) for n in range(episodes)]
    return solved, f"{sum(random)} of {len(random)}"


def _one_line(error: BaseException) -> str:
    return " ".join(re.sub(r"\*{3,}", " ", str(error)).split())[:160]


def play_taskset(name: str, candidate: Candidate, folder: Path, python: Path, episodes: int) -> Row:
    """Load a taskset of verifiers and play it."""
    with tempfile.TemporaryDirectory() as place:
        options = dict(candidate.options)
        if candidate.rows:
            (Path(place) / "train.jsonl").write_text("\n".join(map(json.dumps, candidate.rows)) + "\n")
            options["dataset_name"] = place
        environment: dict[str, Any] | None = {} if candidate.harness else None
        shared: dict[str, Any] = {"taskset": name, "python": str(python), "options": options, "max_tasks": 8,
                                  "seconds": 600.0}  # fmt: skip
        try:
            tasks = VerifiersTasks(**shared, env=environment, held_out_fraction=1.0, runtime="subprocess").held_out(8)
            make = (
                (lambda: VerifiersHarness(**shared, env={}, runtime="subprocess"))
                if candidate.harness
                else (lambda: Verifiers(**shared, runtime="subprocess"))
            )
            solved, random = play_all(make, tasks, candidate.oracle, episodes)
        except _FAILURES as error:
            return Row("verifiers", name, False, candidate.problem or _one_line(error))
    return Row("verifiers", name, True, candidate.note or ("" if solved else _UNSOLVED), solved, random)


def _last_error(output: str) -> str:
    """Return the last exception in the output of a program, with the next line if its own is empty."""
    lines = [line.strip() for line in output.splitlines() if re.search(r"\w", line)]
    for index in reversed(range(len(lines))):
        if re.match(r"[\w.]*(Error|Exception|Exit)\b", lines[index]):
            return " ".join(lines[index : index + 1 + lines[index].endswith(":")])
    return lines[-1] if lines else ""


@contextlib.contextmanager
def serve_folder(name: str, folder: Path, python: Path) -> Iterator[str]:
    """Start an OpenEnv server during a block.

    Raises:
        OSError: It does not start; the message is the last line of its output.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python), "-m", "uvicorn", f"{name}.server.app:app", "--port", str(port), "--log-level", "error"]
    paths = os.pathsep.join([str(folder), str(folder / name)])
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder / name, env={**os.environ, "PYTHONPATH": paths}, stdout=output, stderr=output
        )
        try:
            until = time.monotonic() + 240
            while process.poll() is None and time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                time.sleep(0.2)
            else:
                output.seek(0)
                raise OSError(_last_error(output.read()) or "no output for 240 s")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def play_server(name: str, candidate: Candidate, folder: Path, python: Path, episodes: int) -> Row:
    """Start an OpenEnv server and play it."""
    try:
        with serve_folder(name, folder, python) as url:
            tasks = [Task(f"{name}/{seed}", "", {"reset": dict(candidate.options)}) for seed in range(_ORACLE_EPISODES)]
            solved, random = play_all(lambda: OpenEnv(url=url, seconds=180.0), tasks, candidate.oracle, episodes)
    except _FAILURES as error:
        return Row("OpenEnv", name, False, _one_line(error))
    return Row("OpenEnv", name, True, candidate.note, solved, random)


# ------------------------------------------------------------ page


def format_page(result: dict[str, Any]) -> str:
    """Return the page with the tables."""
    rows = [Row(**row) for row in result["rows"]]
    lines = [
        "# Environments of others: OpenEnv and verifiers",
        "",
        "Played by `python -m benchmarks exchange` with the packages "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ". The environments are those of the public repositories of both packages, unchanged; none is part of this",
        "project. Oracles play by what an agent reads. Without a network, what needs data or a service is not loaded.",
        "Loaded means that episodes start and take actions; a server whose program is missing (CARLA, Julia) may",
        "answer each action with an error.",
    ]
    for package in ("OpenEnv", "verifiers"):
        own = [row for row in rows if row.package == package]
        loaded = [row for row in own if row.loaded]
        lines += ["", f"## {package}", "", f"{len(loaded)} of {len(own)} are loaded and played.", ""]
        lines += ["| environment | loaded | oracle | random players | reason |", "| --- | --- | --- | --- | --- |"]
        for row in sorted(own, key=lambda row: (not row.loaded, row.name)):
            reason = row.reason.replace("|", "\\|")
            lines.append(f"| `{row.name}` | {'yes' if row.loaded else 'no'} | {row.oracle} | {row.random} | {reason} |")
    return "\n".join([*lines, "", f"Machine: {result['machine']}", ""])


def _version(python: Path, package: str) -> str:
    """Return the version of a package in an environment of Python."""
    words = [str(python), "-c", f"import importlib.metadata as m; print(m.version({package!r}))"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Play all environments and print or write the table."""
    parser = argparse.ArgumentParser(description=ast.get_docstring(ast.parse(Path(__file__).read_text("utf-8"))))
    parser.add_argument("--openenv", type=Path, help="folder `envs` of the repository of OpenEnv")
    parser.add_argument("--verifiers", type=Path, help="folder `environments` of the repository of verifiers")
    parser.add_argument("--servers", type=Path, default=Path("servers"), help="folder with environments of Python")
    parser.add_argument("--only", nargs="*", help="names; rows of others stay as they were written")
    parser.add_argument("--episodes", type=int, default=10, help="episodes of random players")
    arguments = add_output_options(parser).parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    stored = arguments.write / "raw" / "exchange.json" if arguments.write else None
    earlier = json.loads(stored.read_text("utf-8")) if stored is not None and stored.is_file() else {}
    versions: dict[str, str] = earlier.get("versions", {})
    rows = {(row["package"], row["name"]): row for row in earlier.get("rows", [])}
    for package, folder, listed, play in (
        ("openenv", arguments.openenv, OPENENV, play_server),
        ("verifiers", arguments.verifiers, VERIFIERS, play_taskset),
    ):
        if folder is None:
            continue
        python = (arguments.servers / package / "bin" / "python").absolute()
        versions[package] = _version(python, package)
        present = sorted(path.name for path in folder.iterdir() if (path / "pyproject.toml").is_file())
        if package == "verifiers":
            os.environ["PYTHONPATH"] = os.pathsep.join(str(folder.absolute() / name) for name in present)
        for name in arguments.only or present:
            row = play(
                name,
                listed.get(name, Candidate(note="no oracle is written")),
                folder.absolute(),
                python,
                arguments.episodes,
            )
            print(f"{row.package} {row.name}: {row.oracle or '-'}, random {row.random or '-'} {row.reason}", flush=True)
            rows[row.package, row.name] = asdict(row)
            if stored is not None:  # an interrupted run keeps its rows
                stored.parent.mkdir(parents=True, exist_ok=True)
                stored.write_text(json.dumps({"versions": versions, "rows": list(rows.values())}))
    result = {"name": "exchange", "versions": versions, "rows": list(rows.values()), "machine": processor()}
    publish(result, format_page, arguments)


if __name__ == "__main__":
    main()
