"""A tree cut back, a hint where all failed, a probe behind a dead end; each with its worked numbers and its limit."""

import math
from dataclasses import replace

import pytest
import torch

from tests_episodes import CHAT, TASK, call, collected, in_order, path, turn
from whetstone.chat import assistant
from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.rollout.strategies import FrontierTree, GuidedRetry, Independent, Probed
from whetstone.rollout.strategies.frontier_tree import as_tree, keep
from whetstone.rollout.strategies.probed import splice_logprobs
from whetstone.seeding import derive_random
from whetstone.trajectory import Author, EndReason, OffPolicy, RemovalScope, Score

EXPERT = in_order(call("12*34"), call("408+0"), assistant("408"))
WRONG = in_order(assistant("9"))


# ------------------------------------------------------------ frontier trees


def test_of_six_candidates_three_stay_one_of_each_parent():
    # n = 4, one finished after depth 1: 3 open × 2 candidates, 3 stay
    parents = [[path(f"{p}{k}", None, [turn(calls=("ok",), ids=(p, k))]) for k in range(2)] for p in range(3)]
    kept = keep(parents, 3, derive_random(0))
    assert len(kept) == 3
    assert sorted(t.id[0] for t in kept) == ["0", "1", "2"]


def test_siblings_that_did_the_same_are_one_where_there_are_others():
    same = [path("a", None, [turn(ids=(1,))]), path("b", None, [turn(ids=(1,))]), path("c", None, [turn(ids=(2,))])]
    assert {t.id for t in keep([same], 2, derive_random(0))} == {"a", "c"}
    assert len(keep([same], 3, derive_random(0))) == 3  # too few without
    answered = [path(k, None, [turn(calls=("ok",), ids=(i,), observation="5")]) for i, k in enumerate("ab")]
    other = path("c", None, [turn(calls=("ok",), ids=(9,), observation="6")])
    kept = keep([[*answered, other]], 2, derive_random(0), duplicates="observations")
    assert {t.id for t in kept} == {"a", "c"}


def test_a_tree_has_as_many_paths_as_the_group_and_shares_turns():
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


def test_a_tree_of_one_candidate_is_independent_sampling():
    plain = collected(Independent(group_size=3), EXPERT)
    tree = collected(FrontierTree(group_size=3, width=1), EXPERT)
    assert [t.parent for t in tree.trajectories] == [None] * 3
    assert [[turn.action.ids for turn in t.turns] for t in tree.trajectories] == [
        [turn.action.ids for turn in t.turns] for t in plain.trajectories
    ]
    assert tree.costs.sampled_tokens == plain.costs.sampled_tokens
    assert tree.costs.tool_calls == plain.costs.tool_calls


def test_a_path_that_only_paused_is_not_scored():
    asked = []

    async def reward(trajectory, task):
        asked.append(trajectory.ended)
        return (await _exact(trajectory, task)) if trajectory.ended is EndReason.TERMINATED else pytest.fail("paused")

    collected(FrontierTree(group_size=2), EXPERT, reward=reward)
    assert len(asked) == 2 + 2  # both first paths' two candidates at the last depth


async def _exact(trajectory, task):
    return path("x", 1.0).score


def test_parents_are_named_by_the_most_that_is_shared():
    a, b, c = turn("a"), turn("b"), turn("c")
    tree = as_tree([path("x", 1, [a, b]), path("y", 1, [a, c]), path("z", 1, [a, c, b]), path("w", 1, [b])])
    assert [(t.parent, t.fork_turn) for t in tree] == [(None, None), ("x", 1), ("y", 2), (None, None)]


# ------------------------------------------------------------ hints


HINTED = replace(TASK, private={**TASK.private, "hint": "Multiply the two."})


def knows(moment):
    """Right only with the hint in view."""
    read = "".join(message.text for message in moment.conversation)
    return assistant("408" if "Multiply" in read else "9")


def test_where_all_fail_as_many_as_half_try_again_with_a_hint():
    group = collected(GuidedRetry(group_size=4), knows, task=HINTED)
    plain, guided = group.trajectories[:4], group.trajectories[4:]
    assert [t.solved for t in plain] == [False] * 4
    assert [t.solved for t in guided] == [True, True]
    assert all("hinted" in t.marks and t.off_policy is OffPolicy.CROSS_VIEW for t in guided)
    assert all(t.marks == () and t.off_policy is OffPolicy.RECOMPUTE for t in plain)


def test_guided_actions_are_trained_behind_the_plain_prompt():
    guided = collected(GuidedRetry(group_size=2), knows, task=HINTED).trajectories[-1]
    plain = CHAT.open(collected(Independent(group_size=1), knows).trajectories[0].opening, ())
    (segment,) = guided.segments()
    assert segment.tokens.ids[: -len(guided.turns[0].action)][-4:] == plain.ids[-4:]
    assert "Multiply" not in CHAT.tokenizer.decode(segment.tokens.ids)
    assert "Multiply" in CHAT.tokenizer.decode(guided.turns[0].context.ids)


def test_a_group_with_a_success_is_left_alone():
    group = collected(GuidedRetry(group_size=3), in_order(assistant("408")), task=HINTED)
    assert len(group.trajectories) == 3


def test_guided_failures_count_and_are_not_learned_from():
    group = collected(GuidedRetry(group_size=2), WRONG, task=HINTED)
    assert [t.removal for t in group.trajectories] == [None, None, RemovalScope.LOSS_ONLY]
    kept = collected(GuidedRetry(group_size=2, keep_failures=True), WRONG, task=HINTED)
    assert [t.removal for t in kept.trajectories] == [None, None, None]


def test_a_hint_must_be_there_and_must_not_hold_the_answer():
    with pytest.raises(TaskError, match="has no hint"):
        collected(GuidedRetry(group_size=2), WRONG)
    telling = replace(HINTED, private={"answer": 408, "hint": "It is 408."})
    with pytest.raises(TaskError, match="its hint holds the answer, 408"):
        collected(GuidedRetry(group_size=2), WRONG, task=telling)


def test_the_answer_is_told_where_it_is_asked_for_and_is_not_trained():
    told = replace(TASK, private={"answer": 408})
    rationalised = collected(GuidedRetry(group_size=1, hints="answer"), tells, task=told).trajectories[-1]
    assert rationalised.solved
    (segment,) = rationalised.segments()
    assert "The answer is 408." in CHAT.tokenizer.decode(rationalised.turns[0].context.ids)
    assert "The answer is" not in CHAT.tokenizer.decode(segment.tokens.ids)
    with pytest.raises(TaskError, match="has no answer"):
        collected(GuidedRetry(group_size=1, hints="answer"), tells, task=replace(TASK, private={}), reward=nothing)


def tells(moment):
    """Right only with the answer in view."""
    return assistant("408" if "408" in "".join(message.text for message in moment.conversation) else "9")


async def nothing(trajectory, task):
    """Never pays."""
    return Score(0.0, success=False)


# ------------------------------------------------------------ probes


def test_rex_rag_worked_numbers():
    pool = [(5, 7, 9), (5, 7, 8), (5, 3), (2, 1)]
    found = [math.exp(logprob) for logprob in splice_logprobs(pool, (5, 7, 9))]
    assert found == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    assert math.exp(splice_logprobs(pool, (5, 3))[1]) == pytest.approx(1 / 3)
    ratios = [p / mu for p, mu in zip((0.1, 0.05), found[1:], strict=True)]
    assert ratios == pytest.approx([0.15, 0.1])
    assert splice_logprobs([(5, 7)], (5, 7)) == [0.0, 0.0]


def test_ratios_to_how_a_sentence_was_drawn_leave_the_gradient_of_the_policy_unbiased():
    # what spliced sentences bring in the mean, weighed by policy over pool, is what the policy's own would bring
    pool, paid = [(0, 1), (0, 2), (2, 1), (2, 1)], {(0, 1): 1.0, (0, 2): -0.5, (2, 1): 2.0}
    logits = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3).requires_grad_()  # token by token before it
    begin = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)

    def of_policy(sentence):
        return begin.log_softmax(0)[sentence[0]] + logits.log_softmax(1)[sentence[0], sentence[1]]

    exact = torch.autograd.grad(sum(of_policy(each).exp() * paid[each] for each in paid), (begin, logits))
    drawn = sum(
        (of_policy(each) - sum(splice_logprobs(pool, each))).exp() * paid[each] / len(pool) for each in pool
    )  # each of the pool as often as another
    for ours, theirs in zip(torch.autograd.grad(drawn, (begin, logits)), exact, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)
    # without the ratio the mean is another: what was spliced would count by how often it was, not by how likely it is
    uncorrected = sum(of_policy(each) * paid[each] / len(pool) for each in pool)
    assert not torch.allclose(torch.autograd.grad(uncorrected, logits)[0], exact[1], atol=1e-2)


def test_behind_a_wrong_answer_a_sentence_is_spliced_and_trained_with_its_probability():
    def speak(moment):
        return assistant("408") if len(moment.begun) else assistant("9")

    group = collected(Probed(group_size=1, chance=1.0, sentences=("Wait. ",)), speak)
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
def test_without_a_chance_or_without_a_wrong_answer_it_is_independent_sampling(speak):
    chance = 0.0 if speak is WRONG else 1.0
    assert len(collected(Probed(group_size=3, chance=chance), speak).trajectories) == 3


@pytest.mark.parametrize(("options", "said"), [({"chance": 2}, "0 to 1"), ({"sentences": ()}, "one or more")])
def test_options_that_cannot_be(options, said):
    with pytest.raises(OptionError, match=said):
        Probed(group_size=2, **options)
