"""Tool results are cleaned to plain text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whetstone.tools.sanitize_text import sanitize_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text,\n\ttabs and café 中文 🙂", "plain text,\n\ttabs and café 中文 🙂"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07done", "red done"),
        ("10%\r20%\r\n", "10%\n20%\n"),
        ("a\x00b\x07c\x7f", "a�b�c�"),
        ("\ud800 alone", "� alone"),
        ("to\u202egnp.exe", "to�gnp.exe"),
        ("hidden\U000e0041\U000e0042", "hidden��"),
        ("\x9b31m", "�31m"),
    ],
)
def test_invalid_text_is_made_visible(text, expected):
    assert sanitize_text(text) == expected


@given(st.text(st.characters(codec=None, categories=None), max_size=60))
def test_any_text_can_be_stored_and_cleaning_is_idempotent(text):
    cleaned = sanitize_text(text)
    json.dumps(cleaned, ensure_ascii=False).encode()
    assert "\x1b" not in cleaned
    assert sanitize_text(cleaned) == cleaned
