"""Adapter for PettingZoo: each agent of a multi-agent environment is a seat, with text observations and actions.

The environment is played as `agent_iter` does (AEC): one agent after the other; a parallel environment is converted.
The reward of an action is the sum of the agent's rewards up to its next turn, as `last()` returns it, so that the
rewards of a seat sum to its return. Seats that no episode takes play random legal actions.

Note:
    The legal actions are those of `action_mask` in the observation or in `infos`, otherwise all discrete actions. An
    action that is not legal is answered with an error and changes nothing; with `illegal: pass` the environment
    receives it, and most environments of PettingZoo then end the game with a loss. Text that is no action at all is
    always answered with an error.

Source: Terry et al. 2021, PettingZoo: Gym for Multi-Agent Reinforcement Learning, arXiv:2009.14471.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Literal

import numpy

from whetstone.environments.adapters.gymnasium import format_observation, read_action
from whetstone.environments.dependencies import Requirement, check_requirements
from whetstone.environments.multi_agent import Seat
from whetstone.environments.text_actions import Actions
from whetstone.errors import RecipeError, did_you_mean
from whetstone.plugins import find_part
from whetstone.seeding import derive_random
from whetstone.tasks.generated import EnvironmentSeeds, check_environment_id
from whetstone.trajectory import Task

_NEEDS = (Requirement("package", "pettingzoo", "pip install 'pettingzoo>=1.27' pygame-ce"),)
_MASK = "action_mask"
_MAX_WRITTEN = 200
"""Maximum number of values of a table that are written out."""


class PettingZooGame:
    """Game with one seat per agent of a PettingZoo environment; see `TableGame`.

    Args:
        make: Creates the environment.
        id: Name of the environment, for messages.
        actions_named: Names of discrete actions, in order; empty: numbers.
        describe: Returns the text of an observation, given (observation, agent); None: `describe_observation`.
        illegal: Whether an illegal action is refused, or passed to the environment.
        success_at: Minimum return of a success; None: above 0 and the highest of all seats.
        returns: Returns whose scores are 0 and 1.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        id: str,
        actions_named: Sequence[str] = (),
        describe: Callable[[Any, str], str] | None = None,
        illegal: Literal["refuse", "pass"] = "refuse",
        success_at: float | None = None,
        returns: tuple[float, float] = (-1.0, 1.0),
    ) -> None:
        self.env = make()
        self.id, self.names, self.illegal = id, tuple(actions_named), illegal
        self.success_at, self.returns = success_at, returns
        self.roles = tuple(map(str, self.env.possible_agents))
        self._describe = describe
        self._agents = dict(zip(self.roles, self.env.possible_agents, strict=True))
        self._draw = Random(0)
        self.totals: dict[str, float] = {}
        """Sum of the rewards of each role so far."""
        self._unread: dict[str, float] = {}
        self._error = ""

    def begin(self, task: Task, seed: int) -> None:
        """Reset the environment with the seed of the task, or else of the game.

        Raises:
            TaskError: If the task belongs to another environment.
        """
        check_environment_id(task, self.id)
        own = int(task.private.get("seed", seed))
        self._draw = derive_random(own, "pettingzoo")
        self.env.reset(seed=own % 2**31)
        self.totals, self._unread, self._error = dict.fromkeys(self.roles, 0.0), dict.fromkeys(self.roles, 0.0), ""
        self._advance()

    def to_move(self) -> str:
        """Return the role whose turn it is; see `TableGame`."""
        return str(self.env.agent_selection) if self.env.agents else ""

    def seen(self, role: str) -> str:
        """Return the observation and legal actions of a role at its turn, and its return at the end."""
        if not self.env.agents:
            return f"over: {self.totals[role]:g}"
        error, self._error = self._error, ""
        observation = self.env.observe(self._agents[role])
        text = self._describe(observation, role) if self._describe is not None else describe_observation(observation)
        moves = self.list_moves(role)
        return f"{error}{text}\nmoves: {' '.join(moves)}" if moves else f"{error}{text}"

    def act(self, role: str, command: str) -> bool:
        """Execute an action of the role whose turn it is; see `TableGame`."""
        action = read_action(self._space(role), command, self.names)
        legal = action is not None and (
            not self.list_moves(role) or self._name_action(role, action) in self.list_moves(role)
        )
        if action is None or (not legal and self.illegal == "refuse"):
            self._error = "no such move. "
            return False
        self.env.step(action)
        self._advance()
        return legal

    def script(self, role: str) -> str:
        """Return a random legal action."""
        moves = self.list_moves(role)
        if moves:
            return self._draw.choice(moves)
        space = self._space(role)
        space.seed(self._draw.randrange(2**31))
        return " ".join(map(str, numpy.asarray(space.sample()).ravel().tolist()))

    def list_moves(self, role: str) -> list[str]:
        """Return the legal actions of a role; empty if the actions are not discrete."""
        space = self._space(role)
        if type(space).__name__ != "Discrete" or role != self.to_move():
            return []
        observation = self.env.observe(self._agents[role])
        mask = observation.get(_MASK) if isinstance(observation, Mapping) else None
        mask = self.env.infos[self._agents[role]].get(_MASK) if mask is None else mask
        first = int(space.start)
        legal = range(int(space.n)) if mask is None else numpy.flatnonzero(mask)
        return [self._name_action(role, first + int(number)) for number in legal]

    def collect_reward(self, role: str) -> float:
        """Return the sum of the rewards of a role since the last call."""
        reward, self._unread[role] = self._unread[role], 0.0
        return reward

    def verdict(self, role: str) -> Mapping[str, Any]:
        """Return the result for a role: its return, and at the end of the game success and score.

        The score is the return scaled by `returns`, clipped to 0 to 1. An unfinished game is no success, with score 0.
        """
        total, over = self.totals[role], not self.env.agents
        low, high = self.returns
        wins = total > 0 and total >= max(self.totals.values())
        success = over and (wins if self.success_at is None else total >= self.success_at)
        score = max(0.0, min(1.0, (total - low) / (high - low))) if over else 0.0
        return {"success": success, "score": score, "return": total}

    def close(self) -> None:
        """Close the environment and release its resources."""
        self.env.close()

    def _space(self, role: str) -> Any:
        return self.env.action_space(self._agents[role])

    def _name_action(self, role: str, action: Any) -> str:
        number = int(action) - int(self._space(role).start) if type(self._space(role)).__name__ == "Discrete" else -1
        return self.names[number] if 0 <= number < len(self.names) else str(action)

    def _advance(self) -> None:
        """Collect the reward of the next agent; step agents that are done with None, as `agent_iter` requires."""
        while self.env.agents:
            role = str(self.env.agent_selection)
            _, reward, terminated, truncated, _ = self.env.last(observe=False)
            self.totals[role] += float(reward)
            self._unread[role] += float(reward)
            if not (terminated or truncated):
                return
            self.env.step(None)


def describe_observation(observation: Any) -> str:
    """Return an observation as text, without its action mask.

    A board of two planes of 0 and 1, as in the classic games, is written with `x` for the agent and `o` for the other
    player; a table of at most 200 integers in rows; other observations as by `format_observation`.

    >>> describe_observation({"observation": numpy.array([[[1, 0], [0, 1]], [[0, 0], [0, 0]]]), "action_mask": [1]})
    'xo\\n..'
    """
    if isinstance(observation, Mapping):
        rest = {name: value for name, value in observation.items() if name != _MASK}
        if set(rest) == {"observation"}:
            return describe_observation(rest["observation"])
        return format_observation(rest)
    values = numpy.asarray(observation)
    if values.ndim == 3 and values.shape[2] == 2 and values.dtype.kind in "biu" and values.max(initial=0) <= 1:
        cells = values[:, :, 0] + 2 * values[:, :, 1]
        return "\n".join("".join(".xo?"[int(cell)] for cell in row) for row in cells)
    if values.ndim == 2 and values.dtype.kind in "biu" and values.size <= _MAX_WRITTEN:
        return "\n".join(" ".join(map(str, row)) for row in values.tolist())
    return format_observation(observation)


def make_pettingzoo(id: str, options: Mapping[str, Any] | None = None) -> Any:
    """Create a PettingZoo environment; a parallel one is converted.

    Args:
        id: Id in PettingZoo, such as `classic/tictactoe-v3`, or `package.module:function`.
        options: Keyword arguments of the environment.

    Raises:
        RecipeError: If the environment does not exist, or cannot be created with these options.
    """
    check_requirements("pettingzoo", _NEEDS)
    from pettingzoo import ParallelEnv, aec_registry, make, parallel_registry
    from pettingzoo.env_registry.exceptions import FailedToImport, PettingZooRegistryError
    from pettingzoo.utils.conversions import parallel_to_aec

    try:
        if ":" in id:
            env = find_part("environment", id, {})(**(options or {}))
        else:
            env = make("aec" if id in aec_registry else "parallel", id, **(options or {}))
        env = parallel_to_aec(env) if isinstance(env, ParallelEnv) else env
        agents = list(env.possible_agents)
    except RecipeError:
        raise
    except PettingZooRegistryError as error:
        known = [*aec_registry, *parallel_registry]
        missing = isinstance(error, FailedToImport)
        problem = " ".join(str(error).split()) if missing else f"no environment named {id}{did_you_mean(id, known)}"
        raise RecipeError(f"pettingzoo: {problem[:300]}") from None
    except Exception as error:  # an exception on the options, or no environment
        reason = " ".join(str(error).split())[:200]
        raise RecipeError(f"pettingzoo: {id} cannot be created: {type(error).__name__}: {reason}") from None
    if not agents:
        raise RecipeError(f"pettingzoo: {id} has no agents; define possible_agents")
    return env


def play_pettingzoo(
    *,
    id: str,
    options: dict[str, Any] | None = None,
    actions_named: list[str] | None = None,
    describe: str = "",
    illegal: Literal["refuse", "pass"] = "refuse",
    success_at: float | None = None,
    returns: tuple[float, float] = (-1.0, 1.0),
    actions: Actions = "call",
) -> Seat:
    """Return an environment of one seat of a PettingZoo environment; the seats are its agents.

    Ends: terminated when all agents are done, also at a limit of the environment; truncated if another player leaves.

    Args:
        id: Id in PettingZoo, such as `classic/tictactoe-v3`, or `package.module:function` that creates an AEC or
            parallel environment.
        options: Keyword arguments of the environment.
        actions_named: Names of discrete actions, in order.
        describe: `package.module:function` of (observation, agent) → text; empty: boards, tables and numbers.
        illegal: `refuse`: an illegal action is answered with an error and changes nothing. `pass`: the environment
            receives it, and usually ends the game with a loss.
        success_at: Minimum return of a success; null: above 0 and the highest of all agents.
        returns: Returns whose scores are 0 and 1; the score is clipped to this range.
        actions: Commands as a call of `act`, or as text.

    Raises:
        RecipeError: If the environment does not exist, or cannot be created.
    """
    low, high = returns
    if not low < high:
        raise RecipeError(f"pettingzoo: returns: the first must be below the second, got {low:g} and {high:g}")
    make = functools.partial(make_pettingzoo, id, options)
    game = functools.partial(
        PettingZooGame,
        make,
        id=id,
        actions_named=tuple(actions_named or ()),
        describe=find_part("description", describe, {}) if describe else None,
        illegal=illegal,
        success_at=success_at,
        returns=returns,
    )
    seat = Seat(game, actions=actions)
    seat.roles = _list_agents(id, repr(options), make)
    return seat


play_pettingzoo.needs = _NEEDS  # type: ignore[attr-defined]
_known_agents: dict[tuple[str, str], tuple[str, ...]] = {}


def _list_agents(id: str, options: str, make: Callable[[], Any]) -> tuple[str, ...]:
    """Return the agents of an environment, which is created once per id and options."""
    if (id, options) not in _known_agents:
        env = make()
        _known_agents[id, options] = tuple(map(str, env.possible_agents))
        env.close()
    return _known_agents[id, options]


class PettingZooTasks(EnvironmentSeeds):
    """Task source: seeds of one PettingZoo environment, one in ten of them held out.

    Args:
        id: Name of the environment, such as `classic/tictactoe-v3`; the same as that of the environment.
        seed: Determines the training tasks; the held-out tasks do not depend on it.
    """

    name = "pettingzoo"

    def __init__(self, *, id: str, seed: int = 0) -> None:
        check_requirements("pettingzoo", _NEEDS)
        super().__init__(id=id, seed=seed)
