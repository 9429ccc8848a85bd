"""Episodes that end before their time, and what is said of them."""

from dataclasses import replace

import pytest

from tests_episodes import TASK, call, collected, in_order, path, played, turn
from whetstone.algorithms.credit_filters import void_turns
from whetstone.chat import assistant
from whetstone.chat.message import Message, Text
from whetstone.environments import ToolEnvironment
from whetstone.learning.columns import Columns
from whetstone.learning.token_index import index_groups
from whetstone.plugins import OptionError
from whetstone.rollout import Method
from whetstone.rollout.context_transforms import BudgetLine
from whetstone.rollout.protocol import EpisodeKey, EpisodeState, Siblings
from whetstone.rollout.stops import Lagging, Spent, VoidTurn
from whetstone.rollout.strategies import Independent
from whetstone.tools import pocket_calculator
from whetstone.trajectory import EndReason, Group, Score

STOP = (("void_turn", VoidTurn()),)


def so_far(turns, size=8, private=None):
    task = TASK if private is None else TASK.__class__("t", "", private)
    return EpisodeState(EpisodeKey(task, 0, 0, 0, size), (), tuple(turns))


# ------------------------------------------------------------ void turns


def test_simpletir_worked_check():
    """A call, then neither a call nor an answer: the episode ends at turn 2, void."""
    unread = Message("assistant", (Text("<call>oops"),))  # begins a call and is none
    stopped = played(in_order(call("12*34"), unread, assistant("408")), stops=STOP)
    assert stopped.ended is EndReason.EARLY_STOPPED
    assert stopped.marks == ("void_turn",)
    assert len(stopped.turns) == 2
    answered = played(in_order(call("12*34"), assistant("408")), stops=STOP)
    assert answered.ended is EndReason.TERMINATED


def test_where_answers_have_a_form_words_without_it_are_void():
    world = ToolEnvironment(tools=[pocket_calculator], answer=r"\d")
    stopped = played(in_order(call("12*34"), assistant("let me think")), environment=world, stops=STOP)
    assert (stopped.ended, len(stopped.turns)) == (EndReason.EARLY_STOPPED, 2)
    going_on = played(in_order(assistant("let me think"), assistant("408")), environment=world)
    assert [len(t.observation) for t in going_on.turns] == [1, 0]
    columns = Columns(
        index_groups([Group(TASK, (replace(stopped, score=Score(0.0)), replace(going_on, score=Score(1.0))))])
    )
    assert columns["void"].tolist() == [0, 1, 1, 0]


def test_void_trajectories_count_and_are_not_learned_from():
    kept = [path(str(i), r, [turn(calls=("ok",)), turn("4")]) for i, r in enumerate((1, 0, 0))]
    void = path("v", 0, [turn(calls=("ok",)), turn("")], ended=EndReason.EARLY_STOPPED, marks=("void_turn",))
    columns = Columns(index_groups([Group(TASK, (*kept[:2], void, kept[2]))]))
    assert columns.ask(void_turns).tolist() == [1, 1, 0, 1]
    assert columns["rewards"].tolist() == [1, 0, 0, 0]


def test_without_a_void_turn_nothing_changes():
    words = in_order(call("12*34"), assistant("408"))
    plain, watched = played(words), played(words, stops=STOP)
    assert [t.action.ids for t in plain.turns] == [t.action.ids for t in watched.turns]
    assert plain.ended is watched.ended


# ------------------------------------------------------------ lagging


def test_activevln_worked_numbers():
    """Six of eight are over, failures of 4 5 5 6 7 8 turns: at 12 turns a straggler runs on, at 13 it stops."""
    siblings = Siblings(ended=[(n, False) for n in (4, 5, 5, 6, 7, 8)])
    different = [turn(calls=("ok",), observation=str(k)) for k in range(13)]
    assert not Lagging()(so_far(different[:12]), siblings)
    assert Lagging()(so_far(different), siblings)
    assert not Lagging()(so_far(different), Siblings(ended=[(4, False)]))  # fewer than two


def test_longer_than_twice_the_expert_or_the_usual_success():
    different = [turn(calls=("ok",), observation=str(k)) for k in range(9)]
    assert Lagging()(so_far(different[:7], private={"expert_turns": 3}), Siblings())
    assert not Lagging()(so_far(different[:6], private={"expert_turns": 3}), Siblings())
    siblings = Siblings(ended=[(2, True), (4, True), (9, False)])
    assert Lagging()(so_far(different[:7]), siblings)
    assert not Lagging()(so_far(different[:6]), siblings)


def test_the_same_answer_again_and_again():
    same = [turn(calls=("ok",), observation="wall") for _ in range(5)]
    assert Lagging()(so_far(same), Siblings())
    assert not Lagging()(so_far(same[:4]), Siblings())


def test_siblings_are_known_as_they_end():
    seen = []

    class Watching:
        def __call__(self, so_far, siblings):
            seen.append((dict(siblings.under_way), list(siblings.ended)))
            return False

    collected(
        Independent(group_size=2), in_order(call("1+1"), assistant("408")), method=Method(stops={"w": Watching()})
    )
    assert any(set(under_way) == {"g/t#0", "g/t#1"} for under_way, _ in seen)


# ------------------------------------------------------------ budgets


def test_a_spent_budget_leaves_one_turn_to_answer():
    method = Method(
        context_transforms={"budget_line": BudgetLine(budgets=(2,))}, stops={"budget_exhausted": Spent(budgets=(2,))}
    )
    on = in_order(call("1+1"), call("2+2"), call("3+3"), assistant("408"))
    (stopped,) = collected(Independent(group_size=1), on, method=method).trajectories
    assert (stopped.ended, stopped.marks) == (EndReason.EARLY_STOPPED, ("budget_exhausted",))
    assert len(stopped.turns) == 3
    answers = in_order(call("1+1"), call("2+2"), assistant("408"))
    (answered,) = collected(Independent(group_size=1), answers, method=method).trajectories
    assert answered.solved


@pytest.mark.parametrize(
    ("options", "said"), [({"finished_fraction": 0}, "above 0"), ({"standstill": 1}, "two or more")]
)
def test_options_that_cannot_be(options, said):
    with pytest.raises(OptionError, match=said):
        Lagging(**options)
