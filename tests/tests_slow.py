"""What of a sweep `make test` tries at once, and what it leaves to `make test-slow`. Nothing is left out of both."""

import collections

import pytest
from hypothesis import settings

SWEEPS = {
    "algorithms/advantages/test_all_estimators.py::test_it_says_what_loops_over_floats_say": 10,
    "algorithms/advantages/test_all_estimators.py::test_no_column_is_written_to": 5,
    "algorithms/advantages/test_all_estimators.py::test_the_order_of_trajectories_matters_to_nobody": 5,
    "algorithms/advantages/test_all_estimators.py::test_what_tasks_and_roles_are_called_matters_to_nobody": 5,
    "environments/test_textarena.py::test_who_says_nothing_wins_no_game": 3,
    "inference/test_blocks.py::test_log_probs_in_half_precision_are_those_of_a_full_pass_up_to_its_rounding": 6,
    "inference/test_local.py::test_a_fork_is_the_same_bit_for_bit_whether_its_parent_is_still_held_or_not": 3,
    "inference/test_local.py::test_bit_for_bit_the_same_whatever_the_company_the_evictions_and_the_pieces": 3,
    "inference/test_local.py::test_weights_change_in_the_middle_as_was_asked": 8,
    "inference/test_served.py::test_a_good_engine_passes_every_check": 1,
    "inference/test_served.py::test_an_answer_that_is_none_is_a_line": 3,
    "learning/test_sequences.py::test_loss_and_gradient_are_those_of_all_tokens_at_once": 20,
    "network/test_answers.py::test_headers_without_end_are_given_up": 1,
    "rewards/worlds/test_sql_result.py::test_what_does_not_run_is_wrong_and_changes_nothing": 5,
    "rewards/worlds/test_unit_tests.py::test_no_trick_passes": 12,
    "rewards/answers/test_symbolic.py::test_what_is_the_same": 4,
    "sandbox/test_attacks.py::test_a_call_that_takes_its_supervisor_with_it_is_a_crash_of_its_own": 1,
    "sandbox/test_hostile_guest.py::test_a_supervisor_that_talks_nonsense_is_gone": 2,
    "test_readme.py::test_every_command_on_the_tool_of_the_readme_trains": 5,
    "tools/database/test_process.py::test_a_process_somebody_else_kills_is_replaced": 1,
    "tools/database/test_process.py::test_two_episodes_side_by_side": 1,
    "tools/database/test_process.py::test_what_cannot_be_interrupted_is_killed_and_the_next_query_runs": 2,
    "tools/database/test_process.py::test_what_was_committed_outlives_a_process_that_had_to_be_killed": 1,
    "training/test_background_evaluation.py::test_every_step_is_evaluated_and_training_is_the_same": 1,
    "training/test_failing.py::test_where_every_reward_fails_the_run_stops_with_the_cause": 2,
    "training/test_train_step.py::test_what_cannot_be_is_refused_before_anything_is_sampled": 8,
}
"""By test, how many of its parameters `make test` tries, one as far from the next as can be; slow are the others."""


def thinned(items):
    """The items that `SWEEPS` leaves to the slow tier."""
    of_tests = collections.defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if name in SWEEPS and item.get_closest_marker("slow") is None:
            of_tests[name].append(item)
    left = []
    for name, each in of_tests.items():
        kept = {k * len(each) // SWEEPS[name] for k in range(SWEEPS[name])}
        left += [item for place, item in enumerate(each) if place not in kept]
    return left


def mostly_slow(values, *, quick):
    """Each value as a parameter of a test; all but those named are marked slow.

    Args:
        values: What to try: plain values, or parameters of pytest.
        quick: The values that `make test` tries, or the ids of the parameters; each must be among `values`.
    """
    parameters = [value if hasattr(value, "marks") else pytest.param(value) for value in values]
    named = [parameter.id if parameter.id is not None else parameter.values[0] for parameter in parameters]
    assert all(name in named for name in quick), f"{[name for name in quick if name not in named]}: not in the sweep"
    return [
        parameter
        if name in quick
        else pytest.param(*parameter.values, marks=[*parameter.marks, pytest.mark.slow], id=parameter.id)
        for parameter, name in zip(parameters, named, strict=True)
    ]


def examples(most, **options):
    """Settings of a property that tries `most` examples in `make test-slow`, and as many as the profile says before."""
    return settings(max_examples=min(most, settings.default.max_examples), deadline=None, **options)
