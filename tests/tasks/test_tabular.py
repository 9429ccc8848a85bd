"""Tasks from Parquet files and from dataset folders; splits are disjoint for any data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.errors import TaskError
from whetstone.plugins import OptionError
from whetstone.tasks import HuggingFace, Parquet
from whetstone.tasks.splits import check_disjoint, comparison_text, split_tasks
from whetstone.trajectory import Task

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e '.[datasets]'")
parquet = pytest.importorskip("pyarrow.parquet")


def tasks(prompts):
    return [Task(str(k), prompt) for k, prompt in enumerate(prompts)]


@given(st.lists(st.sampled_from(["What is it?", "what is  it", "Who?", "Where?", "When?", "Why not"]), min_size=2))
def test_equal_words_are_never_in_both_splits(prompts):
    given_tasks = tasks(prompts)
    if len({comparison_text(task) for task in given_tasks}) < 2:
        with pytest.raises(TaskError, match="add a second task"):
            split_tasks(given_tasks, 0.3, where="here")
        return
    training, held_out = split_tasks(given_tasks, 0.3, where="here")
    assert not {comparison_text(task) for task in training} & {comparison_text(task) for task in held_out}
    assert sorted(task.id for task in (*training, *held_out)) == sorted(task.id for task in given_tasks)
    assert training
    assert held_out


@given(st.integers(2, 60), st.floats(0.01, 0.99))
def test_fraction_is_kept(count, share):
    _, held_out = split_tasks(tasks([f"question {k}" for k in range(count)]), share, where="here")
    assert len(held_out) == min(max(1, round(share * count)), count - 1)


def test_overlapping_splits_are_refused_by_name():
    with pytest.raises(TaskError, match=r"1 held-out tasks are also training tasks, such as 9 \(0\)"):
        check_disjoint(tasks(["The sea?"]), [Task("9", "the SEA")], where="here")


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_invalid_fraction_is_refused(share):
    with pytest.raises(OptionError, match="held_out_fraction"):
        split_tasks(tasks(["a", "b"]), share, where="here")


ROWS = [{"question": f"What is {k}+1?", "answer": k + 1, "topic": "sums", "extra": {"k": k}} for k in range(20)]


def written(path, rows):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def test_parquet_file_is_a_source(tmp_path):
    path = written(tmp_path / "all.parquet", ROWS)
    source = Parquet(path=path, prompt="question", tags=["topic"], private=["extra"], held_out_fraction=0.25)
    task = source.task(0)
    k = int(task.prompt.split()[2].split("+")[0])
    assert task.private == {"extra": {"k": k}, "answer": k + 1}
    assert task.tags == {"topic": "sums"}
    held_out = {task.id for task in source.held_out(100)}
    assert len(held_out) == 5
    assert not held_out & {source.task(index).id for index in range(40)}
    assert len({source.task(index).id for index in range(15)}) == 15  # once an epoch


def test_folder_of_parquet_files_has_splits(tmp_path):
    written(tmp_path / "train-0.parquet", ROWS[:12])
    written(tmp_path / "train-1.parquet", ROWS[12:15])
    written(tmp_path / "test-0.parquet", ROWS[15:])
    source = Parquet(path=str(tmp_path), prompt="question", held_out="test")
    assert len({source.task(index).id for index in range(15)}) == 15
    assert [task.prompt for task in source.held_out(9)] == [row["question"] for row in ROWS[15:]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "questoin"}, 'no column named questoin; did you mean "question"\\?; name it: tasks.prompt=COLUMN'),
        ({"prompt": "answer"}, "answer must be a text or a list of messages, got int"),
        ({"prompt": "question", "held_out": "test"}, "no split named test"),
    ],
)
def test_missing_files_and_columns_are_reported(tmp_path, options, message):
    path = written(tmp_path / "train.parquet", ROWS)
    with pytest.raises(TaskError, match=message):
        Parquet(path=path, **options)


def test_invalid_files_are_reported(tmp_path):
    with pytest.raises(TaskError, match="no such file"):
        Parquet(path=str(tmp_path / "none.parquet"))
    (tmp_path / "bad.parquet").write_text("not parquet")
    with pytest.raises(TaskError, match=r"bad\.parquet"):
        Parquet(path=str(tmp_path / "bad.parquet"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match=r"no \.parquet file"):
        Parquet(path=str(tmp_path / "empty"))


def test_hugging_face_dataset_is_read_from_its_folder(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install -e '.[datasets]'")
    rows = {"train": datasets.Dataset.from_list(ROWS[:15]), "test": datasets.Dataset.from_list(ROWS[15:])}
    datasets.DatasetDict(rows).save_to_disk(str(tmp_path / "saved"))
    source = HuggingFace(path=str(tmp_path / "saved"), prompt="question", held_out="test")
    assert [task.private["answer"] for task in source.held_out(9)] == [16, 17, 18, 19, 20]
    with pytest.raises(TaskError, match="no split named validation; there are: test, train"):
        HuggingFace(path=str(tmp_path / "saved"), prompt="question", held_out="validation")
    with pytest.raises(TaskError, match="no such folder"):
        HuggingFace(path=str(tmp_path / "none"))
    written(tmp_path / "hub.parquet", ROWS)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub.parquet").rename(tmp_path / "hub" / "train.parquet")
    assert HuggingFace(path=str(tmp_path / "hub"), prompt="question").task(0).prompt.startswith("What is")
