"""Secrets and personal data in data files: counted by kind, never printed, redacted in a copy."""

import json
import random
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cli import whetstone
from support.conversations import conversations, written
from whetstone.data.redacting import redacted_words
from whetstone.data.sensitive import (
    REDACTORS,
    count_sensitive,
    find_redactor,
    find_sensitive,
    mask_sensitive,
    missing_package,
    redact_sensitive,
    redact_texts,
)
from whetstone.errors import RecipeError

TINY = (
    "policy.tiny={vocab_size: 300, hidden_size: 8, num_layers: 1, num_heads: 2, intermediate_size: 8, "
    "context_length: 4096}"
)
PLAIN = [TINY, "ablations=null", "chat.format=hermes"]
needs_package = pytest.mark.skipif(
    missing_package(), reason="detect-secrets is not installed: pip install 'whetstone-rl[secrets]'"
)
_random = random.Random(0)


def letters(count, alphabet=string.ascii_letters + string.digits):
    return "".join(_random.choices(alphabet, k=count))


VALUES = {
    "Anthropic API key": f"sk-ant-api03-{letters(80)}7",
    "OpenAI API key": f"sk-proj-{letters(60)}7",
    "OpenRouter API key": f"sk-or-v1-{letters(64)}",
    "Google API key": f"AIza{letters(35)}",
    "Hugging Face token": f"hf_{letters(34)}",
    "GitHub token": f"ghp_{letters(36)}",
    "GitLab token": f"glpat-{letters(20)}",
    "AWS access key": f"AKIA{letters(16, string.ascii_uppercase + string.digits)}",
    "Slack token": f"xoxb-{letters(12, string.digits)}-{letters(24)}",
    "Stripe key": f"sk_live_{letters(24)}",
    "Groq API key": f"gsk_{letters(52)}",
    "private key": f"-----{'BEGIN'} RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{letters(900)}\n"
    "-----END RSA PRIVATE KEY-----",
    "e-mail address": "ann.o+x@mail.example.org",
    "phone number": "+41 44 123 45 67",
}  # made up here


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("text", ["{}", "key={}.", '{{"a": "x\\n{}"}}', "(see {}, please)", "a\n{}\nb"])
def test_value_is_found_once_as_a_whole(kind, text):
    sample = text.format(VALUES[kind])
    (span,) = find_sensitive(sample)
    assert (span.kind, sample[span.start : span.end]) == (kind, VALUES[kind])


@pytest.mark.parametrize(
    "number",
    ["+4915112345678", "(555) 123-4567", "555-123-4567", "1-555-123-4567", "+1 (555) 123-4567", "+49 30/1234567"],
)
def test_phone_number_is_found(number):
    assert count_sensitive([f"Call {number}, today"]) == {"phone number": 1}


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-01", "1234567890123", "192.168.123.4567", "3.14159265358979", "12+4912345", "x = +12345678",
        "user@host", "@decorator", "sk-learn", "sk-loading-spinner-component-of-a-page", "a@b", "1,234,567,890",
        "123e4567-e89b-12d3-a456-426614174000", "tel", "phone 12", "hf_model", "978-3-16-148410-0", "AKIA",
    ],
)  # fmt: skip
def test_other_text_is_not_sensitive(text):
    assert find_sensitive(text) == []


@given(st.lists(st.sampled_from([*VALUES.values(), " ", "\n", "a b ", "ü", '"'])))
def test_masked_text_has_no_sensitive_values(parts):
    masked = mask_sensitive(" ".join(parts))
    assert find_sensitive(masked) == []
    assert [value for value in VALUES.values() if value in masked] == []


@given(st.text())
def test_text_without_spans_is_unchanged(text):
    if not find_sensitive(text):
        assert mask_sensitive(text) == text


def test_redaction_keeps_the_shape_and_every_key():
    value = {"a@b.example": 1, "c@d.example": [2.5, None, "x"], "t": {"arguments": json.dumps({"to": "a@b.example"})}}
    redacted = redact_texts(value, mask_sensitive)
    assert list(redacted) == ["[redacted e-mail address]", "[redacted e-mail address] 2", "t"]
    assert list(redacted.values())[:2] == [1, [2.5, None, "x"]]
    assert json.loads(redacted["t"]["arguments"]) == {"to": "[redacted e-mail address]"}


def test_long_texts_of_one_character_take_linear_time():
    for piece in ("sk-", "a@", "+1", f"-----{'BEGIN'} PRIVATE KEY-----", "a.", "1-", "AKIA", "phone: ", "://a:b"):
        find_sensitive(piece * (140_000 // len(piece)))  # minutes, if an expression takes quadratic time


def check(path, *options, code=0):
    done = whetstone("data", "check", path, "demo", *PLAIN, *options, cwd=path.parent)
    assert done.returncode == code, done.stderr
    return done


def leaking(count=3):
    rows = conversations(count)
    for row, (kind, value) in zip(rows, VALUES.items(), strict=False):
        row["messages"][0]["content"] += f" {value}"
        row["messages"][-1]["content"] = f"{kind}: {value}"
        row["tools"] = [{"type": "function", "function": {"name": "pocket_calculator", "description": value}}]
    return rows


def test_check_counts_by_kind_and_prints_no_value(tmp_path):
    kinds = list(VALUES)
    path = written(tmp_path / "a.jsonl", leaking(len(kinds)))
    report = json.loads(check(path, "--json").stdout)
    assert report["sensitive"] == dict.fromkeys(sorted(kinds), 3)
    with open(path, "a") as file:  # values in error messages
        for value in VALUES.values():
            file.write(json.dumps({"messages": [{"role": value, "content": value}]}) + "\n")
            file.write(json.dumps({"messages": [{"role": "user", "content": 3, value: value}, value]}) + "\n")
    for options in (["-n", "20"], ["--json"]):
        done = check(path, *options, code=2)
        assert [value for value in VALUES.values() if value in done.stdout + done.stderr] == []
    assert re.search(r"[4-9] OpenAI API key", check(path, code=2).stdout)
    output = check(path, "-n", "20", code=2).stdout
    assert [value[:12] for value in VALUES.values() if value[:12] in output and "PRIVATE" not in value] == []


def test_without_the_package_counting_works_and_redaction_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("whetstone.data.sensitive._plugins", lambda: None)
    path = written(tmp_path / "a.jsonl", leaking())
    assert "detect-secrets finds keys of further providers: pip install" in check(path).stdout
    done = check(path, "--redact", tmp_path / "b.jsonl", code=2)
    assert "redaction of secrets needs detect-secrets: pip install" in done.stderr
    assert not (tmp_path / "b.jsonl").exists()
    with pytest.raises(RecipeError, match="needs detect-secrets"):
        find_redactor("sensitive")


@needs_package
def test_redacted_copy_has_the_same_rows_and_no_values(tmp_path):
    path = written(tmp_path / "a.jsonl", leaking())
    before = path.read_bytes()
    done = check(path, "--redact", tmp_path / "b.jsonl")
    assert "b.jsonl: redacted copy with 3 rows" in done.stdout
    assert path.read_bytes() == before
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [row["messages"][1] for row in rows] == [row["messages"][1] for row in conversations(3)]
    assert rows[0]["messages"][-1]["content"] == "Anthropic API key: [redacted Anthropic API key]"
    assert json.loads(check(tmp_path / "b.jsonl", "--json").stdout)["sensitive"] == {}
    assert "b.jsonl: exists" in check(path, "--redact", tmp_path / "b.jsonl", code=2).stderr
    assert "use a name that ends with .jsonl" in check(path, "--redact", tmp_path / "b.csv", code=2).stderr


@needs_package
def test_rows_with_token_ids_are_not_redacted_in_part(tmp_path):
    row = {"prompt_ids": [1], "completion_ids": [2], "reward": 1}
    path = written(tmp_path / "a.jsonl", [row])
    assert (
        "a.jsonl:1  prompt_ids: token ids contain the text too"
        in check(path, "--redact", tmp_path / "b.jsonl", code=2).stderr
    )


@needs_package
def test_package_adds_kinds():
    webhook = f"https://hooks.slack.com/services/T{letters(8)}/B{letters(8)}/{letters(24)}"
    text = f"Post to {webhook}, or to mongodb://admin:hunter2x@db.example"
    assert redact_sensitive(text).count("[redacted") == 2
    assert "hunter2x" not in redact_sensitive(text)


def test_serving_and_data_files_share_one_redactor():
    assert REDACTORS["sensitive"] is redact_sensitive
    words = redacted_words({"role": "user", "content": "a@b.example"}, mask_sensitive)
    assert words == {"role": "user", "content": "[redacted e-mail address]"}
    with pytest.raises(RecipeError, match="sensitve"):
        find_redactor("sensitve")
