"""Rewritten histories: trained summaries, memories as context, rolled-back failed calls; credit stays per episode."""

import asyncio
import json
import math
from dataclasses import replace

import pytest

from support.episodes import (
    CHAT,
    LIMITS,
    TASK,
    call,
    collected,
    in_order,
    known,
    one_by_one,
    path,
    played,
    sampler_logprobs,
    turn,
)
from support.sandbox import PATIENT, needs_isolation
from whetstone.algorithms.advantages import group_relative
from whetstone.chat import ToolCall, assistant
from whetstone.environments import ToolEnvironment
from whetstone.learning.columns import Columns
from whetstone.learning.credit_assignment import CreditParts, assign_credit
from whetstone.learning.token_index import index_groups
from whetstone.plugins import OptionError
from whetstone.rollout import MethodComponents
from whetstone.rollout.context_rewrites import Fold, Rollback, Summary
from whetstone.rollout.context_rewrites.memory_folding import parse_memory
from whetstone.rollout.context_rewrites.rollback import code_similarity
from whetstone.rollout.protocol import Ask, EpisodeKey, EpisodeState, RestartContext
from whetstone.rollout.strategies import Independent
from whetstone.tools import Python, Shell, fold_memory, pocket_calculator
from whetstone.tools.protocol import is_stateless
from whetstone.trajectory import Author, EndReason, Group, Tokens

FOLD = assistant("", ToolCall("fold_memory", "{}"))


def both():
    return ToolEnvironment(tools=[pocket_calculator, fold_memory])


def authors(segment):
    return {author for author, trained in zip(segment.tokens.authors, segment.action_mask, strict=True) if trained}


# ------------------------------------------------------------ summaries


def test_long_history_is_summarized_and_continued():
    words = in_order(call("12*34"), assistant("408 so far"), call("408+0"), assistant("408"))
    trajectory = played(words, rewrites=(Summary(tokens=1, max_summaries=1),))
    assert [t.aside for t in trajectory.turns] == [False, True, False, False]
    assert [t.opens_segment for t in trajectory.turns] == [True, False, True, False]
    assert trajectory.ended is EndReason.TERMINATED
    first, second = trajectory.segments()
    assert "408 so far" in CHAT.tokenizer.decode(second.tokens.ids)
    assert "Summarise" not in CHAT.tokenizer.decode(second.tokens.ids)
    # the summary is trained in its own segment and context in the next
    trained = [k for k, m in enumerate(first.action_mask) if m]
    assert "408 so far" in CHAT.tokenizer.decode([first.tokens.ids[k] for k in trained])
    inherited = [k for k, m in enumerate(second.action_mask) if m]
    assert "so far" not in CHAT.tokenizer.decode([second.tokens.ids[k] for k in inherited])
    # every token has the log-probability of its sampling
    assert len(known(sampler_logprobs(trajectory))) == trajectory.action_tokens


def test_limit_that_is_not_reached_changes_nothing():
    words = in_order(call("12*34"), assistant("408"))
    plain, watched = played(words), played(words, rewrites=(Summary(tokens=10_000),))
    assert [t.action.ids for t in plain.turns] == [t.action.ids for t in watched.turns]
    assert [t.context.ids for t in plain.turns] == [t.context.ids for t in watched.turns]


def test_summaries_are_limited_and_do_not_count_as_turns():
    words = in_order(*[call("1+1"), assistant("s")] * 3, assistant("2"))
    trajectory = played(words, rewrites=(Summary(tokens=1, max_summaries=2),), limits=LIMITS)
    assert sum(t.aside for t in trajectory.turns) == 2
    limited = played(in_order(*[call("1+1"), assistant("s")] * 9), rewrites=(Summary(tokens=1, max_summaries=9),))
    assert limited.ended is EndReason.MAX_TURNS
    assert sum(not t.aside for t in limited.turns) == LIMITS.max_turns


def test_supo_worked_numbers():
    """Compute outcomes 1 0 0 1 with 2 0 1 0 summaries: seven rows, one advantage per episode."""
    paths = []
    for k, (reward, summaries) in enumerate(zip((1, 0, 0, 1), (2, 0, 1, 0), strict=True)):
        paths.append(path(f"{k}", reward, [turn(str(i)) for i in range(summaries + 1)]))  # each turn opens a segment
    indexed = index_groups([Group(TASK, tuple(paths))])
    assert sum(len(each.segments) for each in indexed) == 7
    credit = assign_credit(CreditParts(advantage=group_relative), indexed, 1, Columns)
    rows = [max(each.segment.advantages, key=abs) for each in credit.by_group[0]]
    assert [row / rows[0] for row in rows] == pytest.approx([1, 1, 1, -1, -1, -1, 1])


@pytest.mark.parametrize(
    ("tokens", "turns", "expected"),
    [
        (50, 1, None),
        (150, 2, Ask),
        (950, 2, Ask),
        (950, 1, Ask),
    ],
)
def test_turns_that_do_not_fit_are_dropped_first(tokens, turns, expected):
    so_far = EpisodeState(EpisodeKey(TASK, 0), (), tuple(turn(calls=("ok",)) for _ in range(turns)), (), tokens, 1000)
    request = asyncio.run(Summary(tokens=100)(so_far))
    assert (request is None) == (expected is None)
    if expected:
        assert request.drop == (1 if tokens == 950 and turns == 2 else 0)


def test_dropped_turn_is_marked_and_counted():
    plain = played(in_order(call("12*34"), call("408+0"), assistant("408"))).turns
    one = sum(len(t.context) + len(t.action) for t in plain[:1]) + len(plain[1].context)
    two = one + len(plain[1].action) + len(plain[2].context)
    words = one_by_one(call("12*34"), call("408+0"), assistant("s"), assistant("408"))
    method = MethodComponents(rewrites={"summary": Summary(tokens=one, max_summaries=1, room=40, question="Sum.")})
    tight = replace(LIMITS, context_length=two + 20)  # the question would fit, but not with room for an answer
    group = collected(Independent(group_size=1), words, method=method, limits=tight)
    (trajectory,) = group.trajectories
    assert trajectory.marks == ("turn_dropped",)
    assert [t.aside for t in trajectory.turns] == [False, True, False]
    assert group.costs.sampled_tokens == trajectory.action_tokens + len(plain[1].action)


# ------------------------------------------------------------ memories


def test_fold_continues_after_a_memory_that_is_not_trained():
    words = in_order(call("12*34"), FOLD, assistant("408"))
    trajectory = played(words, environment=both(), rewrites=(Fold(writer="listing"),))
    assert [t.opens_segment for t in trajectory.turns] == [True, False, True]
    first, second = trajectory.segments()
    assert sum(first.action_mask) == len(trajectory.turns[0].action) + len(trajectory.turns[1].action)
    assert sum(second.action_mask) == len(trajectory.turns[2].action)
    assert authors(second) == {Author.POLICY}
    text = CHAT.tokenizer.decode(second.tokens.ids)
    memory = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert memory["tool"][0]["outcome"] == "408"
    assert memory["episodic"] == "1 calls made"


MEMORY = '{"episodic": "made one call", "working": "say it", "tool": [{"call": "12*34", "outcome": "408"}]}'


def test_policy_is_trained_on_the_memory_it_writes_and_reads_it_later():
    words = in_order(call("12*34"), FOLD, assistant(f"Here it is: {MEMORY}"), assistant("408"))
    trajectory = played(words, environment=both(), rewrites=(Fold(),))
    assert [t.aside for t in trajectory.turns] == [False, False, True, False]
    assert [t.opens_segment for t in trajectory.turns] == [True, False, False, True]
    first, second = trajectory.segments()
    assert sum(first.action_mask) == sum(len(t.action) for t in trajectory.turns[:3])
    assert sum(second.action_mask) == len(trajectory.turns[3].action)
    read = CHAT.tokenizer.decode(second.tokens.ids)
    assert json.loads(read[read.index("{") : read.rindex("}") + 1]) == json.loads(MEMORY)
    assert "Here it is" not in read
    assert "Write your memory" not in read
    assert len(known(sampler_logprobs(trajectory))) == trajectory.action_tokens


def test_policy_without_a_memory_is_asked_again_and_then_its_text_is_used():
    words = in_order(call("12*34"), FOLD, assistant("it was 408"), assistant(MEMORY), assistant("408"))
    mended = played(words, environment=both(), rewrites=(Fold(),))
    assert [t.aside for t in mended.turns] == [False, False, True, True, False]
    assert "made one call" in CHAT.tokenizer.decode(mended.turns[4].context.ids)
    words = in_order(call("12*34"), FOLD, assistant("it was 408"), assistant("408 it was"), assistant("408"))
    retried = played(words, environment=both(), rewrites=(Fold(characters=6),))
    text = CHAT.tokenizer.decode(retried.turns[4].context.ids)
    assert "408 it" in text
    assert "408 it " not in text


def test_memory_is_a_listing_if_the_request_does_not_fit():
    words = in_order(call("12*34"), FOLD, assistant("408"))
    trajectory = played(words, environment=both(), rewrites=(Fold(room=10**6),))
    assert [t.aside for t in trajectory.turns] == [False, False, False]
    assert "1 calls made" in CHAT.tokenizer.decode(trajectory.turns[2].context.ids)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"mood": 1}', "{" * 5000 + "}" * 5000])
def test_invalid_memory_is_none(text):
    assert parse_memory(text) is None


def test_deepagent_worked_numbers():
    """Check turns of 10, 20, a fold of 1, and 30 tokens after a memory of 15: 31 and 30 are trained, 15 are masked."""
    turns = [turn(ids=tuple(range(n))) for n in (10, 20, 1, 30)]
    continued = [replace(t, opens_segment=k in (0, 3)) for k, t in enumerate(turns)]
    memory = Tokens.from_ids(tuple(range(15)), Author.ENVIRONMENT)
    continued[3] = replace(continued[3], context=memory)
    first, second = path("x", 1, continued).segments()
    assert (sum(first.action_mask), sum(second.action_mask)) == (31, 30)
    assert (len(second), second.action_mask[:15]) == (45, (False,) * 15)


def test_two_consecutive_folds_are_one_fold():
    words = in_order(call("12*34"), FOLD, FOLD, assistant("408"))
    trajectory = played(words, environment=both(), rewrites=(Fold(writer="listing"),))
    assert [t.opens_segment for t in trajectory.turns] == [True, False, True, False]


def test_memory_can_be_written_by_a_function():
    words = in_order(call("12*34"), FOLD, assistant("408"))
    trajectory = played(words, environment=both(), rewrites=(Fold(writer="support.small:scribe", characters=5),))
    assert "short" in CHAT.tokenizer.decode(trajectory.turns[2].context.ids)
    assert "shorter" not in CHAT.tokenizer.decode(trajectory.turns[2].context.ids)


# ------------------------------------------------------------ rollback


def test_cleaner_worked_numbers():
    failed = "x=1\nprint(x+y)\n"
    assert code_similarity(failed, "x=1\ny=2\nprint(x+y)\n") == pytest.approx(0.8824, abs=1e-4)
    assert code_similarity(failed, "import sympy as sp\nsp.solve('z**2-4')\n") == pytest.approx(0.1887, abs=1e-4)


def test_repaired_call_replaces_the_failed_one():
    words = one_by_one(call("12*34+"), call("12*34"), assistant("408"))
    trajectory = played(words, rewrites=(Rollback(),))
    assert [c.outcome for c in trajectory.calls] == ["ok"]
    assert len(trajectory.turns) == 2
    assert "repaired" in trajectory.marks
    first = trajectory.turns[0].action
    assert set(first.authors) == {Author.CORRECTED}
    assert all(map(math.isnan, first.logprobs))
    (segment,) = trajectory.segments()
    assert "error" not in CHAT.tokenizer.decode(segment.tokens.ids)
    assert sum(segment.action_mask) == trajectory.action_tokens  # the repaired call is trained
    clean = played(one_by_one(call("12*34"), assistant("408")))
    assert segment.tokens.ids == clean.segments()[0].tokens.ids


@needs_isolation
def test_failed_code_in_a_new_interpreter_per_call_is_replaced_by_its_fix():
    """CLEANER: the failed code and its error leave the history, which then equals that of code without an error."""

    def code(text):
        return assistant("", ToolCall("python", json.dumps({"code": text})))

    def environment(**options):
        return ToolEnvironment(tools=[Python(limits=PATIENT, **{"persistence": "reset", **options})])

    words = one_by_one(code("12*x"), code("12*34"), assistant("408"))
    mended = played(words, environment=environment(), rewrites=(Rollback(),))
    clean = played(one_by_one(code("12*34"), assistant("408")), environment=environment())
    assert "repaired" in mended.marks
    assert mended.segments()[0].tokens.ids == clean.segments()[0].tokens.ids
    assert set(mended.turns[0].action.authors) == {Author.CORRECTED}  # the learner computes its log-probs again
    assert [is_stateless(environment(persistence=each)) for each in ("reset", "persistent")] == [True, False]
    assert not is_stateless(environment(sandbox="unsafe"))
    assert is_stateless(ToolEnvironment(tools=[Shell(persistence="reset")]))


def test_reasoning_is_kept_if_only_the_call_is_repaired():
    rollback = Rollback()
    failed, similar, different = call("12*34+"), call("12*34"), call("7")
    failed = assistant("let me see", *failed.tool_calls)
    similar, different = assistant("ah", *similar.tool_calls), assistant("ah", *different.tool_calls)
    assert rollback.correct_message(failed, similar).text == "let me see"
    assert Rollback(threshold=0.99).correct_message(failed, similar).text == "ah"
    assert rollback.correct_message(failed, similar).tool_calls == similar.tool_calls
    assert Rollback(threshold=0.999).correct_message(failed, different).text == "ah"


def test_unrepaired_calls_and_long_chains_are_kept():
    never = one_by_one(call("12*34+"), call("12*34+"), assistant("9"))
    assert len(played(never, rewrites=(Rollback(),)).turns) == 3
    long = [*[call("1+")] * 4, call("1+1"), assistant("2")]
    assert len(played(one_by_one(*long), rewrites=(Rollback(retries=3),)).turns) == 6
    assert len(played(one_by_one(*long), rewrites=(Rollback(retries=4),)).turns) == 2


def test_skipped_repair_is_independent_sampling():
    words = one_by_one(call("12*34+"), call("12*34"), assistant("408"))
    assert len(played(words, rewrites=(Rollback(skip_fraction=1.0),)).turns) == 3


@pytest.mark.parametrize(
    ("create", "message"),
    [(lambda: Summary(tokens=0), "at least 1"), (lambda: Rollback(skip_fraction=2), "0 to 1")],
)
def test_invalid_options_are_refused(create, message):
    with pytest.raises(OptionError, match=message):
        create()


def test_answer_to_a_question_restarts_the_context():
    so_far = EpisodeState(EpisodeKey(TASK, 0), (), (turn("it was 5", aside=True),))
    assert isinstance(asyncio.run(Summary(tokens=1)(so_far)), RestartContext)
