"""Several tries, one answer: by a verifier, by votes, by a search over turns."""

import random

import pytest

from tests_episodes import collected
from tests_search import TASK, Maze
from whetstone.assembly.methods import searching_of
from whetstone.chat import assistant
from whetstone.errors import RecipeError
from whetstone.evaluation import evaluation_of
from whetstone.recipe import load_recipe
from whetstone.rewards import verdict
from whetstone.rollout import SEARCHES
from whetstone.rollout.strategies import BestOf, MajorityVote, TreeSearch
from whetstone.rollout.strategies.choosing import voted
from whetstone.trajectory import EndReason, Trajectory


def by_chance(moment):
    return assistant(random.Random(moment.seed).choice(["left", "right"]))


def searched(strategy, seed=0, **more):
    return collected(strategy, by_chance, environment=Maze, reward=verdict, task=TASK, **more)


def answer_of(group):
    (one,) = (t for t in group.trajectories if "not_chosen" not in t.marks)
    return one


def test_the_verifiers_favourite_answers_and_all_tries_are_kept():
    def words(moment):
        return assistant("long" * (1 + int(moment.episode.rpartition("#")[2])))

    group = collected(BestOf(n=4, verifier="tests_search:longest"), words)
    assert len(group.trajectories) == 4
    assert answer_of(group).final_text == "long" * 4
    came_to = evaluation_of([group], temperature=1.0)
    assert (came_to.episodes, came_to.invalid) == (1, 0)
    assert came_to.spent["sampled_tokens"] > 3 * came_to.action_tokens / 2


def test_a_verifier_that_cannot_tell_is_no_favourite():
    def words(moment):
        return assistant("x" if moment.episode.endswith("#0") else "y")

    assert answer_of(collected(BestOf(n=3, verifier="tests_search:torn_for_some"), words)).final_text == "y"
    assert (
        answer_of(collected(BestOf(n=3, verifier="tests_search:torn_for_some"), lambda m: assistant("x"))) is not None
    )


def said(*answers):
    return [
        Trajectory(str(k), "t", (), (), EndReason.TERMINATED)
        if text is None
        else collected(BestOf(n=1, verifier="few_calls"), lambda m, text=text: assistant(text)).trajectories[0]
        for k, text in enumerate(answers)
    ]


def test_what_most_say():
    assert voted(said("a", "B", "b.", "a", "B")) == 1
    assert voted(said("a", "b")) == 0  # as many: the first
    assert voted(said(None, "b")) in (0, 1)
    assert voted([]) == 0


def test_votes_choose():
    def words(moment):
        return assistant("8" if moment.episode.endswith("#0") else "408")

    group = collected(MajorityVote(n=3), words)
    assert (answer_of(group).solved, [t.solved for t in group.trajectories]) == (True, [False, True, True])


@pytest.mark.parametrize("method", ["best_first", "a_star", "mcts"])
def test_a_search_finds_what_independent_tries_seldom_do(method):
    found = searched(TreeSearch(verifier="tests_search:near", method=method, expansions=6, width=4))
    assert answer_of(found).solved
    assert all(len(t.turns) == 3 for t in found.trajectories)


@pytest.mark.parametrize("method", ["best_first", "a_star", "mcts"])
def test_a_search_without_budget_left_ends_its_best_path(method):
    found = searched(TreeSearch(verifier="tests_search:near", method=method, expansions=1, width=1))
    assert len(found.trajectories) == 1
    assert answer_of(found).score is not None


def test_a_path_whose_promise_costs_more_is_left():
    cheap = searched(TreeSearch(verifier="tests_search:near", method="a_star", turn_cost=5.0, expansions=2, width=2))
    deep = searched(TreeSearch(verifier="tests_search:near", method="a_star", turn_cost=0.0, expansions=2, width=2))
    assert cheap.costs.environment_steps != deep.costs.environment_steps or cheap.trajectories != deep.trajectories


def test_episodes_that_end_at_once_leave_nothing_to_search():
    group = collected(TreeSearch(verifier="few_calls", expansions=4, width=2), lambda m: assistant("408"))
    assert answer_of(group).solved
    assert len(group.trajectories) == 2


def test_what_cannot_be_meant():
    with pytest.raises(ValueError, match="n is 1 or more"):
        BestOf(n=0, verifier="few_calls")
    with pytest.raises(ValueError, match="width is 1 or more"):
        TreeSearch(verifier="few_calls", width=0)
    with pytest.raises(RecipeError, match='no reward named "few_cals"; did you mean "few_calls"'):
        BestOf(n=2, verifier="few_cals")
    with pytest.raises(RecipeError, match=r"every try of a task is the same"):
        load_recipe("demo", ["evaluation.strategy={name: majority_vote, n: 3}"])
    given = ["evaluation.temperature=1.0", "evaluation.strategy={name: majority_vot, n: 3}"]
    with pytest.raises(RecipeError, match='did you mean "majority_vote"'):
        searching_of(load_recipe("demo", given))
    assert set(SEARCHES) == {"best_of", "majority_vote", "tree_search"}
