"""An update that several compute is one: sums add up, and each part of a loss knows its own segments."""

import torch

from whetstone.algorithms import LossTerm, TokenLoss
from whetstone.learning.losses import LossFindings, UpdateLoss, WholeBatch
from whetstone.learning.tally import Tally
from whetstone.learning.token_outputs import TokenOutputs


class _Micro:
    def __init__(self, count, expert):
        self.ids, self.segment_tokens = torch.zeros(count), 2 * count
        self.expert = torch.tensor(expert)


def added(tally, *rows):
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


def test_a_mean_is_over_the_tokens_of_all_however_they_were_shared_out():
    whole = added(Tally(), *ROWS).metrics()
    parts = added(Tally(), ROWS[0])
    parts.merge(added(Tally(), *ROWS[1:]))
    parts.merge(Tally())  # somebody who computed for show alone
    assert parts.metrics() == whole
    # (1 + 2 + 4 + 8) / 4; the policy's own tokens that say something: (0.5 + 3.5) / 2; 4 computed of 8
    assert (whole["loss/total"], whole["policy/ratio"], whole["update/shared_fraction"]) == (3.75, 2.0, 0.5)


def of_three(**fields):
    return UpdateLoss([LossTerm("policy", lambda learner_logprobs: None)], [torch.empty(0)] * 3, **fields)


def test_a_part_has_its_own_segments_in_its_own_order():
    per_segment = [torch.tensor([float(i)]) for i in range(3)]
    whole = of_three(
        weights=[1.0, 2.0, 3.0],
        columns={"teacher_logprobs": per_segment},
        kept=per_segment,
        whole={"policy": WholeBatch(per_segment, per_segment, None, {"policy/ratio": per_segment})},
    )
    part = whole.part([2, 0])
    assert part.weights == [3.0, 1.0]
    assert [x.item() for x in part.columns["teacher_logprobs"]] == [2.0, 0.0]
    assert [x.item() for x in part.kept] == [2.0, 0.0]
    term = part.whole["policy"]
    assert [x.item() for x in term.losses] == [2.0, 0.0]
    assert [x.item() for x in term.metrics["policy/ratio"]] == [2.0, 0.0]
    assert term.by_entropy is part.critic_weights is None


def test_what_parts_find_out_the_whole_hears_once():
    whole = of_three(first=True)
    one, other = whole.part([0, 1]), whole.part([1, 2])
    one.old[0] = torch.tensor([-1.0])
    other.old[0], other.old[1] = torch.tensor([-2.0]), torch.tensor([-3.0])
    one.entropy_by_turn[0], other.entropy_by_turn[0] = (1.0, 2), (3.0, 4)
    assert not whole.entropy_by_turn
    for places, part in (([0, 1], one), ([1, 2], other)):
        whole.take(places, part.found())
    assert [x.item() for x in whole.old] == [-1.0, -2.0, -3.0]
    assert whole.entropy_by_turn == {0: (4.0, 6)}


def test_where_the_old_policy_is_known_nothing_is_heard_of_it():
    whole = of_three()
    assert whole.part([1]).found() == LossFindings(None, {})
