"""Strategies of published methods (pruned trees, hints, probes): worked numbers and limits."""

import math
from dataclasses import replace

import pytest
import torch

from support.episodes import CHAT, TASK, call, collected, in_order, path, turn
from whetstone.chat import assistant
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.rollout.strategies import DoubtInjection, FrontierTree, GuidedRetry, Independent
from whetstone.rollout.strategies.doubt_injection import splice_logprobs
from whetstone.rollout.strategies.frontier_tree import link_as_tree, select_candidates
from whetstone.seeding import derive_random
from whetstone.trajectory import Author, EndReason, OffPolicy, RemovalScope, Score

EXPERT = in_order(call("12*34"), call("408+0"), assistant("408"))
WRONG = in_order(assistant("9"))


# ------------------------------------------------------------ frontier trees


def test_three_of_six_candidates_are_selected_from_distinct_parents():
    # n = 4, one finished after depth 1: 3 open × 2 candidates, 3 stay
    parents = [[path(f"{p}{k}", None, [turn(calls=("ok",), ids=(p, k))]) for k in range(2)] for p in range(3)]
    selected = select_candidates(parents, 3, derive_random(0))
    assert len(selected) == 3
    assert sorted(t.id[0] for t in selected) == ["0", "1", "2"]


def test_equal_siblings_are_deduplicated_if_others_exist():
    same = [path("a", None, [turn(ids=(1,))]), path("b", None, [turn(ids=(1,))]), path("c", None, [turn(ids=(2,))])]
    assert {t.id for t in select_candidates([same], 2, derive_random(0))} == {"a", "c"}
    assert len(select_candidates([same], 3, derive_random(0))) == 3  # too few without
    answered = [path(k, None, [turn(calls=("ok",), ids=(i,), observation="5")]) for i, k in enumerate("ab")]
    other = path("c", None, [turn(calls=("ok",), ids=(9,), observation="6")])
    selected = select_candidates([[*answered, other]], 2, derive_random(0), duplicates="observations")
    assert {t.id for t in selected} == {"a", "c"}


def test_tree_has_as_many_paths_as_the_group_and_shares_turns():
    def speak(moment):
        first = [call("12*34"), call("34*12")][int(moment.episode.split("#")[1]) % 2]
        return [first, call("408+0"), assistant("408")][min(moment.turn, 2)]

    group = collected(FrontierTree(group_size=4), speak)
    assert len(group.trajectories) == 4
    assert all(t.ended is EndReason.TERMINATED and t.solved for t in group.trajectories)
    known = {t.id: t for t in group.trajectories}
    forked = [t for t in group.trajectories if t.parent is not None]
    assert forked or len({id(t.turns[0]) for t in group.trajectories}) == 4
    for t in forked:
        assert t.turns[: t.fork_turn] == known[t.parent].turns[: t.fork_turn]
    assert group.costs.reused_tokens > 0


def test_tree_of_one_candidate_is_independent_sampling():
    plain = collected(Independent(group_size=3), EXPERT)
    tree = collected(FrontierTree(group_size=3, width=1), EXPERT)
    assert [t.parent for t in tree.trajectories] == [None] * 3
    assert [[turn.action.ids for turn in t.turns] for t in tree.trajectories] == [
        [turn.action.ids for turn in t.turns] for t in plain.trajectories
    ]
    assert tree.costs.sampled_tokens == plain.costs.sampled_tokens
    assert tree.costs.tool_calls == plain.costs.tool_calls


def test_paused_path_is_not_scored():
    scored = []

    async def reward(trajectory, task):
        scored.append(trajectory.ended)
        return (await _exact(trajectory, task)) if trajectory.ended is EndReason.TERMINATED else pytest.fail("paused")

    collected(FrontierTree(group_size=2), EXPERT, reward=reward)
    assert len(scored) == 2 + 2  # two candidates each of both first paths at the last depth


async def _exact(trajectory, task):
    return path("x", 1.0).score


def test_parent_is_the_trajectory_with_the_most_shared_turns():
    a, b, c = turn("a"), turn("b"), turn("c")
    tree = link_as_tree([path("x", 1, [a, b]), path("y", 1, [a, c]), path("z", 1, [a, c, b]), path("w", 1, [b])])
    assert [(t.parent, t.fork_turn) for t in tree] == [(None, None), ("x", 1), ("y", 2), (None, None)]


# ------------------------------------------------------------ hints


HINTED = replace(TASK, private={**TASK.private, "hint": "Multiply the two."})


def solve_with_hint(moment):
    """Answer correctly only if the context has the hint."""
    read = "".join(message.text for message in moment.conversation)
    return assistant("408" if "Multiply" in read else "9")


def test_up_to_half_of_a_failed_group_is_retried_with_a_hint():
    group = collected(GuidedRetry(group_size=4), solve_with_hint, task=HINTED)
    plain, guided = group.trajectories[:4], group.trajectories[4:]
    assert [t.solved for t in plain] == [False] * 4
    assert [t.solved for t in guided] == [True, True]
    assert all("hinted" in t.marks and t.off_policy is OffPolicy.CROSS_VIEW for t in guided)
    assert all(t.marks == () and t.off_policy is OffPolicy.RECOMPUTE for t in plain)


def test_guided_actions_are_trained_after_the_plain_prompt():
    guided = collected(GuidedRetry(group_size=2), solve_with_hint, task=HINTED).trajectories[-1]
    plain = CHAT.open(collected(Independent(group_size=1), solve_with_hint).trajectories[0].opening, ())
    (segment,) = guided.segments()
    assert segment.tokens.ids[: -len(guided.turns[0].action)][-4:] == plain.ids[-4:]
    assert "Multiply" not in CHAT.tokenizer.decode(segment.tokens.ids)
    assert "Multiply" in CHAT.tokenizer.decode(guided.turns[0].context.ids)


def test_group_with_a_success_is_not_retried():
    group = collected(GuidedRetry(group_size=3), in_order(assistant("408")), task=HINTED)
    assert len(group.trajectories) == 3


def test_guided_failures_count_and_are_not_trained():
    group = collected(GuidedRetry(group_size=2), WRONG, task=HINTED)
    assert [t.removal for t in group.trajectories] == [None, None, RemovalScope.LOSS_ONLY]
    with_failures = collected(GuidedRetry(group_size=2, keep_failures=True), WRONG, task=HINTED)
    assert [t.removal for t in with_failures.trajectories] == [None, None, None]


def test_missing_hint_or_hint_with_the_answer_is_refused():
    with pytest.raises(TaskError, match="has no hint"):
        collected(GuidedRetry(group_size=2), WRONG)
    telling = replace(HINTED, private={"answer": 408, "hint": "It is 408."})
    with pytest.raises(TaskError, match="its hint contains the answer, 408"):
        collected(GuidedRetry(group_size=2), WRONG, task=telling)


def test_answer_is_revealed_if_requested_and_not_trained():
    answer_task = replace(TASK, private={"answer": 408})
    rationalised = collected(
        GuidedRetry(group_size=1, hints="answer"), solve_with_answer, task=answer_task
    ).trajectories[-1]
    assert rationalised.solved
    (segment,) = rationalised.segments()
    assert "The answer is 408." in CHAT.tokenizer.decode(rationalised.turns[0].context.ids)
    assert "The answer is" not in CHAT.tokenizer.decode(segment.tokens.ids)
    with pytest.raises(TaskError, match="has no answer"):
        collected(
            GuidedRetry(group_size=1, hints="answer"),
            solve_with_answer,
            task=replace(TASK, private={}),
            reward=reward_nothing,
        )


def solve_with_answer(moment):
    """Answer correctly only if the context has the answer."""
    return assistant("408" if "408" in "".join(message.text for message in moment.conversation) else "9")


async def reward_nothing(trajectory, task):
    """Return a reward of 0."""
    return Score(0.0, success=False)


# ------------------------------------------------------------ probes


def test_rex_rag_worked_numbers():
    pool = [(5, 7, 9), (5, 7, 8), (5, 3), (2, 1)]
    probabilities = [math.exp(logprob) for logprob in splice_logprobs(pool, (5, 7, 9))]
    assert probabilities == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    assert math.exp(splice_logprobs(pool, (5, 3))[1]) == pytest.approx(1 / 3)
    ratios = [p / mu for p, mu in zip((0.1, 0.05), probabilities[1:], strict=True)]
    assert ratios == pytest.approx([0.15, 0.1])
    assert splice_logprobs([(5, 7)], (5, 7)) == [0.0, 0.0]


def test_ratios_to_splice_probabilities_leave_the_policy_gradient_unbiased():
    # weighted by policy over pool, spliced sentences have the expected gradient of sentences of the policy
    pool, paid = [(0, 1), (0, 2), (2, 1), (2, 1)], {(0, 1): 1.0, (0, 2): -0.5, (2, 1): 2.0}
    logits = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3).requires_grad_()  # token by token before it
    begin = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)

    def of_policy(sentence):
        return begin.log_softmax(0)[sentence[0]] + logits.log_softmax(1)[sentence[0], sentence[1]]

    exact = torch.autograd.grad(sum(of_policy(each).exp() * paid[each] for each in paid), (begin, logits))
    estimate = sum(
        (of_policy(each) - sum(splice_logprobs(pool, each))).exp() * paid[each] / len(pool) for each in pool
    )  # each sentence of the pool once
    for gradient, expected in zip(torch.autograd.grad(estimate, (begin, logits)), exact, strict=True):
        assert torch.allclose(gradient, expected, atol=1e-12)
    # without the ratio the mean differs: sentences would count by their frequency, not their probability
    uncorrected = sum(of_policy(each) * paid[each] / len(pool) for each in pool)
    assert not torch.allclose(torch.autograd.grad(uncorrected, logits)[0], exact[1], atol=1e-2)


def test_sentence_is_spliced_after_a_wrong_answer_and_trained_with_its_probability():
    def speak(moment):
        return assistant("408") if len(moment.prefix) else assistant("9")

    group = collected(DoubtInjection(group_size=1, chance=1.0, sentences=("Wait. ",)), speak)
    wrong, probe = group.trajectories
    assert (wrong.solved, probe.solved) == (False, True)
    action = probe.turns[0].action
    spliced = [k for k, author in enumerate(action.authors) if author is Author.INSERTED]
    assert spliced == list(range(len(CHAT.encode("Wait. "))))
    assert [action.logprobs[k] for k in spliced] == [0.0] * len(spliced)
    (segment,) = probe.segments()
    assert sum(segment.action_mask) == len(action)  # the sentence is trained, and so is the rest
    assert probe.turns[0].message.text.startswith("Wait. ")


@pytest.mark.parametrize("speak", [EXPERT, WRONG])
def test_probability_zero_or_a_correct_answer_is_independent_sampling(speak):
    chance = 0.0 if speak is WRONG else 1.0
    assert len(collected(DoubtInjection(group_size=3, chance=chance), speak).trajectories) == 3


@pytest.mark.parametrize(
    ("options", "message"), [({"chance": 2}, "0 to 1"), ({"sentences": ()}, "at least one sentence")]
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        DoubtInjection(group_size=2, **options)
