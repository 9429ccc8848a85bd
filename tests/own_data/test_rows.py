"""Every row of a data file is read, by `train` before it evaluates and by `data check` with the same filters."""

import json

import pytest

from support.cli import whetstone
from support.conversations import computed, conversations, pairs, written
from support.small import SMALL
from whetstone.assembly import assemble
from whetstone.assembly.stage_datasets import check_data, read_demonstrations
from whetstone.data import load_rows, logged_groups
from whetstone.errors import DataError
from whetstone.recipe import DataSettings, load_recipe
from whetstone.reporting import Progress
from whetstone.training import train

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 8, num_layers: 1, num_heads: 2, intermediate_size: 8, "
    "context_length: 512}"
)
PLAIN = [TINY, "ablations=null", "chat.format=hermes"]
ONLY = [f"{key}=null" for key in ("ablations", "supervised", "reinforcement", "rollout", "advantage", "objective")]


@pytest.fixture(scope="module")
def assembly():
    return assemble(load_recipe("demo", PLAIN))


def check(path, *overrides, options=(), code=0):
    done = whetstone("data", "check", path, "demo", *PLAIN, *overrides, *options, "--json", cwd=path.parent)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def truncate(path, *lines):
    """Truncate lines of a file, numbered from 1."""
    text = path.read_text().splitlines()
    for number in lines:
        text[number - 1] = text[number - 1][:-7]
    path.write_text("\n".join(text) + "\n")
    return path


def rated(count):
    return [{**row, "reward": k % 2} for k, row in enumerate(conversations(count))]


def test_reading_continues_after_a_truncated_row(tmp_path):
    path = truncate(written(tmp_path / "a.jsonl", conversations(300)), 29)
    report = check(path, code=2)
    assert (report["rows"], report["learned"], len(report["wrong"])) == (300, 299, 1)
    assert report["wrong"][0].startswith(f"{path}:29  not JSON")


@pytest.mark.parametrize(
    ("key", "rows", "settings"),
    [
        ("supervised", conversations(40), "data: {path: a.jsonl}"),
        ("preference", pairs(40), "data: {path: a.jsonl}"),
        ("offline", rated(40), "data: {path: a.jsonl, reward: reward}"),
        ("pretraining", [{"text": f"{k} is a number"} for k in range(40)], "data: {path: a.jsonl}"),
        ("reward_model", pairs(40), "data: {path: a.jsonl}"),
    ],
)
def test_every_stage_reports_all_invalid_rows_or_skips_them(tmp_path, monkeypatch, assembly, key, rows, settings):
    monkeypatch.chdir(tmp_path)
    bad = list(range(5, 17))
    truncate(written(tmp_path / "a.jsonl", rows), *bad)
    resolved = load_recipe("demo", [TINY, "chat.format=hermes", *ONLY, f"{key}={{{settings}, steps: 1}}"])
    with pytest.raises(DataError, match="12 of 40 rows are invalid") as error:
        check_data(assembly, resolved)
    assert [f"a.jsonl:{k} " in str(error.value) for k in bad] == [True] * 10 + [False] * 2
    assembly.skipped_rows.clear()
    check_data(assembly, resolved.with_changes({f"{key}.data.on_bad_row": "skip"}))
    assert assembly.skipped_rows == {f"{key}.data": 12}


def test_checked_data_is_read_once(tmp_path, assembly):
    settings = DataSettings(path=str(written(tmp_path / "a.jsonl", conversations(3))))
    only = [*ONLY, f"supervised={{data: {settings.path}, steps: 1}}"]
    check_data(assembly, load_recipe("demo", [TINY, "chat.format=hermes", *only]))
    (tmp_path / "a.jsonl").unlink()
    assert read_demonstrations(assembly, settings, "supervised.data").get_episode(0).score is not None
    with pytest.raises(DataError, match="no such file"):
        read_demonstrations(assembly, settings, "supervised.data")


def test_csv_and_tsv_hold_the_same_conversations(tmp_path):
    rows = [{"prompt": f"Compute {k}", "completion": f'"{k}",\n\u2028\t!'} for k in range(3)]
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t")):
        with open(tmp_path / name, "w", newline="", encoding="utf-8") as file:
            import csv

            writer = csv.DictWriter(file, rows[0], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
        assert [row.columns for row in load_rows(tmp_path / name)] == rows


def test_rewards_of_a_csv_are_numbers(tmp_path, assembly):
    (tmp_path / "a.csv").write_text("prompt,completion,reward\nCompute 1+1,2,0.5\nCompute 1+1,3,0\n")
    (group,) = logged_groups(tmp_path / "a.csv", assembly.chat)
    assert group.rewards == (0.5, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logprobs": [None, -0.5]}, r"logprobs\[0\]: a log-prob must be a finite number of at most 0, got null"),
        ({"logprobs": [-0.5, [-0.5]]}, r"logprobs\[1\]: .* got \[-0\.5\]"),
        ({"logprobs": [0.7, -0.5]}, r"logprobs\[0\]: .* got 0\.7"),
        ({"logprobs": ["-inf", -0.5]}, r'logprobs\[0\]: .* got "-inf"'),
        ({"logprobs": [-0.5, True]}, r"logprobs\[1\]: .* got true"),
        ({"logprobs": [-0.5, -(10**400)]}, r"logprobs\[1\]: .*digits"),
        ({"logprobs": "-0.5"}, r'logprobs: a list is expected, got "-0\.5"'),
        ({"logprobs": [-0.5]}, r"completion_ids \(2\), logprobs \(1\) and env_mask \(2\) must have equal"),
        ({"completion_ids": [-1, 4]}, r"completion_ids\[0\]: a token id must be an integer of at least 0, got -1"),
        ({"completion_ids": ["4", 5]}, r'completion_ids\[0\]: a token id must be an integer of at least 0, got "4"'),
        ({"completion_ids": [[4], 5]}, r"completion_ids\[0\]: a token id must be an integer of at least 0, got \[4\]"),
        ({"completion_ids": [4, None]}, r"completion_ids\[1\]: a token id must be an integer of at least 0, got null"),
        ({"completion_ids": [4.5, 5]}, r"completion_ids\[0\]: .* got 4\.5"),
        ({"completion_ids": [4, True]}, r"completion_ids\[1\]: .* got true"),
        ({"completion_ids": [4, 10_000]}, "token 10000 is not in this policy's tokenizer"),
        ({"completion_ids": [4, 2**70]}, "token 1180591620717411303424 is not in this policy's tokenizer"),
        ({"completion_ids": {"a": 1}}, "completion_ids: a list is expected"),
        ({"completion_ids": []}, r"completion_ids \(0\)"),
        ({"prompt_ids": [1, -2]}, r"prompt_ids\[1\]: a token id"),
        ({"env_mask": [1, 2]}, r"env_mask\[1\]: a mask value must be 0 or 1, got 2"),
        ({"env_mask": [1, "0"]}, r'env_mask\[1\]: a mask value must be 0 or 1, got "0"'),
    ],
)
def test_invalid_tokens_are_reported_with_file_and_line(tmp_path, assembly, change, message):
    row = {"prompt_ids": [1, 2], "completion_ids": [4, 5], "logprobs": [-0.5, 0.0], "reward": 1}
    path = written(tmp_path / "a.jsonl", [row, {**row, **change}])
    with pytest.raises(DataError, match=rf"a\.jsonl:2  {message}"):
        logged_groups(path, assembly.chat)
    (group,) = logged_groups(path, assembly.chat, on_bad_row="skip")
    assert group.rewards == (1.0,)


def test_log_probs_of_tokens_that_were_not_sampled_are_ignored(tmp_path, assembly):
    row = {"prompt_ids": [1], "completion_ids": [4, 5], "env_mask": [1, 0], "logprobs": [-0.5, None], "reward": 1}
    (group,) = logged_groups(written(tmp_path / "a.jsonl", [row]), assembly.chat)
    assert group.trajectories[0].turns[0].action.logprobs == (-0.5,)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ({"nodes": [{"parent": 0, "message": {}}]}, r"traces\[0\]\.nodes\[0\]\.parent: the index of a node before it"),
        ({"nodes": [{"message": "hi"}]}, r"traces\[0\]\.nodes\[0\]: an object with a message"),
        ({"nodes": {"a": 1}}, r"traces\[0\]\.nodes: a list is expected"),
        ("x", r"traces\[0\]: an object is expected"),
        ({"nodes": [], "rewards": {"a": {"score": "1"}}}, r"traces\[0\]\.rewards\.a: a score and a weight"),
        (
            {"nodes": [{"message": {"content": "a"}, "sampled": True, "token_ids": [1, 2], "logprobs": [-1, None]}]},
            r"traces\[0\]\.nodes\[0\]\.logprobs\[1\]: a log-prob",
        ),
        (
            {"nodes": [{"message": {"content": "a"}, "sampled": True, "token_ids": [1, 2], "logprobs": [-1]}]},
            r"traces\[0\]\.nodes\[0\]: 2 token_ids, 2 of mask, and 1 logprobs for 2 sampled",
        ),
    ],
)
def test_invalid_traces_are_reported_with_their_path(tmp_path, assembly, trace, message):
    with pytest.raises(DataError, match=rf"a\.jsonl:1  {message}"):
        logged_groups(written(tmp_path / "a.jsonl", [{"task": {"key": "t"}, "traces": [trace]}]), assembly.chat)


def test_check_applies_the_filters_of_the_stage(tmp_path):
    path = written(tmp_path / "a.jsonl", rated(10))
    data = "supervised={data: {path: a.jsonl, reward: reward, min_reward: 1, train_on: last}, steps: 1}"
    report = check(path, data)
    assert (report["kind"], report["rows"], report["learned"]) == ("logged episodes", 10, 5)
    assert report["left_out"] == [f"{path}: 5 episodes are excluded by the filters of `data` or by the stage"]
    every = check(path, data.replace(", train_on: last", ""))
    assert 0 < report["trained"] < every["trained"]
    tokens = {"prompt_ids": [1, 2], "completion_ids": [4, 5], "reward": 1}
    report = check(written(tmp_path / "b.jsonl", [tokens]))
    assert (report["kind"], report["learned"], report["trained"]) == ("logged episodes", 1, 2)
    best = "preference={data: {path: a.jsonl, reward: reward}, steps: 1}"
    same = [{"messages": [*computed(2, 3)[:3], {"role": "assistant", "content": str(k)}], "reward": k} for k in (0, 1)]
    report = check(written(path, [*same, *rated(4)]), *ONLY[1:], best)
    assert (report["rows"], report["learned"]) == (6, 2)


def test_check_lists_ten_invalid_rows_and_counts_the_others(tmp_path):
    path = truncate(written(tmp_path / "a.jsonl", conversations(30)), *range(2, 20))
    done = whetstone("data", "check", path, "demo", *PLAIN, cwd=tmp_path)
    assert done.returncode == 2
    assert "18 rows are invalid" in done.stdout
    assert [f"a.jsonl:{k} " in done.stdout for k in range(2, 20)] == [True] * 10 + [False] * 8
    assert "… and 8 more" in done.stdout


def test_check_reads_the_tasks_of_the_recipe(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text("question,answer\na?,1\nb?,2\nc?\nd?,4\n")
    tasks = "tasks={source: file, path: q.csv, columns: {prompt: question, answer: answer}}"
    done = whetstone("data", "check", path, "demo", *PLAIN, "supervised=null", tasks, cwd=tmp_path)
    assert (done.returncode, "q.csv, row 3  1 fields" in done.stderr) == (2, True)
    report = check(path, "supervised=null", tasks[:-1] + ", on_bad_row: skip}", code=2)
    assert (report["kind"], report["rows"], report["learned"], len(report["wrong"])) == ("tasks", 4, 3, 1)
    skipping = f"{tasks[:-1]}, on_bad_row: skip}}"
    done = whetstone("data", "check", path, "demo", *PLAIN, "supervised=null", skipping, cwd=tmp_path)
    assert done.stdout.splitlines()[0].endswith("q.csv: 4 tasks, 3 are valid")
    assert " tokens " not in done.stdout  # a task has none before an episode starts
    assert done.stderr.strip().endswith("1 rows are invalid, 3 of 4 are valid")


@pytest.mark.slow
def test_training_reports_invalid_rows_before_it_evaluates_and_stores_the_number_of_skipped_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    truncate(written(tmp_path / "a.jsonl", conversations(12)), 3, 12)
    small = [*SMALL[:4], "evaluation.episodes=4", *ONLY, "supervised={data: {path: a.jsonl}, steps: 1}"]
    with pytest.raises(DataError, match="2 of 12 rows are invalid"):
        train(load_recipe("demo", small), tmp_path / "run", progress=Progress(quiet=True))
    assert not (tmp_path / "run" / "evaluations" / "untrained.json").exists()
    skipping = load_recipe("demo", [*small, "supervised.data.on_bad_row=skip"])
    summary = train(skipping, tmp_path / "other", progress=Progress(quiet=True))
    assert summary.written["skipped_rows"] == {"supervised.data": 2}
    assert json.loads((tmp_path / "other" / "skipped_rows.json").read_text()) == {"supervised.data": 2}


def test_skipping_every_row_is_an_error(tmp_path, assembly):
    path = truncate(written(tmp_path / "a.jsonl", conversations(2)), 1, 2)
    with pytest.raises(DataError, match=r"a\.jsonl: all 2 rows are invalid; set `supervised\.data\.on_bad_row: stop`"):
        read_demonstrations(assembly, DataSettings(path=str(path), on_bad_row="skip"), "supervised.data")
