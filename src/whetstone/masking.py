"""Detection of secrets in settings, and masking of secret values in all output.

Values that `remember_secret` stores are replaced by `mask_secrets` in error messages, progress lines, tool results and
files of a run.

Note:
    Only values that no ordinary text contains are stored: the password `postgres` would be replaced in every sentence
    about PostgreSQL. Such a value is masked in the recipe and in URLs.
"""

from __future__ import annotations

import html
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import quote

PROVIDER_KEYS: Mapping[str, Sequence[str]] = tomllib.loads(
    (files("whetstone") / "provider_keys.toml").read_text("utf-8")
)
"""Kind of API key → its regular expression, and substrings of which a value contains one."""
MASK = "MASKED_"
"""Prefix of the variable name that replaces a literal secret in a stored recipe."""
_WORDS = (
    r"api_?keys?|access_?keys?|private_?key|secret(?:_?key)?s?|(?:access_|auth_|bearer_|api_|refresh_|session_)?token|"
    r"password|passwd|passphrase|pwd|credentials?|authorization|cookies?|dsn|connection_string|pat"
)
_SECRET_NAME = re.compile(rf"(?:^|_)(?:{_WORDS})$")
_SECRET_VARIABLE = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASS|CREDENTIALS?)$")
"""Pattern of environment variable names that hold a secret."""
_MODEL_TOKEN = re.compile(r"(?:^|_)(?:eos|bos|pad|unk|sep|cls|mask|stop|end|start|turn|image)_token$")
"""Keys that name a token of a tokenizer, which is no secret."""
_OPEN = frozenset({"headers", "environment", "variables", "env", "cookies"})
"""Keys whose entries are HTTP headers or environment variables of a program."""
_BY_NAME = frozenset({
    "call_prices", "effects", "functions", "instructions", "max_calls_per_second", "models", "prefer", "prices",
    "rules", "seats", "terms",
})  # fmt: skip
"""Keys whose entries have names of tools, terms, models or seats: a tool `reset_password` is not a password."""
_PLAIN_NAMES = frozenset({
    "accept", "content_type", "user_agent", "path", "home", "lang", "language", "tz", "pwd", "shell", "term", "tmpdir",
    "python_path", "pythonpath", "virtual_env", "host", "port", "model", "log_level",
})  # fmt: skip
"""Names of headers and variables that hold no secret, in snake case."""
_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_SCHEME = re.compile(r"\s*(?:bearer|basic|token|apikey|digest)\s+(?=\S)", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?<=://)(?P<user>[^\s/:@?#]*):(?P<secret>[^\s/@?#]+)(?=@)")
_IN_TEXTS = (
    _URL_PASSWORD,
    re.compile(
        r"(?i)(?:^|(?<=[?&;\s])|(?<=--))(?:[a-z]+[_-])?(?:api[_-]?key|access[_-]?key|key|token|sig|signature|password|"
        r"passwd|pwd|secret)=(?P<secret>[^&\s#;]+)"
    ),
    re.compile(r"(?i)\bbearer\s+(?P<secret>[A-Za-z0-9._~+/=-]{8,})"),
    *(
        re.compile(rf"(?<![A-Za-z0-9_-])(?P<secret>{expression})(?![A-Za-z0-9_-])")
        for expression, *_ in PROVIDER_KEYS.values()
    ),
)
"""Patterns of secrets within a text; the group `secret` is masked."""
_REFERENCE = "${"
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_MIN_LENGTH = 6
_values: dict[str, str] = {}
_longest_first: tuple[tuple[str, str], ...] = ()


def secret_spans(path: Sequence[str], value: str) -> list[tuple[int, int]]:
    """Return (start, end) of each secret in a text of a recipe.

    References such as `${NAME}` are not secrets.

    Args:
        path: Keys from the top of the recipe, such as `("environment", "tools", "0", "headers", "Authorization")`.
        value: Text at this key.
    """
    if is_secret_key(path) or (_is_open(path) and not _is_plain(_without_numbers(path)[-1], value)):
        start = scheme.end() if (scheme := _SCHEME.match(value)) else 0
        return [] if not value.strip() or _REFERENCE in value else [(start, len(value))]
    spans: list[tuple[int, int]] = []
    for expression in _IN_TEXTS:
        for match in expression.finditer(value):
            start, end = match.span("secret")
            if _REFERENCE not in match["secret"] and not any(start < last and first < end for first, last in spans):
                spans.append((start, end))
    return sorted(spans)


def is_secret_key(path: Sequence[str]) -> bool:
    """Return whether a key, header, variable or command-line option has the name of a secret.

    Args:
        path: Keys from the top of the recipe.
    """
    path = _without_numbers(path)
    if not path or (len(path) > 1 and path[-2] in _BY_NAME):
        return False
    name = _snake(path[-1])
    return _SECRET_NAME.search(name) is not None and _MODEL_TOKEN.search(name) is None


def is_credential(path: Sequence[str], variable: str = "") -> bool:
    """Return whether a key is a credential, or names an environment variable with one.

    Args:
        path: Keys from the top of the recipe.
        variable: Name of the environment variable; empty: none.
    """
    is_named = is_secret_key((variable,)) or _SECRET_VARIABLE.search(variable) is not None
    return is_secret_key(path) or is_named or _is_open(path)


def _is_open(path: Sequence[str]) -> bool:
    """Return whether a key is an entry of `headers`, `variables` or the `environment` of a program."""
    path = _without_numbers(path)
    if len(path) > 2 and path[0] in ("stages", "ablations"):
        path = path[2:]
    return len(path) > 2 and path[-2] in _OPEN and tuple(path[:-1]) != ("chat", "variables")


def _without_numbers(path: Sequence[str]) -> Sequence[str]:
    """Return a path without list indices at its end."""
    while len(path) > 1 and path[-1].isdigit():
        path = path[:-1]
    return path


def _is_plain(name: str, value: str) -> bool:
    """Return whether an entry of headers or variables is no secret: a word, number, path or address."""
    text = value.strip()
    if (
        _snake(name) in _PLAIN_NAMES
        or _snake(name).startswith("accept")
        or len(text) < _MIN_LENGTH
        or text.startswith(("/", "~", "./"))
    ):
        return True
    return not _is_distinctive(text) or ("://" in text and not any(each.search(text) for each in _IN_TEXTS))


def _is_distinctive(value: str) -> bool:
    """Return whether a value is unlikely to occur in ordinary text."""
    if len(value) < _MIN_LENGTH or any(map(str.isspace, value)):
        return False
    has_digits, has_letters = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    has_signs = any(not each.isalnum() and each not in "-_./:,;=+" for each in value)
    is_long = len(value) >= 16 and ("-" in value or "_" in value or value.lower() != value != value.upper())
    return (has_digits and has_letters) or has_signs or is_long


def _snake(name: str) -> str:
    return _WORD_BOUNDARY.sub("_", name).strip("_").lower()


def remember_secret(value: str, replacement: str) -> None:
    """Make `mask_secrets` replace a value in this process.

    Args:
        value: The secret; one that ordinary texts contain is not stored.
        replacement: Its replacement, such as `${SHOP_TOKEN}`.
    """
    global _longest_first
    value = _SCHEME.sub("", value.strip(), count=1) if _SCHEME.match(value) else value.strip()
    if not _is_distinctive(value) or value in _values:
        return
    for form in (value, quote(value, safe=""), json.dumps(value)[1:-1], repr(value)[1:-1], html.escape(value)):
        _values[form] = replacement
    _longest_first = tuple(sorted(_values.items(), key=lambda each: -len(each[0])))


def known_secrets() -> dict[str, str]:
    """Return the secret values of this process: value → replacement."""
    return dict(_values)


def mask_secrets(text: str) -> str:
    """Replace the secret values of this process in a text."""
    for value, replacement in _longest_first:
        if value in text:
            text = text.replace(value, replacement)
    return text


def mask_message(text: str) -> str:
    """Replace the secret values of this process, and passwords in URLs, in a message."""
    return _URL_PASSWORD.sub(r"\g<user>:***", mask_secrets(text)) if "://" in text else mask_secrets(text)


def map_texts(value: Any, change: Callable[[tuple[str, ...], str], Any], path: tuple[str, ...] = ()) -> Any:
    """Return a copy of nested values with each text replaced by `change(path, text)`.

    A dotted key counts as several keys. The path of a list entry after a command-line option, such as `--token`, ends
    with that option.

    Args:
        value: Nested mappings, lists and values.
        change: Function of (path, text) that returns the new value.
        path: Path of `value`.
    """
    if isinstance(value, str):
        return change(path, value)
    if isinstance(value, Mapping):
        return {key: map_texts(below, change, (*path, *str(key).split("."))) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [
            map_texts(below, change, (*path, str(number), *_option_before(value, number)))
            for number, below in enumerate(value)
        ]
    return value


def _option_before(values: Sequence[object], number: int) -> tuple[str, ...]:
    before = values[number - 1] if number else None
    return (before,) if isinstance(before, str) and _OPTION.fullmatch(before) else ()
