"""Who is worth his price: the front of those nobody beats, drawn where something costs."""

from whetstone.reporting.front import front_chart, front_of


def test_who_is_beaten_in_both_is_not_on_the_front():
    # middle costs less and solves as much as dear; idle costs what small does and solves less
    points = {"small": (1.0, 0.4), "idle": (1.0, 0.2), "dear": (16.0, 0.9), "middle": (4.0, 0.9)}
    assert front_of(points) == ["small", "middle"]


def test_equals_are_both_on_it():
    assert front_of({"one": (1.0, 0.5), "other": (1.0, 0.5)}) == ["one", "other"]


def test_it_is_drawn_where_something_costs_alone():
    assert front_chart({"a": [(0.0, 0.5)], "b": [(0.0, 1.0)]}) == ""
    assert front_chart({"a": [], "b": []}) == ""
    svg = front_chart({"a": [(1.0, 0.5), (2.0, 0.7)], "failed": [], "b": [(4.0, 0.9)]})
    assert svg.startswith("<svg")
    assert "failed" not in svg
