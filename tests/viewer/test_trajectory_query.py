"""Queries return exact results, or are refused in one line."""

import pytest

from support.viewed_runs import episode, evaluated, made_run
from whetstone.chat.api.requests import RefusedError
from whetstone.viewer.trajectory_index import TrajectoryIndex
from whetstone.viewer.trajectory_query import TrajectoryQuery


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wanted")
    run = made_run(folder / "run", steps=2)
    others = [
        episode(
            "e/0", "words/1", reward=0.25, tool="search", outcome="tool_error", parts={"right": 0.0, "brief": 0.25}
        ),
        episode("e/1", "words/2", reward=0.75, tool="sums", parts={"right": 0.5, "brief": 0.75}),
    ]
    evaluated(run, "untrained", 0.5, [0.1, 0.9], others)
    trajectory_index = TrajectoryIndex(run, folder=folder / "cache")
    trajectory_index.refresh()
    return trajectory_index


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({}, 10),
        ({"part": "training"}, 8),
        ({"from_step": "2"}, 4),
        ({"to_step": "1", "part": "training"}, 4),
        ({"task": "sums/3"}, 2),
        ({"kind": "words"}, 2),
        ({"tool": "search"}, 1),
        ({"tool": "sum"}, 8),  # not `sums`, which has the same prefix
        ({"outcome": "solved"}, 5),
        ({"outcome": "unsolved"}, 5),
        ({"outcome": "tool_error"}, 1),
        ({"outcome": "unscored"}, 0),
        ({"above": "0.2", "below": "0.8"}, 2),
        ({"measure": "component:brief", "above": "0.5"}, 1),
        ({"ended": "terminated"}, 10),
        ({"ended": "error"}, 0),
        ({"text": "words", "outcome": "solved"}, 1),
        ({"text": ""}, 10),
    ],
)
def test_filters_select_matching_trajectories(index, query, count):
    assert index.query_page(TrajectoryQuery.parse(query)).count == count


def test_sorting_by_a_component_puts_missing_values_last(index):
    rows = index.query_page(TrajectoryQuery.parse({"sort": "component:brief", "descending": "0"})).rows
    assert [row["id"] for row in rows[:2]] == ["e/0", "e/1"]
    assert "brief" not in rows[2]["parts"]


def test_pages_are_consecutive(index):
    unpaged = [row["id"] for row in index.query_page(TrajectoryQuery(limit=10)).rows]
    assert [row["id"] for row in index.query_page(TrajectoryQuery(limit=4, offset=3)).rows] == unpaged[3:7]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"tsak": "a"}, 'no filter "tsak"; did you mean "task"'),
        ({"sort": "reward; DROP TABLE trajectories"}, "cannot sort by"),
        ({"sort": "component:rihgt"}, 'no component "rihgt" in rewards; did you mean "right"'),
        ({"measure": "component:x) OR 1=1 --", "above": "0"}, "no component"),
        ({"above": "much"}, 'above: "much" is not a number'),
        ({"above": "nan"}, "is not a number"),
        ({"limit": "100000"}, "limit from 1 to 200"),
        ({"offset": "-1"}, "offset must be at least 0"),
        ({"text": "*** ---"}, "contain a letter or digit"),
    ],
)
def test_invalid_query_is_refused(index, query, message):
    with pytest.raises(RefusedError, match=message.replace("(", r"\(").replace("*", r"\*")):
        index.query_page(TrajectoryQuery.parse(query))


@pytest.mark.parametrize("text", ['"', "a OR b", "NEAR(a, b)", "said : x", "x*", "'; --", "\0a", "^a", "-a"])
def test_search_text_has_no_operators(index, text):
    try:
        index.query_page(TrajectoryQuery.parse({"text": text}))
    except RefusedError as refused:
        assert "contain a letter or digit" in str(refused)  # noqa: PT017


def test_names_with_sql_characters_are_names(index):
    for name in ("task", "kind", "ended", "tool", "part", "mark"):
        assert index.query_page(TrajectoryQuery.parse({name: "' OR 1=1 --%"})).count == 0
