"""Several attempts with one answer: by a verifier, by votes, and by a search over turns."""

import random

import pytest

from support.episodes import collected, path
from support.tree_search import TASK, Maze
from whetstone.assembly.rollout_components import build_evaluation_strategy
from whetstone.chat import assistant
from whetstone.errors import RecipeError
from whetstone.evaluation import summarize_episodes
from whetstone.evaluation.results import summarize_selection
from whetstone.recipe import load_recipe
from whetstone.rewards import verdict
from whetstone.rollout import SEARCHES
from whetstone.rollout.strategies import BestOf, MajorityVote, SiblingTurns, TreeSearch
from whetstone.rollout.strategies.best_of_n import majority_vote
from whetstone.trajectory import EndReason, Group, Trajectory


def act_randomly(moment):
    return assistant(random.Random(moment.seed).choice(["left", "right"]))


def run_search(strategy, seed=0, **more):
    return collected(strategy, act_randomly, environment=Maze, reward=verdict, task=TASK, **more)


def answer_of(group):
    (one,) = (t for t in group.trajectories if "not_chosen" not in t.marks)
    return one


def test_best_attempt_of_the_verifier_answers_and_all_attempts_are_kept():
    def words(moment):
        return assistant("long" * (1 + int(moment.episode.rpartition("#")[2])))

    group = collected(BestOf(n=4, verifier="support.tree_search:longest"), words)
    assert len(group.trajectories) == 4
    assert answer_of(group).final_text == "long" * 4
    summary = summarize_episodes([group], temperature=1.0)
    assert (summary.episodes, summary.invalid) == (1, 0)
    assert summary.spent["sampled_tokens"] > 3 * summary.action_tokens / 2


def test_attempt_that_the_verifier_cannot_score_is_not_chosen():
    def words(moment):
        return assistant("x" if moment.episode.endswith("#0") else "y")

    assert answer_of(collected(BestOf(n=3, verifier="support.tree_search:torn_for_some"), words)).final_text == "y"
    assert (
        answer_of(collected(BestOf(n=3, verifier="support.tree_search:torn_for_some"), lambda m: assistant("x")))
        is not None
    )


def attempts_with(*answers):
    return [
        Trajectory(str(k), "t", (), (), EndReason.TERMINATED)
        if text is None
        else collected(BestOf(n=1, verifier="few_calls"), lambda m, text=text: assistant(text)).trajectories[0]
        for k, text in enumerate(answers)
    ]


def test_majority_of_equal_answers_wins():
    assert majority_vote(attempts_with("a", "B", "b.", "a", "B")) == 1
    assert majority_vote(attempts_with("a", "b")) == 0  # a tie: the first
    assert majority_vote(attempts_with(None, "b")) in (0, 1)
    assert majority_vote([]) == 0


def test_majority_vote_chooses_an_attempt():
    def words(moment):
        return assistant("8" if moment.episode.endswith("#0") else "408")

    group = collected(MajorityVote(n=3), words)
    assert (answer_of(group).solved, [t.solved for t in group.trajectories]) == (True, [False, True, True])


@pytest.mark.parametrize("method", ["best_first", "a_star", "mcts"])
def test_search_solves_a_task_that_independent_attempts_rarely_solve(method):
    result = run_search(TreeSearch(verifier="support.tree_search:near", method=method, expansions=6, width=4))
    assert answer_of(result).solved
    assert all(len(t.turns) == 3 for t in result.trajectories)


@pytest.mark.parametrize("method", ["best_first", "a_star", "mcts"])
def test_search_without_budget_ends_its_best_path(method):
    result = run_search(TreeSearch(verifier="support.tree_search:near", method=method, expansions=1, width=1))
    assert len(result.trajectories) == 1
    assert answer_of(result).score is not None


def test_turn_cost_changes_the_searched_paths():
    cheap = run_search(
        TreeSearch(verifier="support.tree_search:near", method="a_star", turn_cost=5.0, expansions=2, width=2)
    )
    deep = run_search(
        TreeSearch(verifier="support.tree_search:near", method="a_star", turn_cost=0.0, expansions=2, width=2)
    )
    assert cheap.costs.environment_steps != deep.costs.environment_steps or cheap.trajectories != deep.trajectories


def test_episodes_of_one_turn_leave_nothing_to_search():
    group = collected(TreeSearch(verifier="few_calls", expansions=4, width=2), lambda m: assistant("408"))
    assert answer_of(group).solved
    assert len(group.trajectories) == 2


def test_invalid_options_are_refused():
    with pytest.raises(ValueError, match="n must be at least 1"):
        BestOf(n=0, verifier="few_calls")
    with pytest.raises(ValueError, match="width must be at least 1"):
        TreeSearch(verifier="few_calls", width=0)
    with pytest.raises(RecipeError, match='no reward named "few_cals"; did you mean "few_calls"'):
        BestOf(n=2, verifier="few_cals")
    with pytest.raises(RecipeError, match=r"every try of a task is the same"):
        load_recipe("demo", ["evaluation.strategy={name: majority_vote, n: 3}"])
    overrides = ["evaluation.temperature=1.0", "evaluation.strategy={name: majority_vot, n: 3}"]
    with pytest.raises(RecipeError, match='did you mean "majority_vote"'):
        build_evaluation_strategy(load_recipe("demo", overrides))
    assert set(SEARCHES) == {"best_of", "majority_vote", "sibling_turns", "tree_search"}


def test_search_ends_with_a_finished_path_of_the_wanted_value():
    full = run_search(TreeSearch(verifier="support.tree_search:near", expansions=12, width=2))
    early = run_search(TreeSearch(verifier="support.tree_search:near", expansions=12, width=2, min_value=3.0))
    assert answer_of(early).solved
    assert early.costs.environment_steps < full.costs.environment_steps


def test_depth_first_search_continues_the_longest_path():
    group = run_search(TreeSearch(verifier="support.tree_search:near", method="depth_first", expansions=2, width=2))
    assert {len(each.turns) for each in group.trajectories} == {3}
    assert group.costs.environment_steps == 2 * 1 + 2 * 2 + 2 * 3  # forks replay the turns of their parent


def test_best_sibling_of_each_turn_continues_and_the_worst_is_its_pair():
    group = run_search(SiblingTurns(group_size=4, verifier="support.tree_search:near"))
    best, *siblings = group.trajectories
    assert answer_of(group) is best
    assert best.solved
    assert siblings
    for sibling in siblings:
        assert sibling.fork_turn == len(sibling.turns) - 1 or sibling.fork_turn is None
        assert sibling.turns[:-1] == best.turns[: len(sibling.turns) - 1]
        assert sibling.score.value == best.score.value - 1
    summary = summarize_episodes([group], temperature=1.0)
    assert (summary.episodes, summary.success) == (1, 1.0)


def test_equal_candidates_give_no_pair():
    group = collected(
        SiblingTurns(group_size=3, verifier="support.tree_search:near"),
        lambda moment: assistant("left"),
        environment=Maze,
        reward=verdict,
        task=TASK,
    )
    assert len(group.trajectories) == 1


def test_selection_is_compared_with_one_sample():
    def attempts(*solved, chosen):
        marks = [() if k == chosen else ("not_chosen",) for k in range(len(solved))]
        rows = [path(str(k), float(each), marks=mark) for k, (each, mark) in enumerate(zip(solved, marks, strict=True))]
        return Group(TASK, tuple(rows), 0)

    groups = [attempts(1, 0, 0, 0, chosen=0), attempts(1, 1, 0, 0, chosen=2), attempts(0, 0, 0, 0, chosen=1)]
    # one sample: (1/4 + 2/4 + 0) / 3; chosen: 1/3; of two tasks with right and wrong attempts one is ranked right
    expected = {"one_sample": 0.25, "gain": pytest.approx(1 / 3 - 0.25), "rank_at_1": 0.5}
    assert summarize_selection(groups) == expected
    assert summarize_selection([Group(TASK, (path("a", 1.0),), 0)]) == {}
