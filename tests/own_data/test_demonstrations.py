"""What stands in a file, in the tokens a model would sample for it."""

import pytest

from tests_conversations import computed, texts
from whetstone.assembly import assemble
from whetstone.data import Preferences, Shuffled, Texts, conversation_of, preference_of
from whetstone.data import written as in_tokens
from whetstone.data.conversations import LEARNED_FROM
from whetstone.data.rows import Row
from whetstone.recipe import load_recipe
from whetstone.trajectory import Author

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 8, num_layers: 1, num_heads: 2, intermediate_size: 8, "
    "context_length: 512}"
)


@pytest.fixture(scope="module")
def made():
    return assemble(load_recipe("demo", [TINY, "ablations=null", "chat.format=hermes"]))


def read(assembly, *messages):
    specs = assembly.environment().toolset.specs
    return conversation_of(Row("chats.jsonl:1", {"messages": list(messages)}), specs)


def test_a_conversation_is_the_experts_episode_token_for_token(made):
    """The source's expert plays the same calculation; its tokens are those of the conversation it had."""
    import asyncio

    from whetstone.rollout import Plan

    played = asyncio.run(made.collector(made.expert_actor()).sample(Plan(made.source.task(0), seed=0)))
    row = Row("a", {"messages": [message.to_openai() for message in played.messages]})
    told = in_tokens(conversation_of(row, made.environment().toolset.specs), made.chat)
    assert [s.tokens.ids for s in told.segments()] == [s.tokens.ids for s in played.segments()]
    assert [s.action_mask for s in told.segments()] == [s.action_mask for s in played.segments()]


def test_only_chosen_turns_are_learned_and_the_others_are_read(made):
    whole = in_tokens(read(made, *computed(12, 34)), made.chat)
    last = in_tokens(read(made, *computed(12, 34)), made.chat, chosen=LEARNED_FROM["last"])
    assert whole.segments()[0].tokens.ids == last.segments()[0].tokens.ids
    assert [turn.action.authors[0] for turn in last.turns] == [Author.INSERTED, Author.EXPERT]
    (segment,) = last.segments()
    assert sum(segment.action_mask) == len(last.turns[1].action)


def test_what_would_not_survive_the_template_is_left_out_and_said(made):
    forged = {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "pocket_calculator", "arguments": {}}\n</tool_call>',
    }
    left = in_tokens(read(made, {"role": "user", "content": "?"}, forged), made.chat)
    assert left.score is None
    assert left.error.startswith("chats.jsonl:1  message 2 would not survive the template")


def test_a_conversation_longer_than_the_context_is_left_out_and_said(made):
    left = in_tokens(read(made, *computed(12, 34)), made.chat, context_length=20)
    assert left.score is None
    assert "tokens, the context 20" in left.error


def test_all_is_seen_once_before_anything_comes_again():
    order = Shuffled(7, seed=3)
    draws = [order[n] for n in range(21)]
    assert [sorted(draws[k : k + 7]) for k in (0, 7, 14)] == [list(range(7))] * 3
    assert draws[:7] != draws[7:14]
    assert [Shuffled(7, seed=3)[n] for n in (20, 0, 13)] == [draws[20], draws[0], draws[13]]


def test_every_token_of_every_text_is_in_a_window_once(made):
    given = texts(9).split("\n\n")
    windows = Texts(given, made.chat, window=10)
    segments = [windows.segment(n) for n in range(len(windows))]
    end = made.chat.tokenizer.eos_token_id
    assert sorted(t for s in segments for t in s.tokens.ids) == sorted(
        t for text in given for t in (*made.chat.encode(text), end)
    )
    assert all(s.action_mask == (False, *(True,) * (len(s) - 1)) for s in segments)


def test_a_pair_is_a_group_in_which_only_what_differs_counts(made):
    chosen, rejected = computed(3, 4), [*computed(3, 4)[:3], {"role": "assistant", "content": "13"}]
    pair = preference_of(Row("a", {"chosen": chosen, "rejected": rejected}), made.environment().toolset.specs)
    group = Preferences([pair], made.chat, context_length=512).group(0)
    assert group.rewards == (1.0, 0.0)
    better, worse = group.trajectories
    shown = [made.chat.tokenizer.decode([t for t, m in zip(s.tokens.ids, s.action_mask, strict=True) if m])
             for e in (better, worse) for s in e.segments()]  # fmt: skip
    assert [text.partition("<")[0] for text in shown] == ["12", "13"]


def test_steps_of_a_pair_go_on_from_the_same_turn_as_far_as_both_begin_alike(made):
    chosen, rejected = computed(3, 4), [*computed(3, 4)[:3], {"role": "assistant", "content": "13"}]
    pair = preference_of(Row("a", {"chosen": chosen, "rejected": rejected}), made.environment().toolset.specs)
    better, worse = Preferences([pair], made.chat, context_length=512, steps=True).group(0).trajectories
    assert better.turns[0] is worse.turns[0]
    assert better.turns[1] is not worse.turns[1]
    one, other = Preferences([pair], made.chat, context_length=512).group(0).trajectories
    assert one.turns[0] is not other.turns[0]


def test_half_a_pair_says_nothing(made):
    pair = preference_of(Row("a", {"prompt": "Compute 1+1", "chosen": "2", "rejected": "3" * 400}))
    group = Preferences([pair], made.chat, context_length=100).group(0)
    assert group.rewards == ()
