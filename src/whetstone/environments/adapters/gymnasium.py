"""Adapter for environments of Gymnasium, with text actions and observations; MiniGrid and BabyAI in words.

Actions: of `Discrete` a number or its name; of `Box`, `MultiDiscrete` and `MultiBinary` numbers separated by spaces.
Observations: numbers as they are, images of MiniGrid as a list of visible objects, others by `render_mode` `ansi` if
`show` selects it.

Note:
    `truncated` is not `terminated`; the two are kept separate. A sum of rewards is meaningless before the end: an agent
    that never moves has 0, which is above every negative threshold. An action out of range crashes many environments;
    it is checked against the space, and the agent reads an error.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy

from whetstone.environments.dependencies import check_requirements, require_package
from whetstone.environments.protocol import GameObservation, Isolation
from whetstone.errors import RecipeError, did_you_mean
from whetstone.plugins import import_named_module
from whetstone.tasks.generated import EnvironmentSeeds, check_environment_id
from whetstone.tools.sanitize_text import sanitize_text
from whetstone.trajectory import Task

_NEEDS = (require_package("gymnasium", "gymnasium"),)
_GOAL_ENDS = ("Acrobot", "CliffWalking", "CliffWalkingSlippery", "MountainCar", "Taxi")
"""Environments that terminate only at the goal; their thresholds are means over many starts, or missing."""
_TRIED_STEPS = 300
"""Number of random steps of the check whether rewards above 0 exist."""
_GRID_ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
"""Names of MiniGrid's actions, in the order of their numbers."""
_LOOKED_AT = 20
"""Maximum number of values of an array that are written out."""


class Gymnasium:
    """Game that plays an environment created with `gymnasium.make`.

    Args:
        id: Id, such as `FrozenLake-v1`; `module:id` imports the module first.
        options: Passed to `gymnasium.make`.
        actions_named: Names of discrete actions, in order; those of MiniGrid are known.
        show: `observation`: the environment's observation. `ansi`: its text rendering.
        success_at: Minimum sum of rewards of a finished episode that is a success; `end`: the environment terminated.
            Null: the environment's threshold, or anything above 0 if it has none; `end` for those that terminate only
            at their goal (Acrobot, CliffWalking, MountainCar, Taxi).

    Raises:
        RecipeError: If there is no such environment.
    """

    name = "gymnasium"
    needs = _NEEDS
    isolation: Isolation = "object"  # the output of MiniGrid is redirected in the whole process

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
        self._env = make_environment(id, {**(options or {}), **({"render_mode": "ansi"} if show == "ansi" else {})})
        grid = _is_grid(self._env)
        self.names = tuple(actions_named or (_GRID_ACTIONS if grid else ()))
        self.instruction = _instruction(self._env.action_space, self.names)
        self.success_at, self._threshold, self._horizon = _success_criterion(self._env, success_at)
        self.total, self.steps = 0.0, 0
        self.terminated = self.truncated = False

    def check(self) -> None:
        """Check with random steps that an episode can be a success.

        Raises:
            RecipeError: If there is no threshold, and random steps have rewards below 0 but none above.
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
                f"gymnasium: {self.id} has no reward threshold, and random steps have only rewards below 0; "
                "set success_at"
            )

    def begin(self, task: Task, seed: int) -> GameObservation:
        """Reset the environment with the seed of the task, or else of the episode.

        Raises:
            TaskError: If the task belongs to another environment.
        """
        check_environment_id(task, self.id)
        with contextlib.redirect_stdout(io.StringIO()):  # MiniGrid prints discarded attempts
            observation, _ = self._env.reset(seed=int(task.private.get("seed", seed)) % 2**31)
        self.total, self.steps, self.terminated, self.truncated = 0.0, 0, False, False
        return GameObservation(f"{self.instruction}\n{self._observation_text(observation)}")

    def act(self, command: str) -> GameObservation:
        """Execute one step of the environment.

        An invalid action returns an error and costs no step.
        """
        action = read_action(self._env.action_space, command, self.names)
        if action is None:
            return GameObservation(f"no such action. {self.instruction}", 0.0, understood=False)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self.total += float(reward)
        self.steps += 1
        self.terminated, self.truncated = bool(terminated), bool(truncated)
        return GameObservation(
            self._observation_text(observation), float(reward), terminated=self.terminated, truncated=self.truncated
        )

    def verdict(self) -> Mapping[str, Any]:
        """Return the sum of rewards (`return`), the number of steps and the success.

        A success requires a termination, or the full time limit. The score is the fraction of a positive threshold that
        was reached.
        """
        done = self._succeeded()
        most = self._threshold or 0.0
        share = max(0.0, min(1.0, self.total / most)) if most > 0 else 0.0
        return {"success": done, "score": 1.0 if done else share, "return": self.total, "steps": self.steps}

    def admissible(self) -> list[str]:
        """Return all actions of a discrete space, or eight samples of another space."""
        space = self._env.action_space
        if hasattr(space, "n") and type(space).__name__ == "Discrete":
            return list(self.names) or [str(int(space.start) + k) for k in range(int(space.n))]
        return [" ".join(map(str, space.sample().ravel().tolist())) for _ in range(8)]

    def close(self) -> None:
        """Close the Gymnasium environment and release its resources."""
        self._env.close()

    def _succeeded(self) -> bool:
        if self.success_at == "end":
            return self.terminated
        if self.total < self.success_at:
            return False
        is_full_length = self.success_at > 0 or (self._horizon is not None and self.steps >= self._horizon)
        return self.terminated or (self.truncated and is_full_length)

    def _observation_text(self, observation: Any) -> str:
        if self.show == "ansi":
            return sanitize_text(str(self._env.render()))
        return grid_in_words(observation) if _is_grid(self._env) else format_observation(observation)


def _success_criterion(
    env: Any, success_at: float | Literal["end"] | None
) -> tuple[float | Literal["end"], float | None, int | None]:
    """Return the success criterion, the return for score 1, and the limit of steps."""
    import gymnasium

    spec = env.spec
    steps = gymnasium.spec(spec.id).max_episode_steps if spec is not None else None
    if success_at is None and spec is not None and spec.name in _GOAL_ENDS:
        success_at = "end"
    if success_at == "end":
        return "end", None, steps
    threshold = spec.reward_threshold if success_at is None and spec is not None else success_at
    return 1e-9 if threshold is None else threshold, threshold, steps


class GymnasiumTasks(EnvironmentSeeds):
    """Task source: seeds of one Gymnasium environment, one in ten of them held out.

    Args:
        id: Id in Gymnasium, such as `FrozenLake-v1`; the same as that of the environment.
        seed: Determines the training tasks; the held-out tasks do not depend on it.
    """

    name = "gymnasium"

    def __init__(self, *, id: str, seed: int = 0) -> None:
        check_requirements("gymnasium", _NEEDS)
        super().__init__(id=id, seed=seed)


def make_environment(id: str, options: Mapping[str, Any]) -> Any:
    """Create a Gymnasium environment by its id.

    Args:
        id: Id, or `module:id` to import a module first.
        options: Keyword arguments of `gymnasium.make`.

    Raises:
        RecipeError: If there is no such environment, or it cannot be created with these options.
    """
    check_requirements("gymnasium", _NEEDS)
    import gymnasium

    module, _, name = id.rpartition(":")
    if module:
        try:
            import_named_module(module)
        except ImportError as error:
            raise RecipeError(f"gymnasium: {id}: {error}") from None
    elif id.startswith(("MiniGrid-", "BabyAI-")):
        check_requirements(id, (require_package("minigrid", "gymnasium"),))
        importlib.import_module("minigrid")
    try:
        return gymnasium.make(name, **options)
    except gymnasium.error.Error as error:
        near = did_you_mean(name, gymnasium.registry) if isinstance(error, gymnasium.error.UnregisteredEnv) else ""
        raise RecipeError(f"gymnasium: {str(error).splitlines()[0][:100]}{near[:200]}") from None
    except Exception as error:  # a missing package, or an exception on the options
        reason = " ".join(str(error).split())[:200]
        raise RecipeError(
            f"gymnasium: {name} cannot be created with these options: {type(error).__name__}: {reason}"
        ) from None


def read_action(space: Any, text: str, names: Sequence[str] = ()) -> Any:
    """Parse a text as an action of a Gymnasium space; None if it is not in the space.

    Args:
        space: Action space.
        text: A name of a discrete action, or numbers separated by spaces or commas.
        names: Names of discrete actions, in order.
    """
    kind, command = type(space).__name__, text.strip().lower()
    if kind == "Discrete" and command in names:
        return int(space.start) + list(names).index(command)
    try:
        numbers = [float(number) for number in command.replace(",", " ").strip("[]() ").split()]
    except ValueError:
        return None
    if not all(map(math.isfinite, numbers)):
        return None
    if kind == "Discrete":
        is_integer = len(numbers) == 1 and numbers[0] == int(numbers[0])
        return int(numbers[0]) if is_integer and space.contains(int(numbers[0])) else None
    try:
        action = numpy.array(numbers, dtype=space.dtype).reshape(space.shape)
    except (ValueError, TypeError, OverflowError):
        return None
    return action if space.contains(action) else None


def format_observation(observation: Any) -> str:
    """Format an observation as text: numbers with three decimals, fields by name.

    An array of more than 20 values is described by its type and shape.
    """
    if isinstance(observation, Mapping):
        return "; ".join(f"{name}: {format_observation(value)}" for name, value in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(map(format_observation, observation))
    if isinstance(observation, str):
        return observation
    values = numpy.asarray(observation)
    if values.size > _LOOKED_AT:
        return f"{values.dtype} array of shape {values.shape}"
    return " ".join(
        f"{value:.3f}".rstrip("0").rstrip(".") if values.dtype.kind == "f" else str(value) for value in values.ravel()
    )


def grid_in_words(observation: Mapping[str, Any]) -> str:
    """Return the view of MiniGrid's agent as text.

    The text has the mission, each visible object with its distance ahead and to the side, and the carried object.
    """
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    image = observation["image"]
    width, height, _ = image.shape
    middle, seen = width // 2, []
    for x in range(width):
        for y in range(height):
            kind, color, state = (int(value) for value in image[x, y])
            name = IDX_TO_OBJECT[kind]
            if name in ("unseen", "empty", "floor") or (x, y) == (middle, height - 1):
                continue
            ahead, aside = height - 1 - y, x - middle
            if name == "wall" and not (ahead <= 1 and abs(aside) <= 1):
                continue  # only walls next to the agent
            label = name if name in ("wall", "lava", "goal") else f"{IDX_TO_COLOR[color]} {name}"
            label = f"{('open', 'closed', 'locked')[state]} {label}" if name == "door" else label
            where = [f"{ahead} ahead"] if ahead else []
            where += [f"{abs(aside)} {'right' if aside > 0 else 'left'}"] if aside else []
            seen.append((ahead + abs(aside), f"{label} {' '.join(where)}"))
    kind, color, _ = (int(value) for value in image[middle, height - 1])
    carried_kind = "" if IDX_TO_OBJECT[kind] in ("empty", "unseen", "goal", "floor") else IDX_TO_OBJECT[kind]
    carried = f" You carry a {IDX_TO_COLOR[color]} {carried_kind}." if carried_kind in ("key", "ball", "box") else ""
    return f"{observation['mission']}. You see {', '.join(text for _, text in sorted(seen)) or 'nothing'}.{carried}"


def _is_grid(env: Any) -> bool:
    """Return whether an environment belongs to MiniGrid."""
    return type(env.unwrapped).__module__.startswith("minigrid.")


def _instruction(space: Any, names: Sequence[str]) -> str:
    """Return the description of an action space for the agent."""
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
