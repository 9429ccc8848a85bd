"""Stored episodes joined where they read the same: every half as it was played, nothing claimed of how it was drawn."""

from dataclasses import replace

from tests_episodes import path, turn
from whetstone.data.joining import with_joined
from whetstone.data.stored_episodes import as_stored
from whetstone.trajectory import Author, Group, OffPolicy, Task, Tokens


def step(text, seen):
    """A turn behind what was seen."""
    made = turn(text, ids=tuple(map(ord, text)))
    return replace(made, context=Tokens.written((seen,), Author.ENVIRONMENT), opens_segment=seen == 0)


def episode(name, reward, *steps, **more):
    return path(name, reward, [step(*each) for each in steps], **more)


A = episode("a", 0.0, ("left", 0), ("up", 5), ("lost", 6))
B = episode("b", 1.0, ("right", 0), ("on", 4), ("down", 5), ("won", 7))


def spoken(trajectory):
    return [turn.message.text for turn in trajectory.turns]


def joined(*episodes, most=9):
    group = with_joined(Group(Task("t", ""), episodes), most)
    assert group.trajectories[: len(episodes)] == episodes
    return group.trajectories[len(episodes) :]


def test_the_beginning_of_one_goes_on_as_the_end_of_another_where_both_read_the_same():
    best, other = joined(A, B)
    assert spoken(best) == ["left", "down", "won"]
    assert spoken(other) == ["right", "on", "up", "lost"]
    assert (best.score.value, best.solved, other.score.value) == (1.0, True, 0.0)
    assert (best.parent, best.fork_turn, best.turns[0]) == ("a", 1, A.turns[0])
    assert best.marks == ("joined",)
    assert [spoken(each) for each in joined(A, B, most=1)] == [["left", "down", "won"]]
    assert joined(A, B, most=0) == ()


def test_what_stands_behind_the_join_is_trained_and_was_drawn_by_nobody():
    (first, *_) = joined(A, B)
    authors = [turn.action.authors[0] for turn in first.turns]
    assert authors == [Author.POLICY, Author.CORRECTED, Author.CORRECTED]
    (segment,) = first.segments()
    trained = [token for token, mine in zip(segment.tokens.ids, segment.action_mask, strict=True) if mine]
    assert trained == list(map(ord, "leftdownwon"))
    logprobs = [repr(p) for p, mine in zip(segment.tokens.logprobs, segment.action_mask, strict=True) if mine]
    assert logprobs == ["-0.5"] * 4 + ["nan"] * 7
    (stored,) = as_stored(Group(Task("t", ""), (first,)), "x").trajectories
    assert stored.off_policy is OffPolicy.RECOMPUTE


def test_values_of_turns_go_with_their_turns():
    a = replace(A, score=replace(A.score, turns=(1.0, 2.0, 3.0), signals={"kind": (1.0, 2.0, 3.0)}))
    b = replace(B, score=replace(B.score, turns=(4.0, 5.0, 6.0, 7.0), signals={"kind": (4.0, 5.0, 6.0, 7.0), "x": ()}))
    (first, *_) = joined(a, b)
    assert first.score.turns == first.score.signals["kind"] == (1.0, 6.0, 7.0)
    assert set(first.score.signals) == {"kind"}


def test_nothing_is_joined_that_read_otherwise_or_says_what_another_says_or_began_elsewhere():
    assert joined(A, episode("c", 1.0, ("right", 0), ("on", 4))) == ()
    assert joined(B, replace(B, id="again")) == ()
    assert joined(A, replace(B, opening=())) == ()
    assert joined(A, replace(B, score=None)) == ()
    assert joined(A, replace(B, greedy=True)) == ()
    folded = (*B.turns[:3], replace(B.turns[3], opens_segment=True))  # its context is another's history
    assert not any("won" in spoken(each) for each in joined(A, replace(B, turns=folded)))
