"""A failed trajectory is revised after its first wrong turn with the turns of a successful sibling."""

import math
from dataclasses import replace

import pytest

from support.episodes import CHAT, call, collected
from whetstone.chat import assistant
from whetstone.rollout.strategies import Independent, RevisedTrajectories
from whetstone.rollout.strategies.revised_trajectories import build_revision, shared_turns
from whetstone.trajectory import Author, Score
from whetstone.trajectory_json import decode_trajectories, encode_trajectory

REFLECTION = "That was wrong. Another way: "


class Words:
    def tokenize(self, text):
        return tuple(CHAT.tokenizer.encode(text, add_special_tokens=False))


def speak_by_sample(moment):
    """Solve the task in even samples; call in vain, look, and answer wrongly in odd ones."""
    right = int(moment.episode.rpartition("#")[2]) % 2 == 0
    messages = [call("12*34"), assistant("408")] if right else [call("12*34+"), call("1+1"), assistant("2")]
    return messages[min(moment.turn, len(messages) - 1)]


def test_revision_is_the_wrong_turn_a_reflection_and_the_turns_of_the_success():
    good, bad = collected(Independent(group_size=2), speak_by_sample).trajectories
    revised = build_revision(bad, good, REFLECTION, Words())
    assert (good.solved, bad.solved, revised.solved) == (True, False, True)
    assert revised.score == good.score
    assert "revised" in revised.marks
    (segment,) = revised.segments()
    text = CHAT.tokenizer.decode(segment.tokens.ids)
    trained = CHAT.tokenizer.decode(
        [id for id, mask in zip(segment.tokens.ids, segment.action_mask, strict=True) if mask]
    )
    # the wrong call and its result are context, the reflection and the successful turns are trained
    assert "12*34+" in text
    assert "12*34+" not in trained
    assert trained.startswith(REFLECTION)
    assert trained.count("12*34") == 1
    assert "408" in trained
    assert "1+1" not in text  # no later turn of the failed trajectory remains
    # tokens are unchanged: prompt and wrong turn of the one, actions of the other
    opening, wrong = bad.turns[0].context.ids, bad.turns[0].action.ids
    turned = (*Words().tokenize(REFLECTION), *good.turns[0].action.ids)
    answered = (*good.turns[1].context.ids, *good.turns[1].action.ids)
    assert segment.tokens.ids == (*opening, *wrong, *bad.turns[1].context.ids, *turned, *answered)
    authors = {author for author, mask in zip(segment.tokens.authors, segment.action_mask, strict=True) if mask}
    assert authors == {Author.CORRECTED}
    assert all(math.isnan(p) for p, m in zip(segment.tokens.logprobs, segment.action_mask, strict=True) if m)


def test_failed_fork_is_revised_after_the_turns_shared_with_its_parent():
    good, bad, revised = collected(RevisedTrajectories(group_size=2), speak_by_sample).trajectories
    assert (bad.parent, bad.fork_turn) == (good.id, 1)
    assert revised.turns[0] is bad.turns[0] is good.turns[0]
    assert [t.message.text for t in revised.turns] == ["", "", f"{REFLECTION}408"]
    (segment,) = revised.segments()
    shared = sum(len(t.action) for t in good.turns)
    # the shared call keeps its log-probs, the wrong one is context, reflection and answer are trained
    assert sum(segment.action_mask) == shared + len(Words().tokenize(REFLECTION))


def test_shared_turns_stay_the_same_objects_in_records():
    good, bad, _ = collected(RevisedTrajectories(group_size=2), speak_by_sample).trajectories
    forked = replace(good, id="g/t#5", turns=(*bad.turns[:1], *good.turns[1:]), parent=bad.id, fork_turn=1)
    assert shared_turns(bad, forked) == 1
    longer = replace(bad, turns=(*bad.turns[:2], *bad.turns[1:]))
    revision = build_revision(longer, forked, REFLECTION, Words())
    assert revision.turns[0] is bad.turns[0]
    assert (revision.parent, revision.fork_turn) == (bad.id, 1)
    _, decoded = decode_trajectories([encode_trajectory(each) for each in (longer, revision)])
    assert [t.action.ids for t in decoded.turns] == [t.action.ids for t in revision.turns]
    assert [t.action.authors for t in decoded.turns] == [t.action.authors for t in revision.turns]


def test_impossible_revision_is_none():
    good, bad = collected(Independent(group_size=2), speak_by_sample).trajectories
    assert build_revision(replace(bad, turns=bad.turns[:1]), good, REFLECTION, Words()) is None  # it has no result
    assert build_revision(bad, replace(good, score=Score(1.0, turns=(0.0, 1.0))), REFLECTION, Words()) is None
    assert build_revision(bad, replace(good, opening=()), REFLECTION, Words()) is None
    rewritten = replace(good.turns[1], opens_segment=True)
    assert build_revision(bad, replace(good, turns=(good.turns[0], rewritten)), REFLECTION, Words()) is None


@pytest.mark.parametrize(("answers", "solved"), [(["408"], 3), (["7"], 0)])
def test_nothing_is_revised_if_all_succeed_or_all_fail(answers, solved):
    group = collected(RevisedTrajectories(group_size=3), lambda moment: assistant(answers[0]))
    assert len(group.trajectories) == 3
    assert sum(t.solved for t in group.trajectories) == solved
