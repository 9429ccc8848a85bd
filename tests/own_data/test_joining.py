"""Stored episodes joined at an identical context: turns are unchanged, and no log-probabilities are claimed after
the join."""

from dataclasses import replace

from support.episodes import path, turn
from whetstone.data.offline_episodes import mark_offline
from whetstone.data.trajectory_stitching import add_stitched
from whetstone.trajectory import Author, Group, OffPolicy, Task, Tokens


def step(text, seen):
    """Return a turn after this observation."""
    action_turn = turn(text, ids=tuple(map(ord, text)))
    return replace(action_turn, context=Tokens.from_ids((seen,), Author.ENVIRONMENT), opens_segment=seen == 0)


def episode(name, reward, *steps, **more):
    return path(name, reward, [step(*each) for each in steps], **more)


A = episode("a", 0.0, ("left", 0), ("up", 5), ("lost", 6))
B = episode("b", 1.0, ("right", 0), ("on", 4), ("down", 5), ("won", 7))


def texts_of(trajectory):
    return [turn.message.text for turn in trajectory.turns]


def stitch(*episodes, max_stitched=9):
    group = add_stitched(Group(Task("t", ""), episodes), max_stitched)
    assert group.trajectories[: len(episodes)] == episodes
    return group.trajectories[len(episodes) :]


def test_prefix_and_suffix_are_joined_at_an_identical_context():
    best, other = stitch(A, B)
    assert texts_of(best) == ["left", "down", "won"]
    assert texts_of(other) == ["right", "on", "up", "lost"]
    assert (best.score.value, best.solved, other.score.value) == (1.0, True, 0.0)
    assert (best.parent, best.fork_turn, best.turns[0]) == ("a", 1, A.turns[0])
    assert best.marks == ("joined",)
    assert [texts_of(each) for each in stitch(A, B, max_stitched=1)] == [["left", "down", "won"]]
    assert stitch(A, B, max_stitched=0) == ()


def test_turns_after_the_join_are_trained_without_log_probs():
    (first, *_) = stitch(A, B)
    authors = [turn.action.authors[0] for turn in first.turns]
    assert authors == [Author.POLICY, Author.CORRECTED, Author.CORRECTED]
    (segment,) = first.segments()
    trained = [token for token, is_trained in zip(segment.tokens.ids, segment.action_mask, strict=True) if is_trained]
    assert trained == list(map(ord, "leftdownwon"))
    logprobs = [
        repr(p) for p, is_trained in zip(segment.tokens.logprobs, segment.action_mask, strict=True) if is_trained
    ]
    assert logprobs == ["-0.5"] * 4 + ["nan"] * 7
    (stored,) = mark_offline(Group(Task("t", ""), (first,)), "x").trajectories
    assert stored.off_policy is OffPolicy.RECOMPUTE


def test_values_of_turns_stay_with_their_turns():
    a = replace(A, score=replace(A.score, turns=(1.0, 2.0, 3.0), signals={"kind": (1.0, 2.0, 3.0)}))
    b = replace(B, score=replace(B.score, turns=(4.0, 5.0, 6.0, 7.0), signals={"kind": (4.0, 5.0, 6.0, 7.0), "x": ()}))
    (first, *_) = stitch(a, b)
    assert first.score.turns == first.score.signals["kind"] == (1.0, 6.0, 7.0)
    assert set(first.score.signals) == {"kind"}


def test_different_contexts_duplicates_and_other_starts_are_not_joined():
    assert stitch(A, episode("c", 1.0, ("right", 0), ("on", 4))) == ()
    assert stitch(B, replace(B, id="again")) == ()
    assert stitch(A, replace(B, opening=())) == ()
    assert stitch(A, replace(B, score=None)) == ()
    assert stitch(A, replace(B, greedy=True)) == ()
    folded = (*B.turns[:3], replace(B.turns[3], opens_segment=True))  # its context is another's history
    assert not any("won" in texts_of(each) for each in stitch(A, replace(B, turns=folded)))
