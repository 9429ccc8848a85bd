"""Any environment of Gymnasium, its actions and observations as text; MiniGrid and BabyAI in words.

Actions: of `Discrete` a number or the name it is given; of `Box`, `MultiDiscrete` and `MultiBinary` numbers with spaces
between them. Observations: numbers as they are, pictures of MiniGrid as a list of what is in view, everything else by
its `render_mode` `ansi` where that is asked for.

Easy to get wrong: `truncated` is not `terminated`; the two are kept apart all the way. And an action out of range
crashes many environments; here it is checked against the space, and told.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy

from whetstone.environments.needs import check_needs, package
from whetstone.environments.protocol import Shown
from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.parts import search_also
from whetstone.tasks.generated import Generated
from whetstone.tools.plain_text import plain
from whetstone.trajectory import Task

_NEEDS = (package("gymnasium", "gymnasium"),)
_GRID_ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
_LOOKED_AT = 20
"""Numbers of an observation that are written out."""


class Gymnasium:
    """One environment, made with `gymnasium.make`.

    Args:
        id: Its id, such as `FrozenLake-v1`; `module:id` imports the module first.
        options: Passed to `gymnasium.make`.
        actions_named: Names of discrete actions, in order; MiniGrid's are known.
        show: `observation`: what the environment gives. `ansi`: what it renders as text.
        success_at: The sum of rewards from which an episode is a success; null: the environment's own threshold, or
            anything above 0 where it has none.

    Raises:
        RecipeError: There is no such environment.
    """

    name = "gymnasium"
    needs = _NEEDS

    def __init__(
        self,
        *,
        id: str,
        options: dict[str, Any] | None = None,
        actions_named: list[str] | None = None,
        show: str = "observation",
        success_at: float | None = None,
    ) -> None:
        self.id, self.show = id, show
        self._env = make(id, {**(options or {}), **({"render_mode": "ansi"} if show == "ansi" else {})})
        grid = _is_grid(self._env)
        self.names = tuple(actions_named or (_GRID_ACTIONS if grid else ()))
        self.instruction = _instruction(self._env.action_space, self.names)
        threshold = self._env.spec.reward_threshold if self._env.spec is not None else None
        self.success_at = success_at if success_at is not None else threshold if threshold is not None else 1e-9
        self.total, self.steps = 0.0, 0

    def begin(self, task: Task, seed: int) -> Shown:
        """Reset with the task's seed, or the episode's where the task has none."""
        if task.private.get("id", self.id) != self.id:
            raise TaskError(f"task {task.id} is of {task.private['id']}, not of {self.id}")
        with contextlib.redirect_stdout(io.StringIO()):  # MiniGrid prints what it threw away
            observation, _ = self._env.reset(seed=int(task.private.get("seed", seed)) % 2**31)
        self.total, self.steps = 0.0, 0
        return Shown(f"{self.instruction}\n{self._written(observation)}")

    def act(self, command: str) -> Shown:
        """One step; what is no action is told, and costs none."""
        action = read_action(self._env.action_space, command, self.names)
        if action is None:
            return Shown(f"no such action. {self.instruction}", 0.0, understood=False)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self.total += float(reward)
        self.steps += 1
        return Shown(self._written(observation), float(reward), terminated=bool(terminated), truncated=bool(truncated))

    def verdict(self) -> Mapping[str, Any]:
        """The sum of rewards, and whether it is enough."""
        enough = self.total >= self.success_at
        return {"success": enough, "score": float(enough), "return": self.total, "steps": self.steps}

    def admissible(self) -> list[str]:
        """Every discrete action; a few samples of other spaces."""
        space = self._env.action_space
        if hasattr(space, "n") and type(space).__name__ == "Discrete":
            return list(self.names) or [str(int(space.start) + k) for k in range(int(space.n))]
        return [" ".join(map(str, space.sample().ravel().tolist())) for _ in range(8)]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _written(self, observation: Any) -> str:
        if self.show == "ansi":
            return plain(str(self._env.render()))
        return grid_in_words(observation) if _is_grid(self._env) else written(observation)


class GymnasiumTasks(Generated):
    """Seeds of one environment, one in ten of them held out.

    Args:
        id: As of the environment.
        seed: As of `Generated`.
    """

    name = "gymnasium"
    most = 1

    def __init__(self, *, id: str, seed: int = 0) -> None:
        check_needs("gymnasium", _NEEDS)
        super().__init__(seed=seed)
        self.id = id

    def make(self, draw: Random, level: int) -> Task:
        """See `Generated`."""
        return Task("", "", {"id": self.id, "seed": draw.randrange(2**31)}, {"kind": self.id})


def make(id: str, options: Mapping[str, Any]) -> Any:
    """The environment of an id.

    Raises:
        RecipeError: There is none, or it cannot be made with these options.
    """
    check_needs("gymnasium", _NEEDS)
    import gymnasium

    module, _, name = id.rpartition(":")
    if module:
        search_also(Path.cwd())
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise RecipeError(f"gymnasium: {id}: {error}") from None
    elif id.startswith(("MiniGrid-", "BabyAI-")):
        check_needs(id, (package("minigrid", "gymnasium"),))
        importlib.import_module("minigrid")
    try:
        return gymnasium.make(name, **options)
    except gymnasium.error.Error as error:
        near = did_you_mean(name, gymnasium.registry) if isinstance(error, gymnasium.error.UnregisteredEnv) else ""
        raise RecipeError(f"gymnasium: {str(error).splitlines()[0][:100]}{near[:200]}") from None
    except TypeError as error:
        raise RecipeError(f"gymnasium: {name} cannot be made so: {error}") from None


def read_action(space: Any, text: str, names: Sequence[str] = ()) -> Any:
    """The action a text names; None where it is none of the space's."""
    kind, said = type(space).__name__, text.strip().lower()
    if kind == "Discrete" and said in names:
        return int(space.start) + list(names).index(said)
    try:
        numbers = [float(number) for number in said.replace(",", " ").strip("[]() ").split()]
    except ValueError:
        return None
    if not all(map(math.isfinite, numbers)):
        return None
    if kind == "Discrete":
        whole = len(numbers) == 1 and numbers[0] == int(numbers[0])
        return int(numbers[0]) if whole and space.contains(int(numbers[0])) else None
    try:
        action = numpy.array(numbers, dtype=space.dtype).reshape(space.shape)
    except (ValueError, TypeError, OverflowError):
        return None
    return action if space.contains(action) else None


def written(observation: Any) -> str:
    """An observation in text: numbers to three decimals, fields by name."""
    if isinstance(observation, Mapping):
        return "; ".join(f"{name}: {written(value)}" for name, value in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(map(written, observation))
    if isinstance(observation, str):
        return observation
    values = numpy.asarray(observation)
    if values.size > _LOOKED_AT:
        return f"{values.dtype} array of shape {values.shape}"
    return " ".join(
        f"{value:.3f}".rstrip("0").rstrip(".") if values.dtype.kind == "f" else str(value) for value in values.ravel()
    )


def grid_in_words(observation: Mapping[str, Any]) -> str:
    """What MiniGrid's agent has in view: the mission, and each thing with how far ahead and to which side it is."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    image = observation["image"]
    width, height, _ = image.shape
    here, seen = width // 2, []
    for x in range(width):
        for y in range(height):
            kind, colour, state = (int(value) for value in image[x, y])
            name = IDX_TO_OBJECT[kind]
            if name in ("unseen", "empty", "floor") or (x, y) == (here, height - 1):
                continue
            ahead, aside = height - 1 - y, x - here
            if name == "wall" and not (ahead <= 1 and abs(aside) <= 1):
                continue  # of the walls, those that are in the way
            said = name if name in ("wall", "lava", "goal") else f"{IDX_TO_COLOR[colour]} {name}"
            said = f"{('open', 'closed', 'locked')[state]} {said}" if name == "door" else said
            where = [f"{ahead} ahead"] if ahead else []
            where += [f"{abs(aside)} {'right' if aside > 0 else 'left'}"] if aside else []
            seen.append((ahead + abs(aside), f"{said} {' '.join(where)}"))
    kind, colour, _ = (int(value) for value in image[here, height - 1])
    held = "" if IDX_TO_OBJECT[kind] in ("empty", "unseen", "goal", "floor") else IDX_TO_OBJECT[kind]
    carried = f" You carry a {IDX_TO_COLOR[colour]} {held}." if held in ("key", "ball", "box") else ""
    return f"{observation['mission']}. You see {', '.join(text for _, text in sorted(seen)) or 'nothing'}.{carried}"


def _is_grid(env: Any) -> bool:
    return type(env.unwrapped).__module__.startswith("minigrid.")


def _instruction(space: Any, names: Sequence[str]) -> str:
    kind = type(space).__name__
    if names:
        return f"Actions: {', '.join(names)}."
    if kind == "Discrete":
        first = int(space.start)
        return f"Actions: the numbers {first} to {first + int(space.n) - 1}."
    if kind == "Box":
        count = space.shape[0] if space.shape else 1
        return f"An action is {count} numbers from {space.low.min():g} to {space.high.max():g}."
    return f"An action is numbers of {space}."
