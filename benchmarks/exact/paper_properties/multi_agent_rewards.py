"""Rewards of the seats of a multi-agent environment, against a loop over the environment itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gymnasium.spaces import Discrete

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.environments.adapters.pettingzoo import PettingZooGame
from whetstone.trajectory import Task

_TURNS = 6


class Ring:
    """Environment with the AEC interface of PettingZoo: agents in a ring pass 0, 1 or 2 to the next, at a cost of 1.

    An agent that passes 2 leaves; the others continue, up to six turns in all.
    """

    possible_agents: Sequence[str] = ("a", "b", "c")

    def reset(self, seed: int | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.earned, self.infos = dict.fromkeys(self.agents, 0.0), {agent: dict[str, Any]() for agent in self.agents}
        self.agent_selection, self.turns = "a", 0
        self._next_alive = ""

    def action_space(self, agent: str) -> Discrete:
        return Discrete(3)

    def observe(self, agent: str) -> int:
        return self.turns

    def last(self, observe: bool = True) -> tuple[int | None, float, bool, bool, dict[str, Any]]:
        agent = self.agent_selection
        seen = self.observe(agent) if observe else None
        return seen, self.earned[agent], self.terminations[agent], self.truncations[agent], self.infos[agent]

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.agents.remove(agent)
        else:
            assert action is not None
            self.turns += 1
            self._next_alive = self._follow(agent)
            self.earned[agent] = -1.0  # `last` has returned the rewards before this turn
            if self._next_alive != agent:
                self.earned[self._next_alive] += action
            self.terminations[agent] = action == 2
            self.truncations = dict.fromkeys(self.possible_agents, self.turns >= _TURNS)
        ended = [each for each in self.agents if self.terminations[each] or self.truncations[each]]
        if self.agents:
            self.agent_selection = ended[0] if ended else self._next_alive

    def close(self) -> None:
        pass

    def _follow(self, agent: str) -> str:
        ring = [*self.possible_agents, *self.possible_agents]
        start = ring.index(agent) + 1
        return next(each for each in ring[start:] if each in self.agents)


def play_ring(actions: Sequence[int]) -> dict[str, float]:
    """Return the sum of rewards of each agent, by PettingZoo's loop over agents."""
    env, left = Ring(), list(actions)
    env.reset()
    totals = dict.fromkeys(env.possible_agents, 0.0)
    while env.agents:
        agent = env.agent_selection
        _, reward, terminated, truncated, _ = env.last()
        totals[agent] += reward
        env.step(None if terminated or truncated else left.pop(0))
    return totals


@exact(
    "learning-fly-gym-environment-pybullet-physics",
    of=PettingZooGame,
    note="by analogy: agents in a ring in the place of quadcopters; no physics and no training",
)
def seats_have_the_rewards_of_the_environment() -> list[Figure]:
    """In all 729 games of an environment of three agents, of which some leave before the others, the rewards of each
    seat after its own turns sum to the rewards that a loop over the environment itself reads for this agent; illegal
    commands change nothing."""
    gap, summed, moved, games = 0.0, 0.0, 0, 0
    for actions in itertools.product(range(3), repeat=_TURNS):
        game, left = PettingZooGame(Ring, id="ring"), list(actions)
        game.begin(Task("ring", ""), 0)
        rewards = dict.fromkeys(game.roles, 0.0)
        while role := game.to_move():
            moved += game.act(role, "3") or game.act(role, "pass on") or game.to_move() != role
            game.act(role, str(left.pop(0)))
            rewards[role] += game.collect_reward(role)
        rewards = {each: reward + game.collect_reward(each) for each, reward in rewards.items()}
        direct = play_ring(actions)
        gap = max(gap, *(abs(game.totals[each] - direct[each]) for each in game.roles))
        summed = max(summed, *(abs(rewards[each] - direct[each]) for each in game.roles))
        games += 1
    return [
        Figure("games", "=", 3**_TURNS, games),
        Figure("largest gap of a seat's return", "=", 0, gap),
        Figure("largest gap of the sum of a seat's rewards by turn", "=", 0, summed),
        Figure("illegal commands that changed the game", "=", 0, moved),
    ]
