"""What is asked is answered exactly, or refused in a line."""

import pytest

from tests_viewed import episode, evaluated, made_run
from whetstone.chat.api.asked import RefusedError
from whetstone.viewing.index import TrajectoryIndex
from whetstone.viewing.wanted import Wanted


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
    found = TrajectoryIndex(run, folder=folder / "cache")
    found.refresh()
    return found


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({}, 10),
        ({"part": "training"}, 8),
        ({"from_step": "2"}, 4),
        ({"to_step": "1", "part": "training"}, 4),
        ({"task": "sums/3"}, 2),
        ({"kind": "words"}, 2),
        ({"tool": "search"}, 1),
        ({"tool": "sum"}, 8),  # not `sums`, which begins alike
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
def test_filters_leave_what_they_say(index, asked, count):
    assert index.page(Wanted.read(asked)).count == count


def test_sorted_by_a_component_what_has_none_comes_last(index):
    rows = index.page(Wanted.read({"sort": "component:brief", "descending": "0"})).rows
    assert [row["id"] for row in rows[:2]] == ["e/0", "e/1"]
    assert "brief" not in rows[2]["parts"]


def test_pages_follow_each_other(index):
    whole = [row["id"] for row in index.page(Wanted(limit=10)).rows]
    assert [row["id"] for row in index.page(Wanted(limit=4, offset=3)).rows] == whole[3:7]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tsak": "a"}, 'no filter "tsak"; did you mean "task"'),
        ({"sort": "reward; DROP TABLE trajectories"}, "cannot sort by"),
        ({"sort": "component:rihgt"}, 'no component "rihgt" in rewards; did you mean "right"'),
        ({"measure": "component:x) OR 1=1 --", "above": "0"}, "no component"),
        ({"above": "much"}, 'above: "much" is no number'),
        ({"above": "nan"}, "is no number"),
        ({"limit": "100000"}, "limit 1 to 200"),
        ({"offset": "-1"}, "offset is 0 or more"),
        ({"text": "*** ---"}, "no letter or digit"),
    ],
)
def test_what_cannot_be_asked_is_refused(index, asked, said):
    with pytest.raises(RefusedError, match=said.replace("(", r"\(").replace("*", r"\*")):
        index.page(Wanted.read(asked))


@pytest.mark.parametrize("text", ['"', "a OR b", "NEAR(a, b)", "said : x", "x*", "'; --", "\0a", "^a", "-a"])
def test_no_text_is_an_operator(index, text):
    try:
        index.page(Wanted.read({"text": text}))
    except RefusedError as refused:
        assert "no letter or digit" in str(refused)  # noqa: PT017


def test_names_with_signs_of_sql_are_only_names(index):
    for name in ("task", "kind", "ended", "tool", "part", "mark"):
        assert index.page(Wanted.read({name: "' OR 1=1 --%"})).count == 0
