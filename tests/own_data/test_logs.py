"""What other tools wrote down, as episodes to learn from."""

import json
import math
from dataclasses import replace

import pytest

from tests_conversations import computed, written
from tests_episodes import TASK, call, in_order, played
from whetstone.assembly import assemble
from whetstone.assembly.own_data import StoredEpisodes, check_data, demonstrations_of, preferences_of
from whetstone.chat import assistant
from whetstone.data import Choice, conversation_of, conversation_rows, logged, logged_groups
from whetstone.data import written as in_tokens
from whetstone.data.choosing import is_clean
from whetstone.data.conversations import LEARNED_FROM
from whetstone.data.rows import Row
from whetstone.data.stored_episodes import as_stored, learned
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
def made():
    return assemble(load_recipe("demo", [TINY, "ablations=null", "chat.format=hermes"]))


def offered(assembly):
    return assembly.environment().toolset.specs


def asked(messages, answer, **more):
    return {"request": {"messages": messages}, "response": {"choices": [{"message": answer}]}, **more}


def test_of_a_log_of_calls_each_answer_is_learned_from_once():
    first, second = computed(12, 34)[:1], computed(12, 34)[:3]
    rows = [asked(first, computed(12, 34)[1]), asked(second, computed(12, 34)[3])]
    told = [conversation_of(conversation_rows(Row(f"log:{n}", row))[0]) for n, row in enumerate(rows)]
    assert [each.learned(lambda *_: True) for each in told] == [(1,), (3,)]


def test_a_completion_of_trl_is_worth_its_reward_column(tmp_path, made):
    rows = [
        {"step": 1, "prompt": [computed(a, 2)[0]], "completion": [{"role": "assistant", "content": str(a)}],
         "right": float(a == 3), "advantage": 0.5}
        for a in (3, 3, 4)
    ]  # fmt: skip
    groups = logged_groups(written(tmp_path / "a.jsonl", rows), made.chat)
    assert [(len(g.trajectories), g.rewards) for g in groups] == [(2, (1.0, 1.0)), (1, (0.0,))]
    for row in rows:
        row["short"] = 0.25
    with pytest.raises(DataError, match=r"a\.jsonl:1  2 columns could be the reward \(right, short\)"):
        logged_groups(written(tmp_path / "a.jsonl", rows), made.chat)
    both = logged_groups(tmp_path / "a.jsonl", made.chat, reward=["right", "short"])
    assert both[0].rewards == (1.25, 1.25)
    with pytest.raises(DataError, match='the reward "rigth" is missing; did you mean "right"'):
        logged_groups(tmp_path / "a.jsonl", made.chat, reward="rigth")


def test_tokens_and_log_probs_of_a_rollout_are_taken_as_they_are(tmp_path, made):
    read, said, seen, answer = (list(made.chat.encode(text)) for text in ("Compute 2*3", "<a>", "6", "six"))
    row = {
        "prompt_ids": read,
        "completion_ids": [*said, *seen, *answer],
        "env_mask": [1] * len(said) + [0] * len(seen) + [1] * len(answer),
        "logprobs": [-0.5] * len(said) + [0.0] * len(seen) + [-0.25] * len(answer),
        "reward": 1,
    }
    (group,) = logged_groups(written(tmp_path / "a.jsonl", [row]), made.chat)
    episode = as_stored(group, "again/").trajectories[0]
    (segment,) = episode.segments()
    assert segment.tokens.ids == (*read, *said, *seen, *answer)
    assert segment.action_mask == tuple(map(bool, [0] * len(read) + row["env_mask"]))
    drawn = [p for p, own in zip(segment.tokens.logprobs, segment.action_mask, strict=True) if own]
    assert drawn == [-0.5] * len(said) + [-0.25] * len(answer)
    assert episode.off_policy is OffPolicy.STORED
    del row["logprobs"]
    (group,) = logged_groups(written(tmp_path / "a.jsonl", [row]), made.chat)
    assert as_stored(group, "again/").trajectories[0].off_policy is OffPolicy.RECOMPUTE
    row["completion_ids"][0] = 10_000
    with pytest.raises(DataError, match="token 10000 is none of this policy's tokenizer"):
        logged_groups(written(tmp_path / "a.jsonl", [row]), made.chat)


def node(chat, parent, role, said, sampled=False):
    text = f"<|{role}|>{said}"
    ids = list(chat.encode(text))
    scaffold = len(chat.encode(f"<|{role}|>"))
    own = [sampled and place >= scaffold for place in range(len(ids))]
    found = {"parent": parent, "message": {"role": role, "content": said}, "sampled": sampled, "token_ids": ids}
    return {**found, "mask": own, "logprobs": [-1.0] * sum(own)}


def trace(*nodes, **more):
    return {
        "task": {"key": "t"},
        "traces": [{"nodes": list(nodes), "rewards": {"right": {"score": 1.0, "weight": 2.0}}}],
        **more,
    }


def test_a_trace_whose_history_was_rewritten_is_one_episode_of_two_segments(tmp_path, made):
    chat = made.chat
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
    with pytest.raises(DataError, match="of another tokenizer: they do not say 'another'"):
        logged_groups(written(tmp_path / "t.jsonl", [trace(*nodes)]), chat)


def test_a_trace_without_tokens_teaches_what_its_branches_share_once():
    nodes = [
        {"parent": None, "message": {"role": "user", "content": "q"}, "tools": []},
        {"parent": 0, "sampled": True, "message": {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "name": "pocket_calculator", "arguments": '{"expression": "1*2"}'}]}},
        {"parent": 1, "message": {"role": "tool", "tool_call_id": "c", "content": "2"}},
        {"parent": 2, "sampled": True, "message": {"role": "assistant", "content": "2"}},
        {"parent": 2, "sampled": True, "message": {"role": "assistant", "content": "two"}},
    ]  # fmt: skip
    told = [conversation_of(each.row) for each in logged(Row("t:1", trace(*nodes)))]
    assert [each.learned(lambda *_: True) for each in told] == [(1, 3), (3,)]
    assert told[0].messages[1].tool_calls[0].name == "pocket_calculator"


def test_what_was_thought_stays_before_what_was_said():
    said = {"role": "assistant", "content": "4", "reasoning_content": "2+2"}
    told = conversation_of(Row("a", {"messages": [{"role": "user", "content": "2+2?"}, said]}))
    assert told.messages[1].text == "<think>\n2+2\n</think>\n\n4"


def test_clean_distinct_and_short_episodes_are_chosen(tmp_path, made):
    loop = [computed(2, 3)[0], *[m for _ in range(3) for m in computed(2, 3)[1:3]], computed(2, 3)[3]]
    short = computed(2, 3)[:1] + computed(2, 3)[3:]
    told = ((computed(2, 3), 1.0), (computed(2, 3), 1.0), (loop, 1.0), (short, 0.5))
    rows = [{"messages": said, "reward": worth, "task_id": "t"} for said, worth in told]
    path = written(tmp_path / "a.jsonl", rows)
    counts = [
        [len(g.trajectories) for g in logged_groups(path, made.chat, choice, offered=offered(made))]
        for choice in (Choice(), Choice(clean=True), Choice(distinct=True), Choice(clean=True, distinct=True, best=1))
    ]
    assert counts == [[4], [3], [3], [1]]
    (group,) = logged_groups(path, made.chat, Choice(max_tokens=20), offered=offered(made))
    assert group.rewards == (0.5,)
    with pytest.raises(DataError, match="holds no scored episodes with a reward of 2 or more"):
        logged_groups(path, made.chat, Choice(min_reward=2.0), offered=offered(made))


def test_an_episode_that_was_cut_or_called_in_vain_is_not_clean(made):

    episode = in_tokens(conversation_of(Row("a", {"messages": computed(2, 3)}), offered(made)), made.chat)
    assert is_clean(episode)
    assert not is_clean(replace(episode, ended=EndReason.MAX_TURNS))


def test_a_row_without_a_reward_asks_for_the_column(tmp_path, made):
    path = written(tmp_path / "a.jsonl", [{"messages": computed(2, 3)}])
    with pytest.raises(DataError, match=r"a\.jsonl:1  no reward: which column has it"):
        logged_groups(path, made.chat, offered=offered(made))


def test_drawn_tokens_without_log_probs_are_written_ones(made):
    ids = list(made.chat.encode("ab"))
    row = Row("a", {"prompt_ids": ids, "completion_ids": ids, "reward": 0.0})
    (episode,) = logged(row)
    assert [piece.sampled for piece in episode.pieces] == [False, True]
    assert all(map(math.isnan, episode.pieces[1].logprobs))
    assert json.loads(episode.task)[1] == ids


def rated(path):
    """Each of two products three times, twice wrong; one that is too long beside them."""
    wrong = [*computed(2, 3)[:3], {"role": "assistant", "content": "7"}]
    rows = [{"messages": computed(2, 3), "reward": 0.9}, {"messages": wrong, "reward": 0.2}]
    rows += [{"messages": computed(4, 5), "reward": 1.0}, {"messages": computed(4, 5), "reward": 0.0}]
    endless = [*computed(2, 3)[:3], {"role": "assistant", "content": "9" * 2000}]
    return written(path, [*rows, {"messages": endless, "reward": 0.0}])


NO_CREDIT = dict.fromkeys(("supervised", "reinforcement", "rollout", "advantage", "objective"))


def preferred(made, path, objective="dpo", **data):
    settings = {"data": {"path": str(path), **data}, "objective": objective}
    resolved = made.resolved.with_changes(NO_CREDIT, preference=settings)
    return preferences_of(assemble(resolved, made.policy), resolved.recipe.preference)


def test_a_log_gives_the_best_and_the_worst_of_each_task_where_its_rewards_are_named(tmp_path, made):
    path = rated(tmp_path / "a.jsonl")
    pairs = preferred(made, path, reward="reward")
    better, worse = pairs.group(0).trajectories
    assert [t.final_text for t in (better, worse)] == ["6", "7"]
    assert pairs.group(0).rewards == (1.0, 0.0)
    assert pairs.group(1).task.id == pairs.group(0).task.id  # of the other product both said the same


def test_of_a_log_each_episode_is_worth_to_kto_what_it_was_paid(tmp_path, made):
    singles = preferred(made, rated(tmp_path / "a.jsonl"), "kto", reward="reward")
    assert sorted(singles.group(draw).rewards for draw in range(4)) == [(0.0,), (0.2,), (0.9,), (1.0,)]


def test_steps_of_a_log_keep_all_episodes_of_a_task_with_what_they_are_worth(tmp_path, made):
    steps = preferred(made, rated(tmp_path / "a.jsonl"), "step_dpo", reward="reward")
    assert steps.group(0).rewards == (0.9, 0.2)


def test_a_filter_of_episodes_over_pairs_says_that_a_log_has_to_name_its_rewards(tmp_path, made):
    path = written(tmp_path / "a.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with pytest.raises(RecipeError, match=r"min_reward: has no effect: .*of a log, `reward` names the column"):
        preferred(made, path, min_reward=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["offline", "supervised"])
def test_a_log_is_learned_from(tmp_path, kind):
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
    """Numbers of the turns with a token that is trained."""
    return sorted({
        turn
        for segment in episode.segments()
        for turn, mine in zip(segment.turns, segment.action_mask, strict=True)
        if mine
    })  # fmt: skip


@pytest.mark.parametrize(("chosen", "turns"), [("all", [0, 1]), ("last", [1]), ("calls", [0]), ("answers", [1])])
def test_which_turns_of_a_log_are_learned_from_is_said_as_of_a_conversation(tmp_path, made, chosen, turns):
    path = written(tmp_path / "a.jsonl", [{"messages": computed(12, 34), "reward": 1.0}])
    resolved = made.resolved.with_changes(supervised={"data": {"path": str(path), "min_reward": 1, "train_on": chosen}})
    drawn = demonstrations_of(assemble(resolved, made.policy), resolved.recipe.supervised.data, "supervised.data")
    assert trained_turns(drawn.episode(0)) == turns


def test_turns_of_stored_episodes_that_are_not_learned_from_are_read_and_the_others_keep_their_log_probs():
    whole = played(in_order(call("12*34"), assistant("408")))
    last = learned(whole, LEARNED_FROM["last"])
    assert trained_turns(whole) == [0, 1]
    assert trained_turns(last) == [1]
    assert [turn.action.ids for turn in last.turns] == [turn.action.ids for turn in whole.turns]
    (again,) = as_stored(Group(TASK, (replace(last, score=Score(1.0)),)), "x").trajectories
    assert again.off_policy is OffPolicy.STORED
    (segment,) = again.segments()
    assert {segment.tokens.logprobs[t] for t, mine in enumerate(segment.action_mask) if mine} == {-0.5}


def test_stored_episodes_of_which_nothing_is_left_to_learn_are_refused_together_and_left_out_alone(tmp_path, made):
    rows = [{"messages": [*computed(12, 34)[:1], {"role": "assistant", "content": "408"}], "reward": 1.0}]
    path = written(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=r"a.jsonl: train_on selects none of its turns"):
        logged_groups(path, made.chat, train_on=LEARNED_FROM["calls"])
    path = written(tmp_path / "b.jsonl", [*rows, {"messages": computed(5, 6), "reward": 1.0}])
    groups = logged_groups(path, made.chat, train_on=LEARNED_FROM["calls"])
    drawn = StoredEpisodes(groups, seed=0)
    assert sorted("train_on" in (drawn.episode(k).error or "") for k in range(2)) == [False, True]


@pytest.mark.parametrize("kind", ["pretraining", "preference", "reward_model"])
def test_where_whole_texts_are_learned_from_choosing_turns_is_refused(tmp_path, made, kind):
    written(tmp_path / "a.jsonl", [{"text": "a", "prompt": "a", "chosen": "b", "rejected": "c"}])
    stage = {"data": {"path": str(tmp_path / "a.jsonl"), "train_on": "last"}}
    without = [
        f"{key}=null" for key in ("ablations", "supervised", "reinforcement", "rollout", "advantage", "objective")
    ]
    with pytest.raises(RecipeError, match=f"{kind}.data.train_on: has no effect"):
        check_data(made, load_recipe("demo", without, **{kind: stage}))
