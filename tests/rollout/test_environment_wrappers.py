"""Environment wrappers: further attempts, and an expert that replaces wrong actions."""

import pytest

from support.episodes import CHAT, TASK, call, collected, in_order, one_by_one, played
from whetstone.chat import ToolCall, assistant
from whetstone.environments import ToolEnvironment
from whetstone.errors import RecipeError
from whetstone.plugins import OptionError
from whetstone.rewards import attempts, unary_feedback
from whetstone.rewards.judges import ScriptedJudge
from whetstone.rewards.process.unary_feedback import unary_return
from whetstone.rollout import MethodComponents
from whetstone.rollout.environment_wrappers import LogReplay, SecondAttempt, SelfSearch, TryAgain
from whetstone.rollout.environment_wrappers.log_replay import actions_equal
from whetstone.rollout.strategies import Independent
from whetstone.tasks import Arithmetic
from whetstone.tools import pocket_calculator
from whetstone.trajectory import EndReason

ONE = Independent(group_size=1)


def one(speak, partner, **how):
    (trajectory,) = collected(ONE, speak, method=MethodComponents(environment_wrapper=partner), **how).trajectories
    return trajectory


# ------------------------------------------------------------ retry


def test_ufo_worked_numbers():
    """The answer is 7."""
    assert unary_return(["4", "4", "7"], solved_at=2) == pytest.approx(0.0833, abs=1e-4)
    assert unary_return(["7"], solved_at=0) == 1
    assert unary_return(["1", "2", "3", "4", "5"], solved_at=None) == 0
    assert unary_return(["4"] * 5, solved_at=None) == pytest.approx(-0.4)
    assert unary_return([], solved_at=None) == 0
    assert unary_return(["1/2", "0.5"], solved_at=None) == 0  # different as text
    assert unary_return([" A ", "a"], solved_at=None) == -0.25


def test_wrong_answer_is_reported_and_a_correct_one_ends():
    words = one_by_one(assistant("9"), call("12*34"), assistant("408"))
    trajectory = one(words, TryAgain(attempts=3), reward=unary_feedback)
    assert [len(t.observation) for t in trajectory.turns] == [1, 1, 0]
    assert "not correct" in trajectory.turns[0].observation[0].text
    assert trajectory.ended is EndReason.TERMINATED
    assert (trajectory.score.value, trajectory.solved) == (0.5, True)
    assert trajectory.score.parts["attempts"] == 2


def test_episode_ends_after_the_last_attempt():
    trajectory = one(one_by_one(assistant("1"), assistant("1")), TryAgain(attempts=2), reward=unary_feedback)
    assert len(trajectory.turns) == 2
    assert trajectory.score.value == -0.25
    assert not trajectory.solved


def test_single_attempt_is_the_plain_environment():
    words = in_order(call("12*34"), assistant("9"))
    plain, (partnered) = collected(ONE, words).trajectories[0], one(words, TryAgain(attempts=1))
    assert [t.context.ids for t in plain.turns] == [t.context.ids for t in partnered.turns]
    assert plain.ended is partnered.ended


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        ("Multiply again.", "Multiply again."),
        ("It is 408.", "That is not correct. Think again and answer once more."),
        ("It is not 1408, nor 408.5.", "It is not 1408, nor 408.5."),
    ],
)
def test_feedback_of_a_judge_never_contains_the_answer(advice, expected):
    questions = []
    judge = ScriptedJudge(answers=lambda question: questions.append(question) or {"feedback": advice})
    trajectory = one(one_by_one(assistant("9"), assistant("408")), TryAgain(feedback=judge), reward=unary_feedback)
    assert trajectory.turns[0].observation[-1].text == expected
    assert trajectory.solved
    assert len(questions) == 1  # the right answer needs no feedback
    assert "408" not in str(questions[0].material)


# ------------------------------------------------------------ a second attempt


@pytest.mark.parametrize("first", ["9", "408"])
def test_second_attempt_follows_any_answer_and_each_is_scored(first):
    trajectory = one(one_by_one(assistant(first), assistant("408")), SecondAttempt(), reward=attempts)
    assert len(trajectory.turns) == 2
    assert trajectory.score.turns == (float(first == "408"), 1.0)
    assert (trajectory.score.value, trajectory.solved) == (0.0, True)
    assert trajectory.score.parts == {"first_correct": float(first == "408"), "last_correct": 1.0}


def test_both_attempts_have_the_same_feedback():
    feedback = {
        one(one_by_one(assistant(first), assistant("1")), SecondAttempt(), reward=attempts).turns[0].observation[0].text
        for first in ("9", "408")
    }
    assert len(feedback) == 1


# ------------------------------------------------------------ an expert's episode


SOURCE = Arithmetic(kinds={"product_then_sum": 1})


def followed(speak, patches):
    return one(speak, LogReplay(source=SOURCE, patches=patches), task=SOURCE.held_out(1)[0])


def expert(moment):
    return SOURCE.demonstrate(moment.task, moment.conversation, moment.tools)


def test_actions_of_the_expert_are_not_patched():
    trajectory = followed(expert, 0)
    assert trajectory.solved
    assert trajectory.marks == ()


def test_error_is_patched_in_the_history_and_trained_unchanged():
    def errs(moment):
        return call("1+1") if moment.turn == 0 else expert(moment)

    trajectory = followed(errs, 1)
    assert trajectory.solved
    assert trajectory.marks == ("patched",)
    first, second = trajectory.segments()
    assert "1+1" in CHAT.tokenizer.decode(first.tokens.ids)
    assert "1+1" not in CHAT.tokenizer.decode(second.tokens.ids)
    wanted = SOURCE.held_out(1)[0].private["steps"][0]
    assert wanted in CHAT.tokenizer.decode(second.tokens.ids)
    # the expert's action is context, and never trained
    trained = [k for k, m in enumerate(second.action_mask) if m]
    assert wanted not in CHAT.tokenizer.decode([second.tokens.ids[k] for k in trained])
    assert trajectory.turns[0].reward == 0.0


def test_episode_ends_without_remaining_patches():
    trajectory = followed(in_order(call("1+1")), 0)
    assert trajectory.ended is EndReason.EARLY_STOPPED
    assert len(trajectory.turns) == 1
    assert len(followed(in_order(call("1+1")), 1).turns) == 2
    assert followed(in_order(call("1+1")), -1).ended is EndReason.TERMINATED


class Record:
    """Turns that were recorded before a kill."""

    def __init__(self, turns):
        self.turns, self.dropped = tuple(turns), 0

    def played(self, episode):
        return self.turns

    def add(self, episode, turn):
        pass

    def drop(self, episode):
        self.turns, self.dropped = (), self.dropped + 1


def test_interrupted_patched_episode_ends_as_an_undisturbed_one():
    def errs(moment):
        return call("1+1") if moment.turn == 0 else expert(moment)

    task = SOURCE.held_out(1)[0]

    def world():
        return LogReplay(source=SOURCE)(ToolEnvironment(tools=[pocket_calculator]), None)

    undisturbed = played(errs, environment=world(), task=task)
    assert undisturbed.marks == ("patched",)
    record = Record(undisturbed.turns[:1])
    resumed = played(errs, environment=world(), task=task, record=record)
    assert record.dropped == 1  # its history is not in its turns
    assert [t.context.ids for t in resumed.turns] == [t.context.ids for t in undisturbed.turns]
    assert resumed.marks == undisturbed.marks


def test_actions_are_compared_by_their_effect():
    assert actions_equal(call("1+1"), call("1+1"))
    assert not actions_equal(call("1+1"), call("1+2"))
    assert not actions_equal(call("1+1"), assistant("2"))
    assert actions_equal(assistant(" 2"), assistant("2 "))


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: TryAgain(attempts=0), "at least 1"),
        (lambda: LogReplay(source=object()), "no expert"),
        (lambda: LogReplay(source=SOURCE, patches=-2), "at least 0"),
    ],
)
def test_invalid_options_are_refused(create, message):
    with pytest.raises(OptionError, match=message):
        create()


def test_wrapper_keeps_the_task():
    assert (
        collected(ONE, in_order(assistant("408")), method=MethodComponents(environment_wrapper=TryAgain())).task is TASK
    )


# ------------------------------------------------------------ the policy as its own index


class Index:
    """A search tool that is never called."""

    def __init__(self):
        self.searched = []

    def search(self, query: str) -> str:
        """Search."""
        self.searched.append(query)
        return f"found {query}"


def searching(query):
    return assistant("", ToolCall("search", f'{{"query": "{query}"}}'))


def test_policy_writes_its_search_results_and_no_tool_is_called():
    index = Index()
    environment = ToolEnvironment(tools=[index.search, pocket_calculator])
    words = one_by_one(searching("tea"), assistant("tea is 4"), call("100*4"), assistant("408"))
    trajectory = one(words, SelfSearch(), environment=lambda: environment)
    assert index.searched == []
    assert [t.observation[0].role for t in trajectory.turns[:3]] == ["tool", "user", "tool"]
    assert trajectory.turns[0].observation[0].text.endswith("from what you know: tea")
    assert trajectory.turns[1].observation[0].text == "Go on with that."
    assert trajectory.turns[2].observation[0].text == "400"  # other tools are those of the environment
    assert [c.outcome for c in trajectory.calls] == ["ok", "ok"]
    assert trajectory.solved
    # the written results are tokens of the policy
    (segment,) = trajectory.segments()
    assert sum(segment.action_mask) == trajectory.action_tokens


def test_evaluation_calls_the_tool_and_an_unknown_tool_is_named():
    assert not SelfSearch().at_evaluation
    with pytest.raises(RecipeError, match='self_search: there is no tool "serch"'):
        SelfSearch(tool="serch")(ToolEnvironment(tools=[Index().search]), None)
