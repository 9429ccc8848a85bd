import json

import pytest

from whetstone.errors import RecipeError, TaskError
from whetstone.tasks import Jsonl


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def rows(n):
    return [{"prompt": f"question {i}", "answer": i} for i in range(n)]


def test_each_training_task_occurs_once_per_epoch_in_a_new_order(tmp_path):
    source = Jsonl(path=write(tmp_path / "tasks.jsonl", *rows(40)), held_out_fraction=0.25)
    held_out = source.held_out(1000)
    n = 40 - len(held_out)
    first, second = ([source.task(i).id for i in range(start, start + n)] for start in (0, n))
    assert sorted(first) == sorted(second) == sorted(set(first))
    assert first != second
    assert not set(first) & {task.id for task in held_out}


def test_line_that_does_not_parse_is_named_by_file_and_line(tmp_path):
    path = write(tmp_path / "tasks.jsonl", rows(1)[0], "{oops", *rows(3))
    with pytest.raises(TaskError, match=r"tasks\.jsonl:2  not JSON"):
        Jsonl(path=path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"promt": "x", "answer": 1}, '"promt" is not a key of a task; did you mean "prompt"'),
        ([1], "a row must be a JSON object, got list"),
        ({"prompt": 3, "answer": 1}, "`prompt` must be a text or a list of messages"),
        ({"prompt": "x", "answer": 1, "tag": {}}, '"tag" is not a key of a task; did you mean "tags"'),
        ({"prompt": "x", "anwser": 1}, '"anwser" is not a key of a task; did you mean "answer"'),
        ({"prompt": "x"}, 'no data for the reward: add `answer`, another key, or `"private": {}` if'),
        (
            {"question": "x", "answer": 1},
            'the key "prompt" is missing; there are: answer, question; for other names use tasks: {source: file, path',
        ),
        ({"prompt": "x", "answer": None}, "`answer` has no value"),
        ({"prompt": "x", "answer": 1, "private": 3}, "`private` must be objects"),
        ({"prompt": "x", "answer": 1, "tags": {"kind": {"a": 1}}}, "the tag kind must be a text or a number, got"),
        ('{"prompt": "x", "answer": NaN}', "not JSON: NaN is not a number of JSON"),
        ('{"prompt": "x", "answer": 1, "answer": 2}', 'the key "answer" occurs twice'),
        ('{"prompt": "\\ud800", "answer": 1}', "`prompt` is not valid Unicode"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_line_that_is_no_task_reports_why(tmp_path, row, message):
    with pytest.raises(TaskError, match=message):
        Jsonl(path=write(tmp_path / "tasks.jsonl", row))


def test_other_columns_are_kept_for_the_verifier(tmp_path):
    row = {"prompt": "p", "answer": 1, "hint": "h", "private": {"cases": [1]}, "id": "a", "tags": {"level": 2}}
    rest = [{"id": str(k), "prompt": f"other {k}", "rubric": ["r"]} for k in range(3)]
    rest.append({"id": "b", "prompt": "for a judge", "private": {}})
    source = Jsonl(path=write(tmp_path / "tasks.jsonl", row, *rest), held_out_fraction=0.1)
    tasks_by_id = {task.id: task for task in [*source.held_out(9), *map(source.task, range(9))]}
    assert tasks_by_id["a"].private == {"answer": 1, "hint": "h", "cases": [1]}
    assert tasks_by_id["a"].tags == {"level": "2"}
    assert tasks_by_id["0"].private == {"rubric": ["r"]}
    assert tasks_by_id["b"].private == {}


def test_invalid_lines_can_be_skipped_and_are_counted(tmp_path):
    path = write(tmp_path / "tasks.jsonl", *rows(30), "{oops", "", "[]")
    source = Jsonl(path=path, on_bad_row="skip")
    assert source.skipped == 2


def test_empty_file_file_of_invalid_lines_and_no_file_are_one_line_each(tmp_path):
    with pytest.raises(TaskError, match=r"empty\.jsonl: the file has no tasks"):
        Jsonl(path=write(tmp_path / "empty.jsonl"))
    with pytest.raises(TaskError, match=r"no tasks \(1 bad rows skipped\)"):
        Jsonl(path=write(tmp_path / "bad.jsonl", "{"), on_bad_row="skip")
    with pytest.raises(TaskError, match=r'no such task file \(tasks\.path\); did you mean "empty\.jsonl"'):
        Jsonl(path=str(tmp_path / "emty.jsonl"))


def test_both_splits_have_tasks_even_if_there_are_few(tmp_path):
    for share in (0.01, 0.99):
        source = Jsonl(path=write(tmp_path / "tasks.jsonl", *rows(2)), held_out_fraction=share)
        assert {source.task(0).id} ^ {task.id for task in source.held_out(9)} == {"1", "2"}


def test_unsplittable_file_is_refused(tmp_path):
    with pytest.raises(TaskError, match="a single task cannot be both"):
        Jsonl(path=write(tmp_path / "one.jsonl", *rows(1)))
    with pytest.raises(RecipeError, match="held_out_fraction: must be between 0 and 1, got 1"):
        Jsonl(path=write(tmp_path / "two.jsonl", *rows(2)), held_out_fraction=1.0)
    with pytest.raises(TaskError, match="3 tasks have 1 distinct ids"):
        Jsonl(path=write(tmp_path / "same.jsonl", *[{"id": "a", **row} for row in rows(3)]))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "?", "answer": ' + "[" * 100_000 + "]" * 100_000 + "}", "too deep"),
        ('{"prompt": "?", "answer": ' + "9" * 100_000 + "}", "digits"),
        ('{"prompt": "?", ' + ", ".join(f'"k{i}": 1' for i in range(100_000)) + ', "k99999": 1}', "occurs twice"),
        ('{"prompt": "' + "x" * 2_000_000 + '", "answer": 1}', "longer than"),
    ],
    ids=["brackets", "a number", "a key twice", "a line"],
)
def test_excessive_line_is_refused_in_one_line(tmp_path, monkeypatch, line, message):
    monkeypatch.setattr("whetstone.tasks.readers.MAX_LINE_BYTES", 1_900_000)
    (tmp_path / "tasks.jsonl").write_text(line + "\n" + '{"prompt": "1", "answer": 1}\n')
    with pytest.raises(TaskError, match=message) as raised:
        Jsonl(path=str(tmp_path / "tasks.jsonl"))
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_table_that_is_read_as_json_lines_names_the_source_for_it(tmp_path):
    path = tmp_path / "questions.csv"
    path.write_text("prompt,answer\n1+1,2\n")
    with pytest.raises(TaskError, match=r"questions\.csv: a \.csv file is not JSON Lines; .*`source: file`"):
        Jsonl(path=str(path))
