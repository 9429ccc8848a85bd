"""Turns are paid by how much nearer they bring the goal."""

from functools import partial

import pytest

from tests_episodes import collected
from tests_search import TASK, WAY, Maze
from whetstone.algorithms import ADVANTAGES
from whetstone.assembly.instantiate import function_of
from whetstone.assembly.methods import strategy_of
from whetstone.chat import assistant
from whetstone.learning.columns import Columns
from whetstone.learning.token_index import index_groups
from whetstone.recipe import load_recipe
from whetstone.rewards import verdict
from whetstone.rollout.strategies.prover import Prover, likely, progress


def test_worked_numbers():
    assert progress([0.2, 0.5, 0.4, 0.9]) == pytest.approx([0.3, -0.1, 0.5])
    assert likely(0.5, 1) == 0.5
    assert likely(0.5, 4) == pytest.approx(0.9375)
    assert [likely(p, 4) for p in (0.0, 1.0)] == [0, 1]


def walking(moment):
    """The sample of index 0 walks the right way; others turn wrong at their second step; who goes on goes right."""
    index = int(moment.episode.rpartition("#")[2])
    if index == 1 and moment.turn == 1:
        return assistant("left")
    return assistant(WAY[moment.turn])


def test_a_turn_that_loses_the_way_costs_what_there_was():
    group = collected(
        Prover(group_size=2, provers=2, best_of=1, alpha=2.0), walking, environment=Maze, reward=verdict, task=TASK
    )
    right, wrong = group.trajectories
    assert (right.solved, wrong.solved) == (True, False)
    assert right.score.turns == pytest.approx((1.0, 0, 0))  # one half at first, then sure
    assert wrong.score.turns == pytest.approx((1.0, -2.0, 0))
    assert sum(wrong.score.turns) == pytest.approx(2.0 * (0 - 0.5))
    assert group.costs.environment_steps > 6


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_what_progress_counts_for_is_what_the_recipe_says(alpha):
    resolved = load_recipe("rewarding-progress", [f"rollout.strategy.alpha={alpha}"])
    prover = strategy_of(resolved, None, 0)
    group = collected(prover, walking, environment=Maze, reward=verdict, task=TASK)
    estimator = function_of(resolved, "advantage", resolved.recipe.advantage, ADVANTAGES)
    columns = Columns(index_groups([group]))
    found = columns.ask(estimator) - columns.ask(partial(estimator, weight=0.0))
    # of four, the one that turns wrong: success of the best of four is likely at first (¾), sure behind its first turn,
    # gone behind its second
    start = likely(0.75, 4)
    of_turns = [alpha * x for x in (1 - start, -1.0, 0.0)]
    assert found[3:6].tolist() == pytest.approx(of_turns)


def test_what_cannot_be_meant():
    with pytest.raises(ValueError, match="1 or more"):
        Prover(group_size=2, provers=0)
