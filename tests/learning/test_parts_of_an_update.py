"""Updates divided among several workers: sums of metrics, and parts of a loss with their segments."""

import torch

from whetstone.algorithms import LossTerm, TokenLoss
from whetstone.learning.losses import FullBatchLoss, PassStatistics, UpdateLoss
from whetstone.learning.metric_accumulator import MetricAccumulator
from whetstone.learning.token_outputs import TokenOutputs


class _Micro:
    def __init__(self, count, expert):
        self.ids, self.segment_tokens = torch.zeros(count), 2 * count
        self.expert = torch.tensor(expert)


def add_rows(tally, *rows):
    for losses, says, expert in rows:
        entropies = torch.tensor(says)
        per_token = TokenLoss(torch.tensor(losses), {"loss/policy": torch.tensor(losses), "policy/ratio": entropies})
        tally.add(per_token, TokenOutputs(entropies, entropies), _Micro(len(losses), expert), 4)
    return tally


ROWS = [
    ([1.0, 2.0], [0.5, float("nan")], [False, False]),
    ([4.0], [2.0], [True]),
    ([8.0], [3.5], [False]),
]


def test_means_are_over_the_tokens_of_all_parts():
    total = add_rows(MetricAccumulator(), *ROWS).metrics()
    parts = add_rows(MetricAccumulator(), ROWS[0])
    parts.merge_sums(add_rows(MetricAccumulator(), *ROWS[1:]))
    parts.merge_sums(MetricAccumulator())  # a worker without tokens
    assert parts.metrics() == total
    # (1 + 2 + 4 + 8) / 4; the policy's tokens with finite ratios: (0.5 + 3.5) / 2; 4 computed of 8
    assert (total["loss/total"], total["policy/ratio"], total["update/shared_fraction"]) == (3.75, 2.0, 0.5)


def of_three(**fields):
    return UpdateLoss([LossTerm("policy", lambda learner_logprobs: None)], [torch.empty(0)] * 3, **fields)


def test_part_has_its_segments_in_order():
    per_segment = [torch.tensor([float(i)]) for i in range(3)]
    total = of_three(
        weights=[1.0, 2.0, 3.0],
        columns={"teacher_logprobs": per_segment},
        use_sampler_logprobs=per_segment,
        full_batch={"policy": FullBatchLoss(per_segment, per_segment, None, {"policy/ratio": per_segment})},
    )
    part = total.part([2, 0])
    assert part.weights == [3.0, 1.0]
    assert [x.item() for x in part.columns["teacher_logprobs"]] == [2.0, 0.0]
    assert [x.item() for x in part.use_sampler_logprobs] == [2.0, 0.0]
    term = part.full_batch["policy"]
    assert [x.item() for x in term.losses] == [2.0, 0.0]
    assert [x.item() for x in term.metrics["policy/ratio"]] == [2.0, 0.0]
    assert term.by_entropy is part.critic_weights is None


def test_statistics_of_parts_are_merged_once():
    total = of_three(first=True)
    one, other = total.part([0, 1]), total.part([1, 2])
    one.old[0] = torch.tensor([-1.0])
    other.old[0], other.old[1] = torch.tensor([-2.0]), torch.tensor([-3.0])
    one.entropy_by_turn[0], other.entropy_by_turn[0] = (1.0, 2), (3.0, 4)
    assert not total.entropy_by_turn
    for places, part in (([0, 1], one), ([1, 2], other)):
        total.add_statistics(places, part.collect_statistics())
    assert [x.item() for x in total.old] == [-1.0, -2.0, -3.0]
    assert total.entropy_by_turn == {0: (4.0, 6)}


def test_known_old_policy_is_not_collected():
    total = of_three()
    assert total.part([1]).collect_statistics() == PassStatistics(None, {})
