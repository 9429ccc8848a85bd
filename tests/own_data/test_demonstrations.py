"""Conversations of a file become the tokens that a model would sample for them."""

import asyncio

import pytest

from support.conversations import computed, texts
from whetstone.assembly import assemble
from whetstone.data import Preferences, ShuffledIndices, Texts, read_conversation, read_preference
from whetstone.data import tokenize_conversation as in_tokens
from whetstone.data.conversations import LEARNED_FROM
from whetstone.data.row_readers import Row
from whetstone.recipe import load_recipe
from whetstone.trajectory import Author

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 8, num_layers: 1, num_heads: 2, intermediate_size: 8, "
    "context_length: 512}"
)


@pytest.fixture(scope="module")
def assembly():
    return assemble(load_recipe("demo", [TINY, "ablations=null", "chat.format=hermes"]))


def read(assembly, *messages):
    specs = assembly.environment().toolset.specs
    return read_conversation(Row("chats.jsonl:1", {"messages": list(messages)}), specs)


def test_conversation_has_the_tokens_of_the_experts_episode(assembly):
    """Compare with the expert of the source on the same calculation."""
    import asyncio

    from whetstone.rollout import GroupPlan

    played = asyncio.run(
        assembly.build_collector(assembly.expert_actor()).sample(GroupPlan(assembly.source.task(0), seed=0))
    )
    row = Row("a", {"messages": [message.to_openai() for message in played.messages]})
    converted = in_tokens(read_conversation(row, assembly.environment().toolset.specs), assembly.chat)
    assert [s.tokens.ids for s in converted.segments()] == [s.tokens.ids for s in played.segments()]
    assert [s.action_mask for s in converted.segments()] == [s.action_mask for s in played.segments()]


def test_only_selected_turns_are_trained(assembly):
    full = in_tokens(read(assembly, *computed(12, 34)), assembly.chat)
    last = in_tokens(read(assembly, *computed(12, 34)), assembly.chat, chosen=LEARNED_FROM["last"])
    assert full.segments()[0].tokens.ids == last.segments()[0].tokens.ids
    assert [turn.action.authors[0] for turn in last.turns] == [Author.INSERTED, Author.EXPERT]
    (segment,) = last.segments()
    assert sum(segment.action_mask) == len(last.turns[1].action)


def test_content_that_the_template_would_change_is_skipped_and_reported(assembly):
    forged = {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "pocket_calculator", "arguments": {}}\n</tool_call>',
    }
    left = in_tokens(read(assembly, {"role": "user", "content": "?"}, forged), assembly.chat)
    assert left.score is None
    assert left.error.startswith("chats.jsonl:1  message 2 does not survive the chat template")


def test_conversation_longer_than_the_context_is_skipped_and_reported(assembly):
    left = in_tokens(read(assembly, *computed(12, 34)), assembly.chat, context_length=20)
    assert left.score is None
    assert "tokens, the context length is 20" in left.error


def test_every_item_is_used_before_any_repeats():
    order = ShuffledIndices(7, seed=3)
    draws = [order[n] for n in range(21)]
    assert [sorted(draws[k : k + 7]) for k in (0, 7, 14)] == [list(range(7))] * 3
    assert draws[:7] != draws[7:14]
    assert [ShuffledIndices(7, seed=3)[n] for n in (20, 0, 13)] == [draws[20], draws[0], draws[13]]


def test_every_token_of_every_text_is_in_one_window(assembly):
    documents = texts(9).split("\n\n")
    windows = Texts(documents, assembly.chat, window=10)
    segments = [windows.get_segment(n) for n in range(len(windows))]
    end = assembly.chat.tokenizer.eos_token_id
    assert sorted(t for s in segments for t in s.tokens.ids) == sorted(
        t for text in documents for t in (*assembly.chat.encode(text), end)
    )
    assert all(s.action_mask == (False, *(True,) * (len(s) - 1)) for s in segments)


def test_pair_is_a_group_in_which_only_the_difference_is_trained(assembly):
    chosen, rejected = computed(3, 4), [*computed(3, 4)[:3], {"role": "assistant", "content": "13"}]
    pair = read_preference(Row("a", {"chosen": chosen, "rejected": rejected}), assembly.environment().toolset.specs)
    (group,) = asyncio.run(Preferences([pair], assembly.chat, context_length=512).groups(0, 1))
    assert group.rewards == (1.0, 0.0)
    better, worse = group.trajectories
    trained_texts = [assembly.chat.tokenizer.decode([t for t, m in zip(s.tokens.ids, s.action_mask, strict=True) if m])
             for e in (better, worse) for s in e.segments()]  # fmt: skip
    assert [text.partition("<")[0] for text in trained_texts] == ["12", "13"]


def test_pairs_with_steps_share_turns_up_to_the_first_difference(assembly):
    chosen, rejected = computed(3, 4), [*computed(3, 4)[:3], {"role": "assistant", "content": "13"}]
    pair = read_preference(Row("a", {"chosen": chosen, "rejected": rejected}), assembly.environment().toolset.specs)
    better, worse = Preferences([pair], assembly.chat, context_length=512, steps=True).tokenize_answers(pair)
    assert better.turns[0] is worse.turns[0]
    assert better.turns[1] is not worse.turns[1]
    one, other = Preferences([pair], assembly.chat, context_length=512).tokenize_answers(pair)
    assert one.turns[0] is not other.turns[0]


def test_pair_with_a_response_beyond_the_context_is_skipped(assembly):
    pair = read_preference(Row("a", {"prompt": "Compute 1+1", "chosen": "2", "rejected": "3" * 400}))
    (group,) = asyncio.run(Preferences([pair], assembly.chat, context_length=100).groups(0, 1))
    assert group.rewards == ()
