"""Adapter for TextWorld: games that are generated for each task.

`text: full` compiles each game and shows TextWorld's text (two seconds per game). `text: facts` plays the uncompiled
game, which has no text, and shows the facts of the room in short sentences.

Note:
    The package has one random generator and one parser for all games. Two games that are generated or loaded
        concurrently are corrupted: some thousand episodes in threads show it, a hundred do not. A lock therefore
        serializes the package.

Source: TextWorld, arXiv:1806.11532.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Literal

from whetstone.environments.dependencies import check_requirements, require_package
from whetstone.environments.game_tasks import GameTasks
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.plugins import OptionError
from whetstone.trajectory import Task

_NEEDS = (require_package("textworld", "textworld"),)
_SHAPES = (
    {"rooms": 2, "objects": 3, "quest": 2},
    {"rooms": 4, "objects": 6, "quest": 4},
    {"rooms": 8, "objects": 12, "quest": 6},
)
_one_at_a_time = threading.RLock()
# Jericho, which runs the compiled games, knows only scores of published games; TextWorld counts itself
warnings.filterwarnings("ignore", message="Game .* is not fully supported")


class TextWorld:
    """Game that plays one generated TextWorld game.

    Args:
        text: `full`: TextWorld's text, of a compiled game. `facts`: the facts of the room in short sentences.
        show_admissible: List the admissible commands.
    """

    name = "textworld"
    needs = _NEEDS
    isolation: Isolation = "thread"

    def __init__(self, *, text: Literal["full", "facts"] = "full", show_admissible: bool = True) -> None:
        self.text, self.show_admissible = text, show_admissible
        self._env: Any = None
        self._state: Any = None
        self.steps = 0

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Start the game of the task; generate its file if it does not exist."""
        import textworld

        path = game_file(self.text, *(int(task.private[key]) for key in ("seed", "rooms", "objects", "quest")))
        infos = textworld.EnvInfos(
            admissible_commands=True, policy_commands=True, won=True, lost=True, score=True, max_score=True,
            feedback=True, objective=True, inventory=True, facts=True, game=True,
        )  # fmt: skip
        with _one_at_a_time:
            self._env = textworld.start(path, infos)
            self._state = self._env.reset()
        self.steps = 0
        objective = f"{self._state['objective']}\n" if self.text == "facts" else ""  # else it is in the text
        return GameObservation(f"{objective}{self._seen()}")

    def act(self, command: str) -> GameObservation:
        """Execute one command; the reward is the gain as a fraction of the maximum score."""
        before = self._state.get("score") or 0
        understood = command in self._state["admissible_commands"]
        if not understood and self.text == "facts":
            # the uncompiled game knows no other commands, and raises
            return GameObservation(f"You cannot do that.\n{self._seen()}", 0.0, understood=False)
        with _one_at_a_time:
            self._state, score, done = self._env.step(command)
        self.steps += 1
        gain = (score - before) / max(1, self._state.get("max_score") or 1)
        return GameObservation(self._seen(), float(gain), terminated=bool(done), understood=understood)

    def verdict(self) -> Mapping[str, Any]:
        """Return whether the game was won, and the score as a fraction of the maximum."""
        share = (self._state.get("score") or 0) / max(1, self._state.get("max_score") or 1)
        return {"success": bool(self._state.get("won")), "score": float(share), "steps": self.steps}

    def admissible(self) -> list[str]:
        """Return TextWorld's admissible commands in the current state."""
        return list(self._state["admissible_commands"])

    def solve(self) -> str:
        """Return the next command of TextWorld's solution in the current state."""
        commands = self._state["policy_commands"]
        return str(commands[0]) if commands else "look"

    def close(self) -> None:
        """Close the running TextWorld game, if there is one."""
        env, self._env = self._env, None
        if env is not None:
            with _one_at_a_time:
                env.close()

    def _seen(self) -> str:
        """Return the text of the current state and, if enabled, the admissible commands."""
        text = _without_banner(str(self._state["feedback"])) if self.text == "full" else describe_room(self._state)
        if not self.show_admissible or self._state.get("won") or self._state.get("lost"):
            return text
        return f"{text}\ncommands: {', '.join(self._state['admissible_commands'])}"


class TextWorldTasks(GameTasks):
    """Task source: games of 2, 4 and 8 rooms at levels 1, 2 and 3.

    Their quests take 2, 4 and 6 commands.

    Args:
        seed: Determines the training tasks; the held-out tasks do not depend on it.
        levels: Difficulties, sampled uniformly; null: all levels.
        games: Number of games per level; they are generated on demand and then kept.
        text: `full` or `facts`, the same as that of the environment; selects the kind of file that the expert plays.
    """

    name = "textworld"
    game = TextWorld

    def __init__(
        self,
        *,
        seed: int = 0,
        levels: list[int] | None = None,
        games: int = 500,
        text: Literal["full", "facts"] = "full",
    ) -> None:
        check_requirements("textworld", _NEEDS)
        super().__init__(seed=seed, levels=levels)
        if games < 100:
            raise OptionError("games", f"must be 100 or more, so that some games are held out, got {games}")
        self.games = games
        self._solver.game = functools.partial(TextWorld, text=text)

    def make(self, draw: Random, level: int) -> Task:
        """Generate a task with the seed and the size of a game; see `Generated`."""
        shape = _SHAPES[level - 1]
        return Task("", "", {"seed": draw.randrange(self.games), **shape}, {"kind": f"quest of {shape['quest']}"})


@functools.lru_cache(maxsize=100_000)
def game_file(text: str, seed: int, rooms: int, objects: int, quest: int) -> str:
    """Return the path of a game's file; generate the game at the first call.

    Args:
        text: `full`: a compiled game (`.z8`); `facts`: an uncompiled game (`.json`).
        seed: Seed of the generator.
        rooms: Number of rooms.
        objects: Number of objects.
        quest: Length of the quest in commands.
    """
    import textworld
    import textworld.generator

    path = str(_folder() / f"{seed}-{rooms}-{objects}-{quest}.{'z8' if text == 'full' else 'json'}")
    with _one_at_a_time:
        if Path(path).is_file():
            return path
        options = textworld.GameOptions()
        options.seeds, options.path, options.file_ext = seed, path, Path(path).suffix
        options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, quest
        if text == "facts":
            options.grammar.theme, options.grammar.only_last_action = "basic", True
        game = textworld.generator.make_game(options)
        if text == "full":
            textworld.generator.compile_game(game, options)
        else:
            game.save(path)
    return path


@functools.cache
def _folder() -> Path:
    """Return the temporary folder of this process's game files; removed at exit."""
    folder = tempfile.mkdtemp(prefix="whetstone-textworld-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def describe_room(state: Mapping[str, Any]) -> str:
    """Return the room, its objects and the inventory as text.

    Args:
        state: State of TextWorld with `facts` and `game`.
    """
    infos = state["game"].infos
    named = {id: info.name or id for id, info in infos.items()}
    facts = state["facts"]
    room = next((fact.arguments[1].name for fact in facts if fact.name == "at" and fact.arguments[0].type == "P"), "")
    sentences = []
    for fact in facts:
        things = [named.get(argument.name, argument.name) for argument in fact.arguments]
        ids = [argument.name for argument in fact.arguments]
        if fact.name == "at" and ids[1] == room and fact.arguments[0].type != "P":
            sentences.append(f"{things[0]} here")
        elif fact.name == "in" and fact.arguments[1].type == "I":
            sentences.append(f"you have {things[0]}")
        elif fact.name in ("in", "on"):
            sentences.append(f"{things[0]} {fact.name} {things[1]}")
        elif fact.name in ("open", "closed", "locked"):
            sentences.append(f"{things[0]} {fact.name}")
    return f"{named.get(room, room)}. {'; '.join(sorted(sentences))}."


def _without_banner(text: str) -> str:
    """Return the text of TextWorld without title, prompt and status line."""
    lines = [line.rstrip() for line in text.splitlines() if not set(line) & set("$\\|")]
    return "\n".join(line for line in lines if line.strip(" _") and not line.startswith(">")).strip()
