"""Logs of other tools as episodes for training."""

import asyncio
import json
import math
from dataclasses import replace

import pytest

from support.conversations import computed, written
from support.episodes import TASK, call, in_order, played
from whetstone.assembly import assemble
from whetstone.assembly.stage_datasets import StoredEpisodes, check_data, read_demonstrations, read_preferences
from whetstone.chat import assistant
from whetstone.data import Choice, conversation_rows, logged_groups, parse_log_row, read_conversation
from whetstone.data import tokenize_conversation as in_tokens
from whetstone.data.conversations import LEARNED_FROM
from whetstone.data.offline_episodes import mark_offline, mask_unselected_turns
from whetstone.data.row_readers import Row
from whetstone.data.select_episodes import is_well_formed
from whetstone.errors import DataError, RecipeError
from whetstone.recipe import load_recipe
from whetstone.reporting import Progress
from whetstone.training import train
from whetstone.trajectory import EndReason, Group, OffPolicy, Score

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 8, num_layers: 1, num_heads: 2, intermediate_size: 8, "
    "context_length: 512}"
)


@pytest.fixture(scope="module")
def assembly():
    return assemble(load_recipe("demo", [TINY, "ablations=null", "chat.format=hermes"]))


def tool_specs(assembly):
    return assembly.environment().toolset.specs


def log_row(messages, answer, **more):
    return {"request": {"messages": messages}, "response": {"choices": [{"message": answer}]}, **more}


def test_each_response_of_a_call_log_is_trained_once():
    first, second = computed(12, 34)[:1], computed(12, 34)[:3]
    rows = [log_row(first, computed(12, 34)[1]), log_row(second, computed(12, 34)[3])]
    read_rows = [read_conversation(conversation_rows(Row(f"log:{n}", row))[0]) for n, row in enumerate(rows)]
    assert [each.get_trained_turns(lambda *_: True) for each in read_rows] == [(1,), (3,)]


def test_trl_completion_is_scored_by_its_reward_column(tmp_path, assembly):
    rows = [
        {"step": 1, "prompt": [computed(a, 2)[0]], "completion": [{"role": "assistant", "content": str(a)}],
         "right": float(a == 3), "advantage": 0.5}
        for a in (3, 3, 4)
    ]  # fmt: skip
    groups = logged_groups(written(tmp_path / "a.jsonl", rows), assembly.chat)
    assert [(len(g.trajectories), g.rewards) for g in groups] == [(2, (1.0, 1.0)), (1, (0.0,))]
    for row in rows:
        row["short"] = 0.25
    with pytest.raises(DataError, match=r"a\.jsonl:1  2 columns could be the reward \(right, short\)"):
        logged_groups(written(tmp_path / "a.jsonl", rows), assembly.chat)
    both = logged_groups(tmp_path / "a.jsonl", assembly.chat, reward=["right", "short"])
    assert both[0].rewards == (1.25, 1.25)
    with pytest.raises(DataError, match='the reward "rigth" is missing; did you mean "right"'):
        logged_groups(tmp_path / "a.jsonl", assembly.chat, reward="rigth")


def test_tokens_and_log_probs_of_a_rollout_are_kept(tmp_path, assembly):
    read, action, seen, answer = (list(assembly.chat.encode(text)) for text in ("Compute 2*3", "<a>", "6", "six"))
    row = {
        "prompt_ids": read,
        "completion_ids": [*action, *seen, *answer],
        "env_mask": [1] * len(action) + [0] * len(seen) + [1] * len(answer),
        "logprobs": [-0.5] * len(action) + [0.0] * len(seen) + [-0.25] * len(answer),
        "reward": 1,
    }
    (group,) = logged_groups(written(tmp_path / "a.jsonl", [row]), assembly.chat)
    episode = mark_offline(group, "again/").trajectories[0]
    (segment,) = episode.segments()
    assert segment.tokens.ids == (*read, *action, *seen, *answer)
    assert segment.action_mask == tuple(map(bool, [0] * len(read) + row["env_mask"]))
    drawn = [p for p, own in zip(segment.tokens.logprobs, segment.action_mask, strict=True) if own]
    assert drawn == [-0.5] * len(action) + [-0.25] * len(answer)
    assert episode.off_policy is OffPolicy.STORED
    del row["logprobs"]
    (group,) = logged_groups(written(tmp_path / "a.jsonl", [row]), assembly.chat)
    assert mark_offline(group, "again/").trajectories[0].off_policy is OffPolicy.RECOMPUTE
    row["completion_ids"][0] = 10_000
    with pytest.raises(DataError, match="token 10000 is not in this policy's tokenizer"):
        logged_groups(written(tmp_path / "a.jsonl", [row]), assembly.chat)


def node(chat, parent, role, content, sampled=False):
    text = f"<|{role}|>{content}"
    ids = list(chat.encode(text))
    scaffold = len(chat.encode(f"<|{role}|>"))
    own = [sampled and place >= scaffold for place in range(len(ids))]
    fields = {"parent": parent, "message": {"role": role, "content": content}, "sampled": sampled, "token_ids": ids}
    return {**fields, "mask": own, "logprobs": [-1.0] * sum(own)}


def trace(*nodes, **more):
    return {
        "task": {"key": "t"},
        "traces": [{"nodes": list(nodes), "rewards": {"right": {"score": 1.0, "weight": 2.0}}}],
        **more,
    }


def test_trace_with_a_rewritten_history_is_one_episode_of_two_segments(tmp_path, assembly):
    chat = assembly.chat
    nodes = (
        node(chat, None, "user", "one"), node(chat, 0, "assistant", "two", True), node(chat, 1, "user", "three"),
        node(chat, 2, "assistant", "four", True), node(chat, None, "user", "in short: two"),
        node(chat, 4, "assistant", "five", True),
    )  # fmt: skip
    ((episode,),) = (g.trajectories for g in logged_groups(written(tmp_path / "t.jsonl", [trace(*nodes)]), chat))
    first, second = episode.segments()
    assert first.tokens.ids == tuple(token for each in nodes[:4] for token in each["token_ids"])
    assert second.tokens.ids == tuple(token for each in nodes[4:] for token in each["token_ids"])
    assert first.action_mask == tuple(own for each in nodes[:4] for own in each["mask"])
    assert (episode.score.value, len(episode.turns)) == (2.0, 3)
    nodes[1]["message"]["content"] = "another"
    with pytest.raises(DataError, match="of another tokenizer: they do not decode to 'another'"):
        logged_groups(written(tmp_path / "t.jsonl", [trace(*nodes)]), chat)


def test_trace_without_tokens_trains_shared_turns_once():
    nodes = [
        {"parent": None, "message": {"role": "user", "content": "q"}, "tools": []},
        {"parent": 0, "sampled": True, "message": {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "name": "pocket_calculator", "arguments": '{"expression": "1*2"}'}]}},
        {"parent": 1, "message": {"role": "tool", "tool_call_id": "c", "content": "2"}},
        {"parent": 2, "sampled": True, "message": {"role": "assistant", "content": "2"}},
        {"parent": 2, "sampled": True, "message": {"role": "assistant", "content": "two"}},
    ]  # fmt: skip
    read_branches = [read_conversation(each.row) for each in parse_log_row(Row("t:1", trace(*nodes)))]
    assert [each.get_trained_turns(lambda *_: True) for each in read_branches] == [(1, 3), (3,)]
    assert read_branches[0].messages[1].tool_calls[0].name == "pocket_calculator"


def test_reasoning_is_placed_before_content():
    message = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
    conversation = read_conversation(Row("a", {"messages": [{"role": "user", "content": "2+2?"}, message]}))
    assert conversation.messages[1].text == "<think>\n2+2\n</think>\n\n4"


def test_clean_distinct_and_short_episodes_are_selected(tmp_path, assembly):
    loop = [computed(2, 3)[0], *[m for _ in range(3) for m in computed(2, 3)[1:3]], computed(2, 3)[3]]
    short = computed(2, 3)[:1] + computed(2, 3)[3:]
    conversations = ((computed(2, 3), 1.0), (computed(2, 3), 1.0), (loop, 1.0), (short, 0.5))
    rows = [{"messages": messages, "reward": reward, "task_id": "t"} for messages, reward in conversations]
    path = written(tmp_path / "a.jsonl", rows)
    counts = [
        [len(g.trajectories) for g in logged_groups(path, assembly.chat, choice, offered=tool_specs(assembly))]
        for choice in (Choice(), Choice(clean=True), Choice(distinct=True), Choice(clean=True, distinct=True, best=1))
    ]
    assert counts == [[4], [3], [3], [1]]
    (group,) = logged_groups(path, assembly.chat, Choice(max_tokens=20), offered=tool_specs(assembly))
    assert group.rewards == (0.5,)
    with pytest.raises(DataError, match="no scored episodes with a reward of 2 or more"):
        logged_groups(path, assembly.chat, Choice(min_reward=2.0), offered=tool_specs(assembly))


def test_truncated_episode_or_failed_calls_are_not_clean(assembly):

    episode = in_tokens(read_conversation(Row("a", {"messages": computed(2, 3)}), tool_specs(assembly)), assembly.chat)
    assert is_well_formed(episode)
    assert not is_well_formed(replace(episode, ended=EndReason.MAX_TURNS))


def test_row_without_a_reward_requires_the_column(tmp_path, assembly):
    path = written(tmp_path / "a.jsonl", [{"messages": computed(2, 3)}])
    with pytest.raises(DataError, match=r"a\.jsonl:1  no reward; set its column"):
        logged_groups(path, assembly.chat, offered=tool_specs(assembly))


def test_sampled_tokens_without_log_probs_are_offline_ones(assembly):
    ids = list(assembly.chat.encode("ab"))
    row = Row("a", {"prompt_ids": ids, "completion_ids": ids, "reward": 0.0})
    (episode,) = parse_log_row(row)
    assert [piece.sampled for piece in episode.pieces] == [False, True]
    assert all(map(math.isnan, episode.pieces[1].logprobs))
    assert json.loads(episode.task)[1] == ids


def write_rated(path):
    """Write two tasks with two conversations each, and one conversation that is too long."""
    wrong = [*computed(2, 3)[:3], {"role": "assistant", "content": "7"}]
    rows = [{"messages": computed(2, 3), "reward": 0.9}, {"messages": wrong, "reward": 0.2}]
    rows += [{"messages": computed(4, 5), "reward": 1.0}, {"messages": computed(4, 5), "reward": 0.0}]
    endless = [*computed(2, 3)[:3], {"role": "assistant", "content": "9" * 2000}]
    return written(path, [*rows, {"messages": endless, "reward": 0.0}])


NO_CREDIT = dict.fromkeys(("supervised", "reinforcement", "rollout", "advantage", "objective"))


def read_pairs(assembly, path, objective="dpo", **data):
    settings = {"data": {"path": str(path), **data}, "objective": objective}
    resolved = assembly.resolved.with_changes(NO_CREDIT, preference=settings)
    return read_preferences(assemble(resolved, assembly.policy), resolved.recipe.preference)


def test_pairs_of_a_log_are_the_best_and_worst_of_each_task_by_reward(tmp_path, assembly):
    path = write_rated(tmp_path / "a.jsonl")
    pairs = read_pairs(assembly, path, reward="reward")
    first, second = asyncio.run(pairs.groups(0, 2))
    better, worse = first.trajectories
    assert [t.final_text for t in (better, worse)] == ["6", "7"]
    assert first.rewards == (1.0, 0.0)
    assert second.task.id == first.task.id  # both conversations of the other task are equal


def test_kto_uses_the_reward_of_each_logged_episode(tmp_path, assembly):
    singles = read_pairs(assembly, write_rated(tmp_path / "a.jsonl"), "kto", reward="reward")
    assert sorted(group.rewards for group in asyncio.run(singles.groups(0, 4))) == [(0.0,), (0.2,), (0.9,), (1.0,)]


def test_step_pairs_of_a_log_keep_all_rewarded_episodes_of_a_task(tmp_path, assembly):
    steps = read_pairs(assembly, write_rated(tmp_path / "a.jsonl"), "step_dpo", reward="reward")
    (group,) = asyncio.run(steps.groups(0, 1))
    assert group.rewards == (0.9, 0.2)


def test_episode_filters_on_pairs_require_a_reward_column(tmp_path, assembly):
    path = written(tmp_path / "a.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with pytest.raises(RecipeError, match=r"min_reward: has no effect: .*for a log, set `reward` to the column"):
        read_pairs(assembly, path, min_reward=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["offline", "supervised"])
def test_training_on_a_log(tmp_path, kind):
    rows = [{"messages": computed(a, 3), "reward": a % 2} for a in range(2, 8)]
    path = written(tmp_path / "log.jsonl", rows)
    own = ["reinforcement=null", "ablations=null", "evaluation.episodes=2", TINY, "chat.format=hermes"]
    if kind == "offline":
        own += ["supervised=null", "rollout=null", f"offline={{data: {path}, steps: 2, tasks_per_step: 2}}"]
        own += ["advantage=reinforce_plus_plus"]
    else:
        own += ["advantage=null", "objective=null", "rollout=null"]
        own += [f"supervised={{data: {{path: {path}, min_reward: 1, balance_tasks: true}}, steps: 2, batch_size: 2}}"]
    summary = train(load_recipe("demo", own), tmp_path / "run", progress=Progress(quiet=True))
    assert kind in summary.seconds
    assert [json.loads(line)["step"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()] == [1, 2]


def trained_turns(episode):
    """Return the indices of the turns with a trained token."""
    return sorted({
        turn
        for segment in episode.segments()
        for turn, is_trained in zip(segment.turns, segment.action_mask, strict=True)
        if is_trained
    })  # fmt: skip


@pytest.mark.parametrize(("chosen", "turns"), [("all", [0, 1]), ("last", [1]), ("calls", [0]), ("answers", [1])])
def test_trained_turns_of_a_log_are_selected_as_in_a_conversation(tmp_path, assembly, chosen, turns):
    path = written(tmp_path / "a.jsonl", [{"messages": computed(12, 34), "reward": 1.0}])
    resolved = assembly.resolved.with_changes(
        supervised={"data": {"path": str(path), "min_reward": 1, "train_on": chosen}}
    )
    drawn = read_demonstrations(assemble(resolved, assembly.policy), resolved.recipe.supervised.data, "supervised.data")
    assert trained_turns(drawn.get_episode(0)) == turns


def test_excluded_turns_of_stored_episodes_are_context_and_others_keep_log_probs():
    original = played(in_order(call("12*34"), assistant("408")))
    last = mask_unselected_turns(original, LEARNED_FROM["last"])
    assert trained_turns(original) == [0, 1]
    assert trained_turns(last) == [1]
    assert [turn.action.ids for turn in last.turns] == [turn.action.ids for turn in original.turns]
    (remarked,) = mark_offline(Group(TASK, (replace(last, score=Score(1.0)),)), "x").trajectories
    assert remarked.off_policy is OffPolicy.STORED
    (segment,) = remarked.segments()
    assert {segment.tokens.logprobs[t] for t, is_trained in enumerate(segment.action_mask) if is_trained} == {-0.5}


def test_stored_episodes_without_trained_turns_are_refused_or_skipped(tmp_path, assembly):
    rows = [{"messages": [*computed(12, 34)[:1], {"role": "assistant", "content": "408"}], "reward": 1.0}]
    path = written(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=r"a.jsonl: train_on selects none of its turns"):
        logged_groups(path, assembly.chat, train_on=LEARNED_FROM["calls"])
    path = written(tmp_path / "b.jsonl", [*rows, {"messages": computed(5, 6), "reward": 1.0}])
    groups = logged_groups(path, assembly.chat, train_on=LEARNED_FROM["calls"])
    drawn = StoredEpisodes(groups, seed=0)
    assert sorted("train_on" in (drawn.get_episode(k).error or "") for k in range(2)) == [False, True]


@pytest.mark.parametrize("kind", ["pretraining", "preference", "reward_model"])
def test_selecting_turns_is_refused_if_full_texts_are_trained(tmp_path, assembly, kind):
    written(tmp_path / "a.jsonl", [{"text": "a", "prompt": "a", "chosen": "b", "rejected": "c"}])
    stage = {"data": {"path": str(tmp_path / "a.jsonl"), "train_on": "last"}}
    without = [
        f"{key}=null" for key in ("ablations", "supervised", "reinforcement", "rollout", "advantage", "objective")
    ]
    with pytest.raises(RecipeError, match=f"{kind}.data.train_on: has no effect"):
        check_data(assembly, load_recipe("demo", without, **{kind: stage}))
