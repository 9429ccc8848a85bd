from whetstone.errors import did_you_mean


def test_near_miss_gets_the_nearest_name():
    assert did_you_mean("group_relatve", ["group_relative", "gae"]) == '; did you mean "group_relative"?'


def test_far_miss_gets_all_names_in_order():
    assert did_you_mean("xyz", ["b", "a"]) == "; there are: a, b"


def test_no_choices_no_suggestion():
    assert did_you_mean("xyz", []) == ""
