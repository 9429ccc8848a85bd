"""Scripted opponents in two small games, whose expected scores are enumerated."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from paper_properties import exact
from whetstone.analysis.exact import Figure
from whetstone.chat import Message
from whetstone.environments.multi_agent import Seat
from whetstone.evaluation import Evaluation
from whetstone.reporting import Progress
from whetstone.training import evaluate_opponents, load_agent
from whetstone.trajectory import Task

PILE = 4
_COINS = 2
"""Number of moves of a player from the pile at most."""


class Subtraction:
    """Subtraction game: players take 1 or 2 sticks in turn; who takes the last one wins. Another command loses.

    A task has two coins per player, by which random players decide; all coins together are all random games.
    """

    roles: tuple[str, ...] = ("first", "second")
    wins_by_last = True

    def begin(self, task: Task, seed: int) -> None:
        self.pile, self.coins, self.turn, self.winner = PILE, task.private["coins"], "first", ""
        self.moves = dict.fromkeys(self.roles, 0)

    def to_move(self) -> str:
        return "" if self.winner else self.turn

    def seen(self, role: str) -> str:
        coin = self.coins[role][min(self.moves[role], _COINS - 1)]
        return f"{self.winner} wins" if self.winner else f"sticks {self.pile} coin {coin}"

    def act(self, role: str, command: str) -> bool:
        other = self.roles[1 - self.roles.index(role)]
        if command not in ("1", "2")[: self.pile]:
            self.winner = other
            return False
        self.pile, self.turn = self.pile - int(command), other
        self.moves[role] += 1
        if not self.pile:
            self.winner = role if self.wins_by_last else other
        return True

    def script(self, role: str) -> str:
        return "1"

    def verdict(self, role: str) -> Mapping[str, Any]:
        return {"success": self.winner == role, "score": float(self.winner == role)}


class Misere(Subtraction):
    """The same game, in which the player who takes the last stick loses."""

    wins_by_last = False


def play_subtraction() -> Seat:
    """Return the environment of one seat."""
    return Seat(Subtraction, actions="text")


def play_misere() -> Seat:
    """Return the environment of one seat of the game that the last stick loses."""
    return Seat(Misere, actions="text")


class CoinTasks:
    """One held-out task for each result of the coins of both players."""

    def task(self, index: int) -> Task:
        return self.held_out(index % 16 + 1)[-1]

    def held_out(self, count: int) -> Sequence[Task]:
        tosses = list(itertools.product((0, 1), repeat=_COINS))
        pairs = itertools.product(tosses, tosses)
        return [Task(f"coins-{k}", "", {"coins": {"first": a, "second": b}}) for k, (a, b) in enumerate(pairs)][:count]


def _read(conversation: Sequence[Message]) -> tuple[int, int]:
    """Return the number of sticks and the coin in the last message; (1, 0) if the game is over already."""
    sticks, coin = (re.findall(r"sticks (\d) coin (\d)", conversation[-1].text) or [("1", "0")])[-1]
    return int(sticks), int(coin)


def take_random(conversation: Sequence[Message], tools: Any, seed: int) -> str:
    """Take 1 or 2 sticks by the coin of the task."""
    sticks, coin = _read(conversation)
    return str(min(sticks, 1 + coin))


def take_most(conversation: Sequence[Message], tools: Any, seed: int) -> str:
    """Take 2 sticks if there are 2."""
    return str(min(2, _read(conversation)[0]))


Strategy = Callable[[int], Mapping[int, Fraction]]
"""Probability of each number of sticks, given the pile."""
_HALF = Fraction(1, 2)
_STRATEGIES: dict[str, Strategy] = {
    "script": lambda pile: {1: Fraction(1)},
    "take_random": lambda pile: {1: _HALF, 2: _HALF} if pile > 1 else {1: Fraction(1)},
    "take_most": lambda pile: {min(2, pile): Fraction(1)},
}


def win_probability(pile: int, mover: Strategy, other: Strategy, *, wins_by_last: bool) -> Fraction:
    """Return the probability that the player to move wins, by enumeration of all games."""
    total = Fraction(0)
    for taken, probability in mover(pile).items():
        left = pile - taken
        lost = win_probability(left, other, mover, wins_by_last=wins_by_last) if left else Fraction(not wins_by_last)
        total += probability * (1 - lost)
    return total


def expected_scores(agent: str, opponent: str, *, wins_by_last: bool) -> list[Fraction]:
    """Return the agent's probability of winning in the first and in the second seat."""
    own, other = _STRATEGIES[agent], _STRATEGIES[opponent]
    return [
        win_probability(PILE, own, other, wins_by_last=wins_by_last),
        1 - win_probability(PILE, other, own, wins_by_last=wins_by_last),
    ]


def game_recipe(game: str) -> dict[str, Any]:
    """Return a recipe of one of the games, with a model that is never sampled."""
    tiny = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
    return {
        "tasks": {"source": "paper_properties.opponents:CoinTasks"},
        "environment": {"name": f"paper_properties.opponents:{game}", "max_turns": 4},
        "reward": {"name": "verdict", "pays": "score"},
        "policy": {"tiny": tiny},
        "reinforcement": {},
        "evaluation": {"episodes": 16},
    }


def play_opponents(game: str, agent: str, opponents: Sequence[str]) -> dict[str, Evaluation]:
    """Evaluate a scripted agent against scripted opponents by name."""
    names = {name: name if name == "script" else f"paper_properties.opponents:{name}" for name in opponents}
    loaded = load_agent(game_recipe(game), policy=f"paper_properties.opponents:{agent}")
    results, _ = evaluate_opponents(loaded, list(names.values()), progress=Progress(quiet=True))
    return {name: results[written] for name, written in names.items()}


@exact("mars", of=evaluate_opponents, note="scripted players in the place of trained ones")
def scores_against_opponents_are_those_of_the_game_tree() -> list[Figure]:
    """Two scripted players play three opponents in a subtraction game and in the same game under other rules, on tasks
    that are all results of the random players' coins: the mean score over both seats and in each seat is the
    probability of winning that enumeration of the game tree gives. A random player against itself wins more often from
    one seat, and half of the games over both."""
    gap, games = 0.0, 0
    values: dict[tuple[str, str, str], Evaluation] = {}
    for game, by_last in (("play_subtraction", True), ("play_misere", False)):
        for agent in ("take_most", "take_random"):
            for opponent, result in play_opponents(game, agent, list(_STRATEGIES)).items():
                expected = expected_scores(agent, opponent, wins_by_last=by_last)
                seats = [result.seats[role].reward for role in Subtraction.roles]
                pairs = [*zip(seats, expected, strict=True), (result.reward, sum(expected) / 2)]
                gap = max(gap, *(abs(measured - float(exactly)) for measured, exactly in pairs))
                games += result.episodes
                values[game, agent, opponent] = result
    own = values["play_subtraction", "take_random", "take_random"]
    most = values["play_subtraction", "take_most", "take_random"]
    first = expected_scores("take_random", "take_random", wins_by_last=True)[0]
    mean = sum(expected_scores("take_most", "take_random", wins_by_last=True)) / 2
    return [
        Figure("games: 2 games, 2 players, 3 opponents, 16 tasks, 2 seats", "=", 2 * 2 * 3 * 16 * 2, games),
        Figure("largest gap to the game tree, by seat and over both seats", "=", 0, gap),
        Figure("the player that takes most, against the random one", "=", float(mean), most.reward),
        Figure("the random player against itself, first seat", "=", float(first), own.seats["first"].reward),
        Figure("the random player against itself, both seats", "=", 0.5, own.reward),
    ]
