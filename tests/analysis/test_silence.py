"""Which comparisons could have shown nothing is told, and those that found no difference are not among them."""

from whetstone.analysis.silence import silence_of

CLAIM, PART = {"better": "a", "than": "b"}, {"measure": "success", "than": "b"}


def silence(a, b, measure="success"):
    """Of two contenders whose runs have these outcomes."""
    contenders = [
        {"name": name, "runs": [_run(seed, each) for seed, each in enumerate(outcomes)]}
        for name, outcomes in (("a", a), ("b", b))
    ]
    return silence_of({"contenders": contenders}, CLAIM, {**PART, "measure": measure})


def _run(seed, outcomes):
    share = outcomes.count("1") / len(outcomes)
    measures = {"success": share, "area under the curve": share, "policy/entropy (last)": share}
    return {"seed": seed, "failed": None, "measures": measures, "outcomes": outcomes}


def test_bottom_top_and_equal_tasks_show_nothing():
    assert silence(["0000", "0000"], ["0000", "0000"]) == "nobody gets anywhere"
    assert silence(["1111"], ["1111"]) == "everybody gets there"
    assert silence(["1100", "0110"], ["1100", "0110"]) == "equal in every task"


def test_equal_means_in_different_tasks_show_that_there_is_no_difference():
    assert silence(["1100"], ["0011"]) is None
    assert silence(["0000"], ["0001"]) is None


def test_a_curve_is_not_judged_by_its_last_tasks_and_entropy_has_no_top():
    assert silence(["1100"], ["1100"], "area under the curve") is None
    assert silence(["1111"], ["1111"], "area under the curve") == "everybody gets there"
    assert silence(["1111"], ["1111"], "policy/entropy (last)") is None


def test_a_failed_run_and_one_that_was_not_measured_are_left_out():
    failed = {"seed": 1, "failed": "no memory"}
    unmeasured = {"seed": 0, "failed": None, "measures": {"success": None}}
    contenders = [
        {"name": "a", "runs": [_run(0, "1100"), failed]},
        {"name": "b", "runs": [unmeasured, _run(1, "0110")]},
    ]
    assert silence_of({"contenders": contenders}, CLAIM, PART) is None
