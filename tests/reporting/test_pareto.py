"""The Pareto front of success and cost."""

from whetstone.reporting.pareto import front_chart, pareto_front


def test_dominated_contender_is_not_on_the_front():
    # middle costs less and solves as much as dear; idle costs what small does and solves less
    points = {"small": (1.0, 0.4), "idle": (1.0, 0.2), "dear": (16.0, 0.9), "middle": (4.0, 0.9)}
    assert pareto_front(points) == ["small", "middle"]


def test_equal_contenders_are_both_on_the_front():
    assert pareto_front({"one": (1.0, 0.5), "other": (1.0, 0.5)}) == ["one", "other"]


def test_plot_needs_contenders_with_a_cost():
    assert front_chart({"a": [(0.0, 0.5)], "b": [(0.0, 1.0)]}) == ""
    assert front_chart({"a": [], "b": []}) == ""
    svg = front_chart({"a": [(1.0, 0.5), (2.0, 0.7)], "failed": [], "b": [(4.0, 0.9)]})
    assert svg.startswith("<svg")
    assert "failed" not in svg
