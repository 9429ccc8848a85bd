"""Which tokens of a data file are trained, by stage and dataset format, and the report of the others."""

import asyncio
import json
from dataclasses import replace

import pytest

from support.cli import whetstone
from support.dataset_formats import CONTAINERS, FORMATS, write_lines
from whetstone.assembly import assemble
from whetstone.assembly.stage_datasets import read_demonstrations, read_preferences, read_texts
from whetstone.data import Choice, load_rows, logged_groups, tokenize_conversation
from whetstone.data.trajectory_stitching import add_stitched
from whetstone.errors import DataError
from whetstone.recipe import load_recipe
from whetstone.trajectory import TRAINABLE

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 8, num_layers: 1, num_heads: 2, intermediate_size: 8, "
    "context_length: 512}"
)


@pytest.fixture(scope="module")
def assembly():
    return assemble(load_recipe("demo", [TINY, "ablations=null", "chat.format=hermes"]))


def trained_text(chat, trajectory):
    """Return the text of all tokens in the loss."""
    segments = trajectory.segments()
    ids = [t for s in segments for t, is_trained in zip(s.tokens.ids, s.action_mask, strict=True) if is_trained]
    return chat.tokenizer.decode(ids)


def two_turns(**bad):
    return [{"role": "user", "content": "q"}, {"role": "assistant", "content": "BAD", **bad},
            {"role": "user", "content": "r"}, {"role": "assistant", "content": "GOOD"}]  # fmt: skip


@pytest.mark.parametrize("container", list(CONTAINERS))
@pytest.mark.parametrize("format", list(FORMATS))
@pytest.mark.parametrize("bad", [{"weight": 0}, {"loss": False}, {"train": False}, {"content": None}], ids=str)
def test_no_token_of_an_excluded_turn_is_trained(tmp_path, assembly, format, container, bad):
    make, read = FORMATS[format]
    path = CONTAINERS[container](tmp_path, [make(two_turns(**bad)), make(two_turns())])
    first, second = [tokenize_conversation(read(row), assembly.chat) for row in load_rows(path)]
    assert trained_text(assembly.chat, first).count("GOOD") == 1
    assert "BAD" not in trained_text(assembly.chat, first)
    assert trained_text(assembly.chat, second).count("BAD") == 1


def test_a_refusal_is_trained_as_text(tmp_path, assembly):
    rows = [{"messages": [two_turns()[0], {"role": "assistant", "content": None, "refusal": "I cannot"}]}]
    (row,) = load_rows(write_lines(tmp_path, rows))
    assert trained_text(assembly.chat, tokenize_conversation(FORMATS["messages"][1](row), assembly.chat)).startswith(
        "I cannot"
    )


def read_stage(assembly, read, stage, path, *more, **settings):
    """Return the data of a stage and the lines of its report."""
    lines = []
    others = dict.fromkeys(("supervised", "reinforcement", "rollout", "advantage", "objective"))
    changes = {**others, stage: {"data": {"path": str(path), **settings}}}
    resolved = assembly.resolved.with_changes(changes)
    own = assembly.with_components(resolved=resolved, say=lines.append)
    own = own.with_components(stored_reader=replace(assembly.stored_reader, resolved=resolved, say=lines.append))
    section = getattr(resolved.recipe, stage)
    return read(own, section.data if more else section, *more), lines


def test_supervised_data_is_reported_once_per_file(tmp_path, assembly):
    rows = [{"messages": two_turns(weight=0), "source": "web"}, {"messages": two_turns(), "loss": False},
            {"prompt": two_turns()[:3], "completion": "GOOD", "source": "web"}]  # fmt: skip
    path = write_lines(tmp_path, rows)
    drawn, lines = read_stage(assembly, read_demonstrations, "supervised", path, "supervised.data")
    assert lines == [
        f"{path}: 2 of 6 assistant turns are trained; excluded: row loss: false (2); weight: 0 (1); prompt (1)",
        f"{path}: keys without effect: source (2 rows)",
    ]
    texts = [trained_text(assembly.chat, drawn.get_episode(k)) for k in range(6)]
    assert all(text.count("GOOD") == 1 and "BAD" not in text for text in texts)


def test_a_file_whose_turns_are_all_excluded_is_rejected(tmp_path, assembly):
    path = write_lines(tmp_path, [{"messages": two_turns(), "weight": 0}])
    with pytest.raises(DataError, match=r"0 of 2 assistant turns are trained; excluded: row weight: 0 \(2\); change"):
        read_stage(assembly, read_demonstrations, "supervised", path, "supervised.data")


def test_pairs_with_an_excluded_answer_are_not_sampled(tmp_path, assembly):
    user = two_turns()[0]
    sides = {name: [user, {"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    marked = {**sides, "chosen": [user, {"role": "assistant", "content": "BAD", "train": False}]}
    path = write_lines(tmp_path, [sides, marked, {**sides, "weight": 0}])
    pairs, lines = read_stage(assembly, read_preferences, "preference", path)
    assert lines == [
        f"{path}: 3 of 6 assistant turns are trained; excluded: row weight: 0 (2); train: false (1)"
    ]  # fmt: skip
    assert all(group.rewards == (1.0, 0.0) for group in asyncio.run(pairs.groups(0, 6)))


def test_excluded_texts_are_not_in_a_window(tmp_path, assembly):
    path = write_lines(tmp_path, [{"text": "BAD", "train": False}, {"text": "GOOD", "topic": "tea"}])
    texts, lines = read_stage(assembly, read_texts, "pretraining", path)
    ids = [token for k in range(len(texts)) for token in texts.get_segment(k).tokens.ids]
    assert assembly.chat.tokenizer.decode(ids).startswith("GOOD")
    assert lines[0] == f"{path}: 1 of 2 texts are trained; excluded: row train: false (1)"
    assert lines[1] == f"{path}: keys without effect: topic (1 row)"


def test_columns_of_a_log_are_used_or_reported(tmp_path, assembly):
    rows = [{"messages": two_turns(weight=0), "reward": 1.0, "task_id": "t", "latency": 3}]
    path = write_lines(tmp_path, rows)
    _, lines = read_stage(assembly, read_demonstrations, "supervised", path, "supervised.data", min_reward=1)
    assert lines == [
        f"{path}: 1 of 2 assistant turns are trained; excluded: weight: 0 (1)",
        f"{path}: keys without effect: latency (1 row)",
    ]
    rows = [{"prompt": "q", "completion": "a", "step": 1, "advantage": 0.1, "right": 1.0, "seconds": "3 s"}]
    path = write_lines(tmp_path, rows)
    _, lines = read_stage(assembly, read_demonstrations, "supervised", path, "supervised.data", min_reward=1)
    assert lines[1] == f"{path}: keys without effect: seconds (1 row)"


def test_a_row_of_an_api_log_keeps_its_marks_and_reports_its_other_keys(tmp_path, assembly):
    call = {"request": {"model": "m", "messages": two_turns()[:3]}, "response": {"id": "x", "choices": [
        {"message": two_turns()[3]}, {"message": two_turns()[1]}]}}  # fmt: skip
    path = write_lines(tmp_path, [{**call, "weight": 1}, {**call, "weight": 0}])
    drawn, lines = read_stage(assembly, read_demonstrations, "supervised", path, "supervised.data")
    assert trained_text(assembly.chat, drawn.get_episode(0)).startswith("GOOD")
    assert lines[0] == f"{path}: 1 of 4 assistant turns are trained; excluded: row weight: 0 (2); prompt (1)"
    for key in ("request.model", "response.id", "response.choices[1]"):
        assert f"{key} (2 rows)" in lines[1]


def test_a_row_of_tokens_keeps_its_marks(tmp_path, assembly):
    ids = list(assembly.chat.encode("ab"))
    row = {"prompt_ids": ids, "completion_ids": ids, "reward": 1.0, "task_id": "t"}
    path = write_lines(tmp_path, [row, {**row, "train": False}])
    (group,) = logged_groups(path, assembly.chat, Choice())
    assert [episode.error is None for episode in group.trajectories] == [True, False]
    assert "excluded from training (row train: false)" in group.trajectories[1].error


@pytest.mark.parametrize("shape", ["role", "from"])
def test_logs_are_grouped_by_what_precedes_the_assistant(tmp_path, assembly, shape):
    rows = []
    for speaker, question in (("model", "q"), ("assistant", "q"), ("gpt", "p")):
        value = "content" if shape == "role" else "value"
        messages = [{shape: "user", value: question}, {shape: speaker, value: "a"}]
        rows.append({"messages": json.dumps(messages), "reward": 1.0})
    groups = logged_groups(write_lines(tmp_path, rows), assembly.chat)
    assert sorted(len(group.trajectories) for group in groups) == [1, 2]


def test_a_stitched_episode_does_not_train_excluded_turns(tmp_path, assembly):
    """Exclude the turn after the join of each episode, so that it is in the suffix of the stitched one."""
    rows = []
    for text, reward in (("AA", 0.0), ("BB", 1.0)):
        turns = [("q", {"content": text}), ("r", {"content": f"{text} bad", "weight": 0}), ("s", {"content": "end"})]
        messages = [m for q, turn in turns for m in ({"role": "user", "content": q}, {"role": "assistant", **turn})]
        rows.append({"messages": messages, "reward": reward, "task_id": "t"})
    (group,) = logged_groups(write_lines(tmp_path, rows), assembly.chat)
    stitched = [t for t in add_stitched(group, 8).trajectories if "joined" in t.marks]
    assert any([turn.message.text for turn in t.turns[:2]] == ["AA", "BB bad"] for t in stitched)
    for trajectory in stitched:
        trained = [turn.message.text for turn in trajectory.turns if set(turn.action.authors) & TRAINABLE]
        assert not [text for text in trained if text.endswith("bad")]


@pytest.mark.slow
def test_data_check_reports_turns_and_keys(tmp_path):
    rows = [{"messages": two_turns(weight=0), "mood": "good"}, {"messages": two_turns(train=False)}]
    path = write_lines(tmp_path, rows)
    checked = whetstone("data", "check", path, "demo", "--json", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    report = json.loads(checked.stdout)
    assert report["turns"] == {"trained": 2, "excluded": {"weight: 0": 1, "train: false": 1}}
    assert report["unread"] == {"mood": 1}
    lines = whetstone("data", "check", path, "demo", cwd=tmp_path).stdout
    assert f"{path}: 2 of 4 assistant turns are trained; excluded: weight: 0 (1); train: false (1)" in lines
    assert f"{path}: keys without effect: mood (1 row)" in lines
