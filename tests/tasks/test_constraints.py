"""Instructions with constraints: every task is satisfiable, conflicts are found, and code checks each rule."""

import asyncio
import itertools

import pytest

from support.rewards import episode
from whetstone.rewards.answers.satisfied_constraints import satisfied_constraints
from whetstone.tasks.constrained_instructions import ConstrainedInstructions
from whetstone.tasks.constraint_rules import check_constraint, find_conflict, write_example
from whetstone.trajectory import Task


def write_text(words, marks, bullets):
    lines = [("- " if bullet else "") + word + ("." if mark else "")
             for word, mark, bullet in zip(words, marks, bullets, strict=True)]  # fmt: skip
    return "\n".join(lines)


TEXTS = [  # all texts of up to three words of {a, b}, one per line, with full stops and bullets
    write_text(*parts)
    for count in (1, 2, 3)
    for parts in itertools.product(
        itertools.product("ab", repeat=count),
        itertools.product((0, 1), repeat=count),
        itertools.product((0, 1), repeat=count),
    )
]
SMALL = [
    *({"kind": kind, "word": word} for kind in ("include", "exclude", "starts_with", "ends_with") for word in "ab"),
    *({"kind": kind, "count": count} for kind in ("bullets", "sentences") for count in (1, 2, 3)),
    {"kind": "words", "low": 1, "high": 1}, {"kind": "words", "low": 2, "high": 2},
    {"kind": "words", "low": 1, "high": 3},
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_conflicts_are_those_of_an_enumeration_of_all_texts(size):
    bound = {"kind": "words", "low": 1, "high": 3}
    for chosen in itertools.combinations(SMALL, size):
        rules = [bound, *chosen]
        excludes = {each["word"] for each in rules if each["kind"] == "exclude"}
        if excludes == {"a", "b"}:
            continue  # the enumerated texts have no other word
        possible = any(all(check_constraint(each, text) for each in rules) for text in TEXTS)
        assert (find_conflict(rules) is None) == possible, rules
        if possible:
            assert all(check_constraint(each, write_example(rules)) for each in rules), rules


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_level_has_as_many_constraints_and_its_expert_satisfies_all(level):
    source = ConstrainedInstructions(seed=3, levels=[level])
    for task in [*map(source.task, range(100)), *source.held_out(20)]:
        assert len(task.private["constraints"]) == level + 1  # and the word of the instruction
        answer = source.demonstrate(task, [], [])
        assert asyncio.run(satisfied_constraints(episode(answer.text), task)).success


def test_worked_rules():
    rule = {"kind": "words", "low": 2, "high": 3}
    text = "Stone by stone."
    right = [rule, {"kind": "starts_with", "word": "stone"}, {"kind": "sentences", "count": 1}]
    wrong = [{"kind": "case", "value": "lower"}, {"kind": "exclude", "word": "BY"}, {"kind": "bullets", "count": 1}]
    assert [check_constraint(each, text) for each in (*right, *wrong)] == [True] * 3 + [False] * 3
    task = Task("t", "?", {"constraints": [*right, wrong[0]]})
    assert asyncio.run(satisfied_constraints(episode(text), task)).value == 0.0
    assert asyncio.run(satisfied_constraints(episode(text), task, partial=True)).value == 0.75
    absent = Task("t", "?", {"constraints": [*right, {"kind": "include", "word": "moss"}]})
    assert asyncio.run(satisfied_constraints(episode(text), absent, partial=True)).value == 0.0


def test_text_without_words_satisfies_nothing():
    assert not any(check_constraint(rule, text) for rule in SMALL for text in ("", "...", "- ", "42"))


@pytest.mark.parametrize(
    ("rule", "message"),
    [({"kind": "rhyme"}, "no constraint 'rhyme'; the kinds are include"), ({"kind": "words", "low": 2}, "has no high")],
)
def test_invalid_constraint_is_named(rule, message):
    with pytest.raises(ValueError, match=message):
        find_conflict([rule])


def test_contradiction_is_named():
    rules = [{"kind": "ends_with", "word": "stone"}, {"kind": "exclude", "word": "Stone"}]
    assert find_conflict(rules) == "the word Stone is required and excluded"
    with pytest.raises(ValueError, match="no text satisfies all constraints"):
        write_example(rules)
