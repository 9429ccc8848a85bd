"""Task files of every format: separators inside fields, encodings, wrong numbers of fields, and invalid rows."""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.errors import TaskError
from whetstone.tasks import File, FunctionCalls, Jsonl

SEPARATORS = ["\u2028", "\u2029", "\x85", "\x0c", "\x0b", "\x1c", "\x1d", "\x1e"]
"""Characters at which `str.splitlines` splits, and which end no line of CSV or JSON lines."""
COLUMNS = {"prompt": "question", "answer": "answer"}


def tasks_of(path, **options):
    return File(path=str(path), columns=COLUMNS, held_out_fraction=1.0, **options).held_out(1000)


def write_csv(path, *lines, encoding="utf-8"):
    path.write_bytes("".join(f"{line}\n" for line in ("question,answer", *lines)).encode(encoding))
    return path


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
@pytest.mark.parametrize("quote", ["", '"'], ids=["bare", "quoted"])
def test_separator_inside_a_csv_field_is_text(tmp_path, separator, quote):
    question = f"Where is tea?{separator}And rice?"
    path = write_csv(tmp_path / "a.csv", f"{quote}{question}{quote},4", "Next?,5")
    assert [(task.prompt, task.private["answer"]) for task in tasks_of(path)] == [(question, "4"), ("Next?", "5")]


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
def test_separator_inside_json_lines_is_text(tmp_path, separator):
    rows = [{"question": f"a{separator}b", "answer": "c"}, {"question": "d", "answer": f"e{separator}"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    assert [task.prompt for task in tasks_of(path)] == [row["question"] for row in rows]


@pytest.mark.parametrize("separator", SEPARATORS[:3], ids=ascii)  # JSON escapes the other ones
def test_separator_inside_possible_answers_is_text(tmp_path, separator):
    question = {"id": "simple_0", "question": [[{"role": "user", "content": "?"}]], "function": []}
    (tmp_path / "q.json").write_text(json.dumps(question) + "\n")
    answer = {"id": "simple_0", "ground_truth": [{"f": {"x": [f"a{separator}b"]}}]}
    (tmp_path / "a.json").write_text(json.dumps(answer, ensure_ascii=False) + "\n", encoding="utf-8")
    source = FunctionCalls(path=str(tmp_path / "q.json"), answers=str(tmp_path / "a.json"))
    assert source.task(0).private["possible_answer"] == answer["ground_truth"]


@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text()).filter(
            lambda row: row[0].strip() and not any("\ud800" <= c <= "\udfff" for c in row[1])
        ),
        min_size=1,
        max_size=8,
    )
)
@pytest.mark.parametrize("delimiter", [",", "\t"], ids=["csv", "tsv"])
def test_table_is_read_as_it_was_written(tmp_path_factory, delimiter, rows):
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("question", "answer"), *rows])
    path = tmp_path_factory.mktemp("table") / ("a.csv" if delimiter == "," else "a.tsv")
    path.write_bytes(stream.getvalue().encode())
    assert [(task.prompt, task.private["answer"]) for task in tasks_of(path)] == rows


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("What, pray, is it?,4", "row 2  4 fields, the header has 2"),
        ("How old?", "row 2  1 fields, the header has 2; `answer` is missing"),
        ('"How "old,4', "row 2  not CSV"),
        ('"How old?,4', "row 2  the quote that opens in line 3 is not closed"),
    ],
)
def test_row_with_wrong_fields_is_reported_with_file_and_row(tmp_path, line, reason):
    path = write_csv(tmp_path / "a.csv", "One?,1", line, "Two?,2")
    with pytest.raises(TaskError) as error:
        tasks_of(path)
    assert f"a.csv, {reason}" in str(error.value)
    assert [task.prompt for task in tasks_of(path, on_bad_row="skip")] == ["One?", "Two?"]


def test_long_field_is_read(tmp_path):
    path = write_csv(tmp_path / "a.csv", "x" * 140_000 + ",4")
    assert len(tasks_of(path)[0].prompt) == 140_000


def test_byte_order_mark_is_not_part_of_a_column(tmp_path):
    for name in ("a.csv", "a.jsonl", "a.json"):
        row = {"question": "Tea?", "answer": "4"}
        text = {"a.csv": "question,answer\nTea?,4\n", "a.jsonl": json.dumps(row), "a.json": json.dumps([row])}[name]
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert [task.prompt for task in tasks_of(tmp_path / name)] == ["Tea?"]


def test_cp1252_is_reported_with_file_row_and_column(tmp_path):
    path = write_csv(tmp_path / "a.csv", "Tea?,4", "Café?,5", encoding="cp1252")
    with pytest.raises(TaskError, match=r"a\.csv, row 2  `question` is not UTF-8 \(byte 0xE9\); convert the file"):
        tasks_of(path)
    (tmp_path / "b.jsonl").write_bytes('{"question": "Café?", "answer": 1}\n'.encode("cp1252"))
    with pytest.raises(TaskError, match=r"b\.jsonl:1  byte 18 is not UTF-8"):
        tasks_of(tmp_path / "b.jsonl")
    (tmp_path / "c.csv").write_text("question,answer\nTea?,4\n", encoding="utf-16")
    with pytest.raises(TaskError, match=r"c\.csv: the encoding is UTF-16; convert the file"):
        tasks_of(tmp_path / "c.csv")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_all_invalid_rows_are_counted_and_the_first_ten_listed(tmp_path, name):
    bad, path = {29, 41, *range(100, 112)}, tmp_path / name
    rows = [{"question": f"{k}?", "answer": "1"} for k in range(1, 301)]
    if name == "a.csv":
        write_csv(path, *(f"{k}?" if k in bad else f"{k}?,1" for k in range(1, 301)))
    else:
        lines = [json.dumps(row)[: -3 if k in bad and name == "a.jsonl" else None] for k, row in enumerate(rows, 1)]
        lines = [line if k not in bad or name == "a.jsonl" else "[1]" for k, line in enumerate(lines, 1)]
        path.write_text("\n".join(lines) + "\n" if name == "a.jsonl" else f"[{', '.join(lines)}]")
    with pytest.raises(TaskError, match="14 of 300 rows are invalid") as error:
        tasks_of(path)
    places = [f"a.jsonl:{k} " if name == "a.jsonl" else f"{name}, row {k} " for k in sorted(bad)]
    assert [place in str(error.value) for place in places] == [True] * 10 + [False] * 4
    assert "and 4 more" in str(error.value)
    assert "\n" not in str(error.value)
    source = File(path=str(path), columns=COLUMNS, held_out_fraction=1.0, on_bad_row="skip")
    assert (len(source.held_out(1000)), source.skipped) == (286, 14)


def test_json_lines_in_a_json_file_are_read(tmp_path):
    rows = [{"question": f"{k}?", "answer": k} for k in range(3)]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [task.private["answer"] for task in tasks_of(tmp_path / "a.json")] == [0, 1, 2]


def test_old_option_is_renamed(tmp_path):
    from whetstone.assembly import assemble
    from whetstone.errors import RecipeError
    from whetstone.recipe import load_recipe

    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "answer": 1}\n{"prompt": "b", "answer": 1}\n')
    for option, message in (("on_bad_task: skip", "renamed to on_bad_row"), ("on_bad_row: error", "renamed to stop")):
        with pytest.raises(RecipeError, match=message):
            assemble(load_recipe("demo", [f"tasks={{source: jsonl, path: {tmp_path}/a.jsonl, {option}}}"])).check()


def test_answer_without_value_is_invalid(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"question": "Tea?", "answer": null}\n')
    with pytest.raises(TaskError, match=r"a\.jsonl:1  `answer` has no value"):
        tasks_of(tmp_path / "a.jsonl")


def test_half_of_a_surrogate_pair_is_invalid_wherever_it_is(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "answer": {"b": ["\\ud83d"]}}\n{"prompt": "c", "answer": 1}\n')
    with pytest.raises(TaskError, match=r"a\.jsonl:1  `answer\.b\[0\]` is not valid Unicode"):
        Jsonl(path=str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separator_is_reported_once_for_the_file(tmp_path, separator):
    (tmp_path / "a.csv").write_text(f"question{separator}answer\nTea?{separator}4\nRice?{separator}5\n")
    with pytest.raises(TaskError, match=r"a\.csv, header: one column, with .* in its name; save the file with commas"):
        tasks_of(tmp_path / "a.csv")


def test_number_that_no_float_holds_is_invalid(tmp_path):
    for name, text in (("a.jsonl", "{}"), ("a.json", "[{}]")):
        (tmp_path / name).write_text(text.replace("{}", '{"question": "Tea?", "answer": [{"a": -1e999}]}'))
        with pytest.raises(TaskError, match="not JSON: -1e999 is out of range"):
            tasks_of(tmp_path / name)
