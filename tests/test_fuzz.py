"""The fuzzer finds nothing for a few fixed inputs, and reports a planted fault."""

import hashlib
import os

import pytest

import fuzz
from fuzzing.choices import Choices, Finding
from fuzzing.trying import failure, kind_of, load_target

TARGETS = sorted(fuzz.TARGETS)


def inputs(target, count):
    for number in range(count):
        yield hashlib.shake_128(f"{target} {number}".encode()).digest(16 << (number % 7))


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_inputs_find_nothing(target, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module, _ = load_target(target, instrumented=False)
    monkeypatch.chdir(os.getcwd())
    for data in inputs(target, 40):
        module.one(Choices(data))


def test_choices_end_where_the_bytes_end():
    choices = Choices(b"")
    assert (choices.below(7), choices.often(255), choices.text(("x",)), choices.value(("x",))) == (0, False, "", "x")


def test_raised_exception_is_a_finding_with_its_kind():
    def fails(choices):
        if choices.below(256) == 7:
            raise Finding("a kind: and its reason")

    assert failure(fails, b"x") is None
    assert kind_of(failure(fails, b"\x07")) == "a kind"
