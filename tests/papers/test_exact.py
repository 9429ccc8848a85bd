"""Properties that papers claim hold for the built-in components, and stored rows are the recomputed ones."""

import functools

import pytest

from paper_properties import load_checks
from support.slow import mostly_slow
from whetstone.analysis.exact import REFUTED, SHOWN, Figure, read_exact_rows, stored_rows
from whetstone.analysis.paper_verdicts import exact_counts, load_papers

CHECKS = load_checks()
measured_row = functools.cache(lambda name: read_exact_rows([CHECKS[name].measure_row()])[0])
STORED = {row.check: row for row in stored_rows()}
SLOW = (
    "curious_play_finds_each_state_as_a_task", "algebra_accepts_what_string_match_rejects",
    "durations_as_weights_remove_the_drift_to_fast_actions", "reward_of_tests_raises_the_fraction_of_valid_tests",
    "scores_against_opponents_are_those_of_the_game_tree", "path_efficiency_is_one_only_on_the_shorter_kind",
    "verifier_ranks_products_with_a_calculator_only", "only_the_relevant_question_earns_the_full_reward",
    "the_rule_reward_is_one_only_on_the_path_of_the_expert", "misleading_term_is_switched_off",
    "each_milestone_of_support_is_paid_once", "verifier_orders_the_pairs_of_sibling_turns",
    "few_turns_lower_tokens_to_the_first_answer", "items_are_met_only_with_a_quote_of_the_record",
    "labels_of_injected_errors_are_true_by_replay", "milestones_of_the_shop_hold_on_exactly_the_fitting_pages",
    "functions_of_solved_tasks_solve_later_ones", "written_parameters_decide_the_behavior",
    "static_metrics_lower_findings_at_equal_detection",
)  # fmt: skip
"""Checks that take more than half a second."""
NAMES = mostly_slow(CHECKS, quick=[name for name in CHECKS if name not in SLOW])


@pytest.mark.parametrize("name", NAMES)
def test_property(name):
    failed = [figure.text for figure in measured_row(name).figures if not figure.holds]
    assert not failed


@pytest.mark.parametrize("name", NAMES)
def test_stored_row_is_the_recomputed_one(name):
    stored, measured = STORED.get(name), measured_row(name)
    advice = "python -m benchmarks exact_checks --write stores all rows"
    assert stored is not None, advice
    plain = [
        (row.check, tuple(row.papers), row.claim, tuple(row.components), row.note, row.verdict)
        for row in (stored, measured)
    ]
    assert plain[0] == plain[1], advice
    for before, now in zip(stored.figures, measured.figures, strict=True):
        assert (before.quantity, before.relation) == (now.quantity, now.relation), advice
        assert before.expected == pytest.approx(now.expected, rel=1e-4, abs=1e-5), advice
        assert before.measured == pytest.approx(now.measured, rel=1e-4, abs=1e-5), advice


def test_no_stored_row_is_without_a_check():
    assert list(STORED) == list(CHECKS)


def test_papers_have_their_exact_rows():
    assert {key for row in STORED.values() for key in row.papers} <= set(load_papers())
    assert load_papers()["rloo"].exact_verdict == SHOWN
    assert exact_counts(load_papers().values())[SHOWN] == len({key for row in STORED.values() for key in row.papers})


@pytest.mark.parametrize(
    ("relation", "measured", "holds"),
    [("=", 1.0, True), ("=", 1.1, False), ("<", 1.0, False), ("<", 0.9, True), (">", 1.0, False), (">", 1.1, True),
     ("<=", 1.0, True), (">=", 0.9, False)],
)  # fmt: skip
def test_figure_holds_by_its_relation(relation, measured, holds):
    assert Figure("x", relation, 1.0, measured).holds is holds


def test_one_failed_figure_refutes_the_property():
    figures = [{"quantity": "a", "relation": "=", "expected": 0, "measured": 0},
               {"quantity": "b", "relation": "<", "expected": 1, "measured": 2}]  # fmt: skip
    row = {"check": "c", "papers": [], "claim": "p", "components": [], "figures": figures, "note": ""}
    assert read_exact_rows([row])[0].verdict == REFUTED
