import math
from dataclasses import replace

import pytest

from whetstone.chat import assistant, user
from whetstone.trajectory import (
    Author,
    CallRecord,
    EndReason,
    Group,
    RemovalScope,
    Score,
    Task,
    Tokens,
    Trajectory,
    Turn,
)


def read(*ids):
    return Tokens.from_ids(ids, Author.ENVIRONMENT)


def drawn(*ids):
    n = len(ids)
    return Tokens.from_samples(ids, logprobs=[-0.5] * n, versions=[3] * n, entropies=[0.1] * n)


def turn(context, action, **more):
    return Turn(context, action, assistant("said"), **more)


def trajectory(*turns, **more):
    return Trajectory("t", "task", (user("hi"),), turns, EndReason.TERMINATED, **more)


def test_one_segment_holds_all_tokens_and_only_sampled_ones_are_trained():
    (segment,) = trajectory(turn(read(1, 2), drawn(3, 4), opens_segment=True), turn(read(5), drawn(6))).segments()
    assert segment.tokens.ids == (1, 2, 3, 4, 5, 6)
    assert segment.action_mask == (False, False, True, True, False, True)
    assert segment.turns == (0, 0, 0, 0, 1, 1)
    assert segment.tokens.versions == (-1, -1, 3, 3, -1, 3)
    assert [math.isnan(x) for x in segment.tokens.logprobs] == [True, True, False, False, True, False]


def test_rewritten_context_starts_another_segment():
    first, second = trajectory(
        turn(read(1), drawn(2), opens_segment=True), turn(read(1, 9, 9), drawn(3), opens_segment=True)
    ).segments()
    assert first.tokens.ids == (1, 2)
    assert second.tokens.ids == (1, 9, 9, 3)
    assert (first.index, second.index) == (0, 1)


def test_turn_with_a_training_context_is_trained_only_there():
    hinted = turn(read(1, 7), drawn(2), opens_segment=True, training_context=read(1))
    generated, trained = trajectory(hinted, turn(read(4), drawn(5))).segments()
    assert generated.tokens.ids == (1, 7, 2, 4, 5)
    assert generated.action_mask == (False, False, False, False, True)
    assert trained.tokens.ids == (1, 2)
    assert trained.action_mask == (False, True)


@pytest.mark.parametrize("author", Author)
def test_tokens_of_policy_and_experts_are_trained_in_final_form(author):
    tokens = Tokens.from_ids((5,), author)
    segments = trajectory(turn(read(1), tokens, opens_segment=True)).segments()
    assert bool(segments) == (author in (Author.POLICY, Author.EXPERT, Author.CORRECTED))


def test_fork_shares_its_first_turns_by_identity():
    shared = turn(read(1), drawn(2), opens_segment=True)
    twin = turn(read(1), drawn(2), opens_segment=True)
    left = trajectory(shared, turn(read(3), drawn(4)))
    right = replace(trajectory(shared, turn(read(3), drawn(5))), id="u", parent="t", fork_turn=1)
    assert left.turns[0] is right.turns[0]
    assert len({*left.turns, *right.turns}) == 3
    assert shared != twin  # equal in content, but two nodes of the tree


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        Tokens((1, 2), (Author.POLICY,), (0.0, 0.0), (0, 0), (0.0, 0.0))


def test_joining_no_tokens_is_empty():
    assert len(Tokens.concatenate([])) == 0
    assert Tokens.concatenate([read(1), drawn(2)]).ids == (1, 2)


def test_failed_or_removed_trajectories_are_in_no_statistic():
    right, wrong, failed = (
        trajectory(score=Score(1.0, success=True)),
        trajectory(score=Score(0.0)),
        replace(trajectory(), ended=EndReason.ERROR, removal=RemovalScope.BEFORE_BASELINE),
    )
    masked = replace(wrong, removal=RemovalScope.LOSS_ONLY)
    group = Group(Task("task", "?"), (right, wrong, failed, masked))
    assert group.rewards == (1.0, 0.0, 0.0)
    assert right.solved
    assert not wrong.solved


def test_every_end_reason_is_valid_or_a_failure_and_never_both_truncated_and_invalid():
    assert {reason for reason in EndReason if not reason.valid} == {"aborted", "infrastructure", "error"}
    assert not [reason for reason in EndReason if reason.cut_short and not reason.valid]


@pytest.mark.parametrize(
    ("outcome", "well_formed"),
    [
        ("ok", True),
        ("tool_error", True),
        ("timeout", True),
        ("unknown_tool", False),
        ("invalid_arguments", False),
        ("malformed_call", False),
    ],
)
def test_call_is_well_formed_if_it_could_be_executed(outcome, well_formed):
    assert CallRecord("f", outcome, 0.0).well_formed is well_formed
