"""Selection of tasks by a date column: limits, the temporal split, the model's cutoff, and bad input."""

import json
from datetime import UTC, date, datetime

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from whetstone.assembly.task_components import build_source
from whetstone.cli.main import cli
from whetstone.errors import RecipeError
from whetstone.plugins import OptionError
from whetstone.recipe import load_recipe
from whetstone.tasks.finite_source import ListedTasks
from whetstone.tasks.task_dates import DateRange, fraction_after_cutoff, parse_date, select_dated_tasks
from whetstone.trajectory import Task


def listed(months):
    tasks = [Task(str(k), f"question {k}", {"day": f"2024-{month:02d}-01"}) for k, month in enumerate(months)]
    return ListedTasks(tasks[1:], tasks[:1], seed=0)


def select(source, **dates):
    line = select_dated_tasks(source, DateRange("day", **dates))
    return [[task.id for task in side] for side in source.listed_tasks], line


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tasks.jsonl"
    rows = [{"prompt": f"question {k}?", "answer": str(k), "created_at": f"2024-{k:02d}-15T10:00:00Z"}
            for k in range(1, 13)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2024-05-31", (2024, 5, 31)), ("2024-05", (2024, 5, 1)), (2024, (2024, 1, 1)), (date(2024, 5, 3), (2024, 5, 3)),
     ("2024-05-31T01:00:00+02:00", (2024, 5, 30, 23)), ("2024-05-31 00:00:00", (2024, 5, 31))],
)  # fmt: skip
def test_date_is_read_in_utc(value, expected):
    assert parse_date(value) == datetime(*expected, tzinfo=UTC)


@given(st.lists(st.integers(1, 12), min_size=4, max_size=12), st.integers(1, 12))
def test_since_and_until_of_one_date_divide_the_tasks(months, at):
    selected = []
    for limit in ("since", "until"):
        try:
            sides, _ = select(listed([1, 1, 12, 12, *months]), **{limit: f"2024-{at:02d}"})
        except OptionError:
            return  # a side is empty
        selected.append({task for side in sides for task in side})
    assert selected[0] & selected[1] == set()
    assert selected[0] | selected[1] == {str(k) for k in range(len(months) + 4)}


def test_temporal_split_trains_on_earlier_tasks_only():
    sides, line = select(listed([9, 1, 5, 7, 3]), held_out_since="2024-05", cutoff="2024-07-01")
    assert sides == [["1", "4"], ["2", "3", "0"]]
    # 1 July is not after the cutoff; of May, July and September one is
    assert "33.3% of the held-out tasks are newer than the model" in line


def test_fraction_newer_than_the_model_counts_held_out_tasks():
    source = listed([6, 6, 7])
    select(source, cutoff="2024-06-15")
    training, held_out = source.listed_tasks
    assert [fraction_after_cutoff(side) for side in (training, held_out)] == [0.5, 0.0]
    assert source.task(0).tags["cutoff"] in ("before", "after")


def test_order_of_an_undated_recipe_is_unchanged(file):
    plain = load_recipe("demo", ["tasks=null", f"tasks={{source: jsonl, path: {file}}}"])
    dated = plain.with_overrides(["tasks.date=created_at"])
    sources = [build_source(each, "tasks", each.recipe.tasks.options) for each in (plain, dated)]
    assert [sources[0].task(k) for k in range(20)] == [sources[1].task(k) for k in range(20)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["tasks.since=2024-06"], "tasks.since: requires tasks.date"),
        (["tasks.date=created_at", "tasks.since=soon"], "tasks.since: 'soon' is not a date; write YYYY-MM-DD"),
        (["tasks.date=created_at", "tasks.since=2025-01-01"], "tasks.since: leaves no training tasks; the tasks are"),
        (["tasks.date=created", "tasks.since=2024"], "tasks.date: task 1 has no column created; did you mean"),
        (["tasks.date=answer"], "tasks.date: task 1: answer: '1' is not a date"),
        (["tasks.date=created_at", "tasks.since=2024-06", "tasks.until=2024"], "tasks.until: must be after tasks.sin"),
    ],
)  # fmt: skip
def test_bad_dates_are_one_line(file, keys, message):
    resolved = load_recipe("demo", [f"tasks={{source: jsonl, path: {file}}}", *keys])
    with pytest.raises(RecipeError) as caught:
        build_source(resolved, "tasks", resolved.recipe.tasks.options)
    assert message in str(caught.value).replace("(did", "did")
    assert "\n" not in str(caught.value)


def test_generated_tasks_have_no_dates():
    resolved = load_recipe("demo", ["tasks.date=day"])
    with pytest.raises(RecipeError, match=r"tasks\.date: the source generates its tasks, which have no dates"):
        build_source(resolved, "tasks", resolved.recipe.tasks.options)


def test_command_shows_the_selected_tasks(file):
    result = CliRunner().invoke(cli, ["tasks", "show", "jsonl", f"path={file}", "date=created_at", "since=2024-03",
                                      "held_out_since=2024-07", "cutoff=2024-09-30", "-n", "1"])  # fmt: skip
    assert result.exit_code == 0
    assert "created_at" in result.stdout
    assert "4 training and 6 held-out tasks of 12 are kept; the tasks are from 2024-01-15 to" in result.stderr
    assert "50.0% of the held-out tasks are newer than the model (tasks.cutoff 2024-09-30)" in result.stderr
