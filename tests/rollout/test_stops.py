"""Early stopping of episodes, and its end reasons."""

from dataclasses import replace

import pytest

from support.episodes import TASK, call, collected, in_order, path, played, turn
from whetstone.algorithms.credit_filters import void_turns
from whetstone.chat import assistant
from whetstone.chat.message import Message, Text
from whetstone.environments import ToolEnvironment
from whetstone.learning.columns import Columns
from whetstone.learning.token_index import index_groups
from whetstone.plugins import OptionError
from whetstone.rollout import MethodComponents
from whetstone.rollout.context_transforms import BudgetLine
from whetstone.rollout.early_stopping import BudgetExhausted, StragglerStop, VoidTurn, estimate_early_stopping
from whetstone.rollout.protocol import EpisodeKey, EpisodeState, Siblings
from whetstone.rollout.strategies import Independent
from whetstone.tools import pocket_calculator
from whetstone.trajectory import EndReason, Group, Score

STOP = (("void_turn", VoidTurn()),)


def so_far(turns, size=8, private=None):
    task = TASK if private is None else TASK.__class__("t", "", private)
    return EpisodeState(EpisodeKey(task, 0, 0, 0, size), (), tuple(turns))


# ------------------------------------------------------------ void turns


def test_simpletir_worked_check():
    """Stop after a call and a turn that is neither a call nor an answer: the episode ends at turn 2, void."""
    unread = Message("assistant", (Text("<call>oops"),))  # the start of a call without an end
    stopped = played(in_order(call("12*34"), unread, assistant("408")), stops=STOP)
    assert stopped.ended is EndReason.EARLY_STOPPED
    assert stopped.marks == ("void_turn",)
    assert len(stopped.turns) == 2
    answered = played(in_order(call("12*34"), assistant("408")), stops=STOP)
    assert answered.ended is EndReason.TERMINATED


def test_turn_without_the_answer_format_is_void():
    world = ToolEnvironment(tools=[pocket_calculator], answer=r"\d")
    stopped = played(in_order(call("12*34"), assistant("let me think")), environment=world, stops=STOP)
    assert (stopped.ended, len(stopped.turns)) == (EndReason.EARLY_STOPPED, 2)
    going_on = played(in_order(assistant("let me think"), assistant("408")), environment=world)
    assert [len(t.observation) for t in going_on.turns] == [1, 0]
    columns = Columns(
        index_groups([Group(TASK, (replace(stopped, score=Score(0.0)), replace(going_on, score=Score(1.0))))])
    )
    assert columns["void"].tolist() == [0, 1, 1, 0]


def test_void_trajectories_count_and_are_not_trained():
    trajectories = [path(str(i), r, [turn(calls=("ok",)), turn("4")]) for i, r in enumerate((1, 0, 0))]
    void = path("v", 0, [turn(calls=("ok",)), turn("")], ended=EndReason.EARLY_STOPPED, marks=("void_turn",))
    columns = Columns(index_groups([Group(TASK, (*trajectories[:2], void, trajectories[2]))]))
    assert columns.call(void_turns).tolist() == [1, 1, 0, 1]
    assert columns["rewards"].tolist() == [1, 0, 0, 0]


def test_group_without_void_turns_is_unchanged():
    words = in_order(call("12*34"), assistant("408"))
    plain, watched = played(words), played(words, stops=STOP)
    assert [t.action.ids for t in plain.turns] == [t.action.ids for t in watched.turns]
    assert plain.ended is watched.ended


def test_control_episodes_continue_after_a_stop_and_store_the_turn():
    unread = Message("assistant", (Text("<call>oops"),))
    words = in_order(call("12*34"), unread, unread, assistant("408"))
    control = played(words, stops=STOP, stop_control_fraction=0.999999)
    assert control.ended is EndReason.TERMINATED
    assert control.marks == ("void_turn_continued:2",)
    plain = played(words)
    assert [t.context.ids for t in control.turns] == [t.context.ids for t in plain.turns]  # no trace in the prompt
    scored = replace(control, score=Score(1.0, success=True))
    assert estimate_early_stopping([scored, control]) == {"void_turn_saved_turns": 2.0, "void_turn_lost_success": 1.0}
    assert estimate_early_stopping([control]) == {}
    assert played(words, stops=STOP, stop_control_fraction=1e-9).marks == ("void_turn",)


# ------------------------------------------------------------ lagging


def test_activevln_worked_numbers():
    """Let six of eight finish, failures in 4 5 5 6 7 8 turns: at 12 turns a straggler continues, at 13 it stops."""
    siblings = Siblings(ended=[(n, False) for n in (4, 5, 5, 6, 7, 8)])
    different = [turn(calls=("ok",), observation=str(k)) for k in range(13)]
    assert not StragglerStop()(so_far(different[:12]), siblings)
    assert StragglerStop()(so_far(different), siblings)
    assert not StragglerStop()(so_far(different), Siblings(ended=[(4, False)]))  # fewer than two


def test_limit_is_twice_the_turns_of_the_expert_or_of_a_typical_success():
    different = [turn(calls=("ok",), observation=str(k)) for k in range(9)]
    assert StragglerStop()(so_far(different[:7], private={"expert_turns": 3}), Siblings())
    assert not StragglerStop()(so_far(different[:6], private={"expert_turns": 3}), Siblings())
    siblings = Siblings(ended=[(2, True), (4, True), (9, False)])
    assert StragglerStop()(so_far(different[:7]), siblings)
    assert not StragglerStop()(so_far(different[:6]), siblings)


def test_repeated_answer_stops_the_episode():
    same = [turn(calls=("ok",), observation="wall") for _ in range(5)]
    assert StragglerStop()(so_far(same), Siblings())
    assert not StragglerStop()(so_far(same[:4]), Siblings())


def test_finished_siblings_are_visible():
    seen = []

    class Watching:
        def __call__(self, so_far, siblings):
            seen.append((dict(siblings.running), list(siblings.ended)))
            return False

    collected(
        Independent(group_size=2),
        in_order(call("1+1"), assistant("408")),
        method=MethodComponents(stops={"w": Watching()}),
    )
    assert any(set(running) == {"g/t#0", "g/t#1"} for running, _ in seen)


# ------------------------------------------------------------ budgets


def test_exhausted_budget_leaves_one_turn_to_answer():
    method = MethodComponents(
        context_transforms={"budget_line": BudgetLine(budgets=(2,))},
        stops={"budget_exhausted": BudgetExhausted(budgets=(2,))},
    )
    on = in_order(call("1+1"), call("2+2"), call("3+3"), assistant("408"))
    (stopped,) = collected(Independent(group_size=1), on, method=method).trajectories
    assert (stopped.ended, stopped.marks) == (EndReason.EARLY_STOPPED, ("budget_exhausted",))
    assert len(stopped.turns) == 3
    answers = in_order(call("1+1"), call("2+2"), assistant("408"))
    (answered,) = collected(Independent(group_size=1), answers, method=method).trajectories
    assert answered.solved


@pytest.mark.parametrize(
    ("options", "message"), [({"finished_fraction": 0}, "above 0"), ({"standstill": 1}, "at least 2")]
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        StragglerStop(**options)
