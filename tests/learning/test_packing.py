"""Every segment is in one micro-batch, budgets are kept, and nothing is padded."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.segments import forked_segments, segment
from whetstone.learning.packing import pack_segments
from whetstone.trajectory import Author

CPU = torch.device("cpu")


def places(segments):
    """Return the number of tokens of each segment that must be computed."""
    return [max((i for i, wanted in enumerate(s.action_mask) if wanted), default=0) for s in segments]


@given(batch=forked_segments(), budget=st.integers(1, 60), share=st.booleans())
def test_every_segment_is_packed_once_and_budgets_are_kept(batch, budget, share):
    micros = list(pack_segments(batch, token_budget=budget, device=CPU, share=share))
    packed = [i for micro in micros for i in micro.indices]
    assert sorted(packed) == [i for i, s in enumerate(batch) if any(s.action_mask[1:])]
    for micro in micros:
        assert len(micro.ids) <= budget or len(micro.indices) == 1
        assert len(micro.ids) == sum(micro.branches.lengths) <= sum(places(batch)[i] for i in micro.indices)


@given(batch=forked_segments(), budget=st.integers(1, 60), share=st.booleans())
def test_each_action_token_is_predicted_by_the_preceding_token(batch, budget, share):
    for micro in pack_segments(batch, token_budget=budget, device=CPU, share=share):
        wanted = [(s, i) for s in (batch[k] for k in micro.indices) for i in range(1, len(s)) if s.action_mask[i]]
        read = micro.rows[micro.row_of]
        assert micro.targets.tolist() == [s.tokens.ids[i] for s, i in wanted]
        assert micro.ids[read].tolist() == [s.tokens.ids[i - 1] for s, i in wanted]
        assert micro.positions[read].tolist() == [i - 1 for _, i in wanted]
        assert micro.advantages.tolist() == pytest.approx([s.advantages[i] for s, i in wanted])
        assert len(set(micro.rows.tolist())) == len(micro.rows)


def test_group_of_eight_computes_its_prompt_once():
    stem = list(range(50))
    batch = [segment([*stem, *(100 + k for _ in range(10))], [0] * 50 + [1] * 10) for k in range(8)]
    (micro,) = pack_segments(batch, token_budget=1000, device=CPU)
    assert len(micro.ids) == 50 + 8 * 9  # the last token of each answer is predicted and never an input
    assert micro.segment_tokens == 8 * 60


def test_tree_beyond_the_budget_is_divided_at_branches():
    stem = list(range(40))
    batch = [segment([*stem, *(100 + k for _ in range(11))], [0] * 40 + [1] * 11) for k in range(8)]
    sizes = sorted(len(micro.ids) for micro in pack_segments(batch, token_budget=80, device=CPU))
    assert sizes == [80, 80]


def test_groups_with_a_common_instruction_are_divided_between_groups():
    instruction, batch = list(range(30)), []
    for group in range(2):
        prompt = [200 + group] * 40
        batch += [segment([*instruction, *prompt, *[100 + k] * 5], [0] * 70 + [1] * 5) for k in range(4)]
    micros = list(pack_segments(batch, token_budget=90, device=CPU))
    assert sorted(tuple(sorted(micro.indices)) for micro in micros) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [len(micro.ids) for micro in micros] == [86, 86]


def test_expert_tokens_have_no_log_probs():
    authors = [Author.ENVIRONMENT, Author.EXPERT, Author.EXPERT, Author.ENVIRONMENT, Author.POLICY, Author.POLICY]
    demonstration = segment([1, 2, 3, 4, 5, 6], [0, 1, 1, 0, 1, 1], authors=authors, turns=[0, 0, 0, 1, 1, 1])
    (micro,) = pack_segments([demonstration], token_budget=99, device=CPU)
    assert micro.expert.tolist() == [True, True, False, False]
    assert all(math.isnan(x) for x in micro.sampler_logprobs.tolist())
