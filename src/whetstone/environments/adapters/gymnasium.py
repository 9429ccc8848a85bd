"""Any environment of Gymnasium, its actions and observations as text; MiniGrid and BabyAI in words.

Actions: of `Discrete` a number or the name it is given; of `Box`, `MultiDiscrete` and `MultiBinary` numbers with spaces
between them. Observations: numbers as they are, pictures of MiniGrid as a list of what is in view, everything else by
its `render_mode` `ansi` where that is asked for.

Easy to get wrong: `truncated` is not `terminated`; the two are kept apart all the way. A sum of rewards says nothing
before the end: who never moves has 0, which is above every negative threshold. And an action out of range crashes many
environments; here it is checked against the space, and told.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

import numpy

from whetstone.environments.dependencies import check_needs, package
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import RecipeError, TaskError, did_you_mean
from whetstone.plugins import module_named
from whetstone.tasks.generated import Generated
from whetstone.tools.plain_text import plain
from whetstone.trajectory import Task

_NEEDS = (package("gymnasium", "gymnasium"),)
_GOAL_ENDS = ("Acrobot", "CliffWalking", "CliffWalkingSlippery", "MountainCar", "Taxi")
"""Environments that end by themselves at the goal alone; their thresholds are of means over many starts, or none."""
_TRIED_STEPS = 300
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
        success_at: The sum of rewards from which an episode that is over is a success; `end`: any the environment ends
            by itself. Null: the environment's own threshold, or anything above 0 where it has none; `end` for those
            that end at their goal alone (Acrobot, CliffWalking, MountainCar, Taxi).

    Raises:
        RecipeError: There is no such environment.
    """

    name = "gymnasium"
    needs = _NEEDS
    isolation: Isolation = "object"  # what MiniGrid prints is caught in the whole process

    def __init__(
        self,
        *,
        id: str,
        options: dict[str, Any] | None = None,
        actions_named: list[str] | None = None,
        show: str = "observation",
        success_at: float | Literal["end"] | None = None,
    ) -> None:
        self.id, self.show = id, show
        self._env = make(id, {**(options or {}), **({"render_mode": "ansi"} if show == "ansi" else {})})
        grid = _is_grid(self._env)
        self.names = tuple(actions_named or (_GRID_ACTIONS if grid else ()))
        self.instruction = _instruction(self._env.action_space, self.names)
        self.success_at, self._threshold, self._horizon = _success_of(self._env, success_at)
        self.total, self.steps = 0.0, 0
        self.terminated = self.truncated = False

    def check(self) -> None:
        """See that an episode can be a success.

        Raises:
            RecipeError: It has no threshold, and no step of some by chance was paid above 0, but some below.
        """
        if self._threshold is not None or self.success_at == "end":
            return
        self._env.action_space.seed(0)
        self._env.reset(seed=0)
        rewards = []
        for _ in range(_TRIED_STEPS):
            _, reward, terminated, truncated, _ = self._env.step(self._env.action_space.sample())
            rewards.append(float(reward))
            if terminated or truncated:
                self._env.reset()
        if min(rewards) < 0 and max(rewards) <= 0:
            raise RecipeError(
                f"gymnasium: {self.id} has no threshold of its own, and its rewards are below 0: say success_at"
            )

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Reset with the task's seed, or the episode's where the task has none."""
        if task.private.get("id", self.id) != self.id:
            raise TaskError(f"task {task.id} is of {task.private['id']}, not of {self.id}")
        with contextlib.redirect_stdout(io.StringIO()):  # MiniGrid prints what it threw away
            observation, _ = self._env.reset(seed=int(task.private.get("seed", seed)) % 2**31)
        self.total, self.steps, self.terminated, self.truncated = 0.0, 0, False, False
        return GameObservation(f"{self.instruction}\n{self._written(observation)}")

    def act(self, command: str) -> GameObservation:
        """One step; what is no action is told, and costs none."""
        action = read_action(self._env.action_space, command, self.names)
        if action is None:
            return GameObservation(f"no such action. {self.instruction}", 0.0, understood=False)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self.total += float(reward)
        self.steps += 1
        self.terminated, self.truncated = bool(terminated), bool(truncated)
        return GameObservation(
            self._written(observation), float(reward), terminated=self.terminated, truncated=self.truncated
        )

    def verdict(self) -> Mapping[str, Any]:
        """The sum of rewards, and whether it is enough: at an end of its own, or when the whole time it has was played.
        The score is the share of a threshold above 0 that was reached."""
        done = self._succeeded()
        most = self._threshold or 0.0
        share = max(0.0, min(1.0, self.total / most)) if most > 0 else 0.0
        return {"success": done, "score": 1.0 if done else share, "return": self.total, "steps": self.steps}

    def admissible(self) -> list[str]:
        """Every discrete action; a few samples of other spaces."""
        space = self._env.action_space
        if hasattr(space, "n") and type(space).__name__ == "Discrete":
            return list(self.names) or [str(int(space.start) + k) for k in range(int(space.n))]
        return [" ".join(map(str, space.sample().ravel().tolist())) for _ in range(8)]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _succeeded(self) -> bool:
        if self.success_at == "end":
            return self.terminated
        if self.total < self.success_at:
            return False
        whole = self.success_at > 0 or (self._horizon is not None and self.steps >= self._horizon)
        return self.terminated or (self.truncated and whole)

    def _written(self, observation: Any) -> str:
        if self.show == "ansi":
            return plain(str(self._env.render()))
        return grid_in_words(observation) if _is_grid(self._env) else written(observation)


def _success_of(
    env: Any, given: float | Literal["end"] | None
) -> tuple[float | Literal["end"], float | None, int | None]:
    """(what is a success, the sum that stands for all there is, the steps an episode has as it was registered)"""
    import gymnasium

    spec = env.spec
    steps = gymnasium.spec(spec.id).max_episode_steps if spec is not None else None
    if given is None and spec is not None and spec.name in _GOAL_ENDS:
        given = "end"
    if given == "end":
        return "end", None, steps
    threshold = spec.reward_threshold if given is None and spec is not None else given
    return 1e-9 if threshold is None else threshold, threshold, steps


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
        try:
            module_named(module)
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
    except Exception as error:  # whatever a package misses, or makes of options
        said = " ".join(str(error).split())[:200]
        raise RecipeError(f"gymnasium: {name} cannot be made so: {type(error).__name__}: {said}") from None


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
