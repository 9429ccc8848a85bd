"""Turns are rewarded by their progress toward the goal."""

from functools import partial

import pytest

from support.episodes import collected
from support.tree_search import TASK, WAY, Maze
from whetstone.algorithms import ADVANTAGES
from whetstone.assembly.instantiate import build_function
from whetstone.assembly.rollout_components import build_strategy
from whetstone.chat import assistant
from whetstone.learning.columns import Columns
from whetstone.learning.token_index import index_groups
from whetstone.recipe import load_recipe
from whetstone.rewards import verdict
from whetstone.rollout.strategies.prover import Prover, best_of_k_probability, progress_rewards


def test_worked_numbers():
    assert progress_rewards([0.2, 0.5, 0.4, 0.9]) == pytest.approx([0.3, -0.1, 0.5])
    assert best_of_k_probability(0.5, 1) == 0.5
    assert best_of_k_probability(0.5, 4) == pytest.approx(0.9375)
    assert [best_of_k_probability(p, 4) for p in (0.0, 1.0)] == [0, 1]


def walk_maze(moment):
    """Walk the maze; sample 1 takes a wrong step in its second turn."""
    index = int(moment.episode.rpartition("#")[2])
    if index == 1 and moment.turn == 1:
        return assistant("left")
    return assistant(WAY[moment.turn])


def test_wrong_turn_costs_the_progress_so_far():
    group = collected(
        Prover(group_size=2, provers=2, best_of=1, alpha=2.0), walk_maze, environment=Maze, reward=verdict, task=TASK
    )
    right, wrong = group.trajectories
    assert (right.solved, wrong.solved) == (True, False)
    assert right.score.turns == pytest.approx((1.0, 0, 0))  # one half at first, then certain
    assert wrong.score.turns == pytest.approx((1.0, -2.0, 0))
    assert sum(wrong.score.turns) == pytest.approx(2.0 * (0 - 0.5))
    assert group.costs.environment_steps > 6


@pytest.mark.parametrize("alpha", [1.0, 3.0])
def test_weight_of_progress_is_that_of_the_recipe(alpha):
    resolved = load_recipe("rewarding-progress", [f"rollout.strategy.alpha={alpha}"])
    prover = build_strategy(resolved, None, 0)
    group = collected(prover, walk_maze, environment=Maze, reward=verdict, task=TASK)
    estimator = build_function(resolved, "advantage", resolved.recipe.advantage, ADVANTAGES)
    columns = Columns(index_groups([group]))
    progress = columns.call(estimator) - columns.call(partial(estimator, weight=0.0))
    # of the wrong trajectory: success of the best of four is likely at first (¾), certain after its first turn,
    # impossible after its second
    start = best_of_k_probability(0.75, 4)
    of_turns = [alpha * x for x in (1 - start, -1.0, 0.0)]
    assert progress[3:6].tolist() == pytest.approx(of_turns)


def test_invalid_options_are_refused():
    with pytest.raises(ValueError, match="must be at least 1"):
        Prover(group_size=2, provers=0)
