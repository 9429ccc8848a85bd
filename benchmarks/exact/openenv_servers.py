"""Environments of the repository of OpenEnv, each with a script that plays it right or wrong.

The benchmark `servers` starts each environment as published, from the folder `servers/openenv-source`, and plays it
over its WebSocket. A wrong play makes a mistake: an invalid action, or one that cannot reach the reward.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whetstone.chat import Message, ToolCall, assistant
from whetstone.environments.remote.openenv import OpenEnv
from whetstone.trajectory import Task, Trajectory

SOURCE = "openenv-source"
_SOURCE_COMMAND = f"git clone https://github.com/meta-pytorch/OpenEnv servers/{SOURCE}"
_SHARED = (
    "openenv-core ale-py chess moonfish dm_control 'mujoco<4' eclipse-sumo 'smolagents<2' nltk numpy open_spiel "
    "matplotlib reasoning-gym sumo-rl textarena"
)
"""Packages of all environments but `snake`, which requires an old version of gym."""
Play = Callable[[int, Any, Task, bool], str | Message]
"""(number of the turn, observation, task, whether to play it right) → next action."""


@dataclass(frozen=True, slots=True)
class PublishedEnvironment:
    """An environment of OpenEnv, its settings, and the episodes on it."""

    name: str
    play: Play
    tasks: Sequence[Mapping[str, Any]] = ({},)
    """Fields of `reset` per task; repeated for further episodes."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the server; `{environment}` is the folder of its virtual environment."""
    success_at: float = 1.0
    turns: int = 60
    """Maximum number of turns of an episode that is played right."""
    folder: str = "openenv"
    """Virtual environment of the server, in the folder of servers."""
    inside: str = ""
    """Working directory of the server, relative to the folder of environments."""
    application: str = ""
    """Application of uvicorn; empty: that of the package `NAME_env`."""
    is_paid: Callable[[Trajectory], bool] | None = None
    """Whether an episode was played right; None: by its verdict."""

    @property
    def install_command(self) -> str:
        """Return the command that installs the server."""
        packages = "openenv-core marlenv gym==0.24.1 'numpy<2'" if self.folder != "openenv" else _SHARED
        return (
            f"{_SOURCE_COMMAND} && python3.11 -m venv servers/{self.folder} && "
            f"servers/{self.folder}/bin/pip install {packages}"
        )

    def start_command(self, python: str, port: int) -> list[str]:
        """Return the command that starts the server with an interpreter at a port."""
        folder = Path(python).parents[1]
        settings = [f"{name}={value.format(environment=folder)}" for name, value in self.settings.items()]
        application = self.application or f"{self.name}_env.server.app:app"
        return ["env", *settings, python, "-m", "uvicorn", application, "--port", str(port), "--log-level", "critical"]

    def build_tasks(self, number: int) -> list[Task]:
        """Return tasks for a number of episodes."""
        return [Task(str(n), "", {"reset": self.tasks[n % len(self.tasks)]}) for n in range(number)]

    def make(self, address: str) -> OpenEnv:
        """Create the client; a server with one session at a time makes the other episodes wait."""
        return OpenEnv(url=address, success_at=self.success_at, seconds=600.0)

    def act(self, task: Task, conversation: Sequence[Message], right: bool) -> Message:
        """Return the next action of the script."""
        turn = sum(message.role == "assistant" for message in conversation)
        text = conversation[-1].text
        action = self.play(turn, json.loads(text) if text.startswith("{") else text, task, right)
        return assistant(action) if isinstance(action, str) else action


def _moves(right: str, wrong: str) -> Play:
    """Return a script with one command per turn; the wrong one is the same in every turn."""
    commands = right.split()
    return lambda turn, seen, task, is_right: commands[turn % len(commands)] if is_right else wrong


def _echo(turn: int, seen: Any, task: Task, right: bool) -> Message:
    if turn:
        return assistant("done")
    name, key = (("echo_message", "echo_with_length")[int(task.id) % 4 // 2], "message" if right else "text")
    return assistant("", ToolCall(name, json.dumps({key: f"hello {task.id}"})))


def _is_echoed(played: Trajectory) -> bool:
    """Return whether the call succeeded with its message as result; the environment has no rewards."""
    turn = played.turns[0]
    (message,) = json.loads(turn.message.tool_calls[0].arguments).values()
    return turn.calls[0].outcome == "ok" and message in turn.observation[0].text


def _chess(turn: int, seen: Any, task: Task, right: bool) -> str:
    return str(seen["legal_moves"][0]) if right else "e2e9"


def _extinguished(turn: int, seen: Any, task: Task, right: bool) -> str:
    y, x = divmod(seen["grid"].index(2), seen["width"])
    return json.dumps({"action": "water", "x": x, "y": y}) if right else "wait"


def _printed(turn: int, seen: Any, task: Task, right: bool) -> str:
    factors = task.private["reset"]["task_prompt"]
    return f"value = {factors}" if turn == 0 else f"print(f'FINAL({{value + {int(not right)}}})')"


def _summed(turn: int, seen: Any, task: Task, right: bool) -> str:
    terms = seen["question"].rpartition(":")[2].replace(" ", "")
    return str(sum(map(int, re.findall(r"[+-]?\d+", terms))) + (not right))


def _guessed(turn: int, seen: Any, task: Task, right: bool) -> str:
    if not right:
        return "no number"
    low, high = 1, 20
    for message in seen["messages"]:
        for guess, hint in re.findall(r"\[(\d+)\]\s*\[GAME\] The target number is (\w+)", message["content"]):
            low, high = (int(guess) + 1, high) if hint == "higher" else (low, int(guess) - 1)
    return f"[{(low + high) // 2}]"


def _caught(turn: int, seen: Any, task: Task, right: bool) -> str:
    """Move the paddle, in the last of ten rows of five cells, below the ball, or to the other side."""
    cells = seen["info_state"]
    ball, paddle = cells[:45].index(1.0) % 5, cells[45:].index(1.0)
    wanted = ball if right else 4 if ball < 3 else 0
    return str(1 + (wanted > paddle) - (wanted < paddle))


def _fed(turn: int, seen: Any, task: Task, right: bool) -> str:
    """Turn the snake to the fruit: 0 goes straight on, 1 turns left, 2 turns right."""
    if not right:
        return "9"
    cells = {(y, x): value % 10 for y, row in enumerate(seen["grid"]) for x, value in enumerate(row)}
    fruit, head = (next(place for place, value in cells.items() if value == wanted) for wanted in (2, 3))
    around = [(head[0] + y, head[1] + x) for y, x in ((0, 1), (1, 0), (0, -1), (-1, 0))]
    neck = next(place for place in around if cells[place] in (4, 5))
    y, x = head[0] - neck[0], head[1] - neck[1]
    ways = {"1": (head[0] - x, head[1] + y), "2": (head[0] + x, head[1] - y), "0": (head[0] + y, head[1] + x)}
    free = [way for way, place in ways.items() if cells[place] in (0, 2)]
    return min(free or ["0"], key=lambda way: abs(ways[way][0] - fruit[0]) + abs(ways[way][1] - fruit[1]))


_NET = "sumo_rl_env/nets/single-intersection/single-intersection"
ENVIRONMENTS = (
    PublishedEnvironment("echo", _echo, is_paid=_is_echoed),
    PublishedEnvironment("chess", _chess, success_at=0.0, turns=4),  # a move is worth 0, an illegal one -0.1
    PublishedEnvironment("connect4", _moves("0 1 0 1 0 1 0", "7")),  # the agent moves for both players
    PublishedEnvironment("grid_world", _moves("DOWN DOWN DOWN DOWN RIGHT RIGHT RIGHT RIGHT", "LEFT")),
    PublishedEnvironment("maze", _moves("3 3 3 3 1 1 3 3 1 3 1 1 1 1", "0"), success_at=10.0),
    PublishedEnvironment("wildfire", _extinguished, settings={"WILDFIRE_WIND": "CALM"}),
    PublishedEnvironment("coding", _moves("print(6*7)", "import os"), success_at=0.1, turns=2),
    PublishedEnvironment(
        "repl", _printed,
        [{"task_prompt": f"{n} * 7", "expected_answer": str(n * 7)} for n in range(8)],
    ),
    PublishedEnvironment(
        "reasoning_gym", _summed, [{"dataset_name": "chain_sum", "size": 1, "seed": n} for n in range(8)]
    ),
    PublishedEnvironment(
        "textarena", _guessed,
        settings={"TEXTARENA_ENV_ID": "GuessTheNumber-v0", "TEXTARENA_DOWNLOAD_NLTK": "0"},
    ),
    PublishedEnvironment("openspiel", _caught),
    PublishedEnvironment(
        "atari", _moves("1", "0"), turns=20,
        settings={"ATARI_GAME": "freeway", "ATARI_OBS_TYPE": "ram", "ATARI_FRAMESKIP": "10"},
    ),
    PublishedEnvironment(
        "dm_control", _moves("[0.0]", "[0.0,0.0]"), [{"domain_name": "cartpole", "task_name": "balance_sparse"}],
        settings={"MUJOCO_GL": "disabled"}, turns=5,
    ),
    PublishedEnvironment(
        "sumo_rl", _moves("0 0 0 0 1 1 1 1", "0"), success_at=0.1,
        settings={
            "SUMO_NET_FILE": f"{_NET}.net.xml", "SUMO_ROUTE_FILE": f"{_NET}.rou.xml", "SUMO_NUM_SECONDS": "100",
            "SUMO_HOME": "{environment}/lib/python3.11/site-packages/sumo",
        },
    ),
    PublishedEnvironment("snake", _fed, folder="openenv-snake", inside="snake_env", application="server.app:app"),
)  # fmt: skip
