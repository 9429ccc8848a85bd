"""Secrets and personal data in texts: API keys, private keys, e-mail addresses and phone numbers.

`find_sensitive` returns the places and kinds. Values are never part of a message. The package `detect-secrets` adds the
keys of further providers; entropy is not used, since a random-looking text is usual in training data.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whetstone.data.redacting import Redact
from whetstone.errors import DataError, RecipeError
from whetstone.masking import PROVIDER_KEYS
from whetstone.optional_dependencies import install_command
from whetstone.plugins import find_part

_PRIVATE_KEY = (
    r"-----B[E]GIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^-]|-(?!----)){0,8000}(?:-----END [A-Z ]{0,60}-----)?"
)
_ESCAPE = r"(?<=\\[nrt])|(?<=\\u[0-9a-fA-F]{4})"
"""An escape of JSON before a value, such as in the arguments of a call; it is not part of the value."""
_EMAIL = rf"(?:(?<![\w\\.%+-])|{_ESCAPE})[\w%+-][\w.%+-]{{0,63}}@(?:[\w-]{{1,63}}\.){{1,8}}[^\W\d_]{{2,24}}(?![\w-])"
_PHONES = (
    r"\+[1-9]\d{0,2}[ -]\(?\d{1,4}\)?(?:[ -]\d{2,4}){1,4}(?!\w)",
    rf"(?:(?<![\w+.,/-])|{_ESCAPE})\+[1-9](?:[ ./-]?\(?\d\)?){{6,14}}(?!\w)",
    rf"(?:(?<![\w.,/+-])|{_ESCAPE})(?:1[-. ])?(?:\(\d{{3}}\) ?|\d{{3}}[-.])\d{{3}}[-.]\d{{4}}(?![\w-])",
    rf"(?i:(?:\b|{_ESCAPE})(?:phone|telephone|telefon|tel|mobile|cell|fax)\b)[.:]{{0,2}} {{0,2}}"
    r"(?P<number>\+?\(?\d(?:[ ./()-]?\d){6,14})(?!\w)",
)


def _delimit(expression: str) -> re.Pattern[str]:
    return re.compile(rf"(?:(?<![A-Za-z0-9_-])|{_ESCAPE})(?:{expression})(?![A-Za-z0-9_-])")


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    expression: re.Pattern[str]
    markers: tuple[str, ...] = ()
    """Lowercase texts of which a value, or its label, contains one; a fast test before the expression."""


_KINDS: Sequence[_Kind] = (
    _Kind("private key", re.compile(_PRIVATE_KEY), ("private key",)),
    *(
        _Kind(name, _delimit(expression), tuple(map(str.lower, markers)))
        for name, (expression, *markers) in PROVIDER_KEYS.items()
    ),
    _Kind("e-mail address", re.compile(_EMAIL), ("@",)),
    _Kind("phone number", re.compile(_PHONES[0]), ("+",)),
    _Kind("phone number", re.compile(_PHONES[1]), ("+",)),
    _Kind("phone number", re.compile(_PHONES[2])),
    _Kind("phone number", re.compile(_PHONES[3]), ("phone", "telefon", "tel", "mobile", "cell", "fax")),
)
_WINDOW, _OVERLAP = 4000, 1000
"""Characters per search of the package's expressions, some of which take quadratic time, and the repeated ones."""
_JWT = "JSON Web Token"
_EXCLUDED = frozenset({"Public IP (ipv4)", "Private Key", "OpenAI Token"})
"""Kinds of the package that are excluded: not a secret, or found here as a whole and in linear time."""


@dataclass(frozen=True, slots=True)
class SensitiveSpan:
    """Position of a secret or of personal data in a text."""

    start: int
    """Index of the first character."""
    end: int
    """Index after the last character."""
    kind: str
    """Kind of value, such as `e-mail address`."""


def find_sensitive(text: str) -> list[SensitiveSpan]:
    """Return the secrets and personal data in a text, in order, without overlaps.

    Keys of further providers are found if `detect-secrets` is installed.

    Example:
        >>> [span.kind for span in find_sensitive("Write to ann@example.org or +41 44 123 45 67.")]
        ['e-mail address', 'phone number']
    """
    spans: list[SensitiveSpan] = []
    covered = bytearray(len(text))
    for span in itertools.chain(_own_spans(text), _package_spans(text)):
        if span.start < span.end and covered.find(1, span.start, span.end) < 0:
            covered[span.start : span.end] = b"\x01" * (span.end - span.start)
            spans.append(span)
    return sorted(spans, key=lambda span: span.start)


def _own_spans(text: str) -> Iterator[SensitiveSpan]:
    lower = text.lower()
    for kind in _KINDS:
        if kind.markers and not any(marker in lower for marker in kind.markers):
            continue
        for match in kind.expression.finditer(text):
            start, end = match.span("number" if "number" in kind.expression.groupindex else 0)
            if kind.name != "phone number" or _is_phone(match[0]):
                yield SensitiveSpan(start, end, kind.name)


def count_sensitive(texts: Sequence[str]) -> Counter[str]:
    """Count secrets and personal data in texts, by kind."""
    return Counter(span.kind for text in texts for span in find_sensitive(text))


def redact_sensitive(text: str) -> str:
    """Replace secrets and personal data by their kind, such as `[redacted e-mail address]`.

    Raises:
        DataError: `detect-secrets` is not installed.
    """
    if missing_package():
        raise DataError(f"redaction of secrets needs detect-secrets: {install_command('secrets')}")
    return mask_sensitive(text)


def mask_sensitive(text: str) -> str:
    """Replace secrets and personal data that the installed packages find; for texts that are printed."""
    for _ in range(3):  # a value next to another one is found once that is replaced
        parts, end = [], 0
        for span in find_sensitive(text):
            parts += [text[end : span.start], f"[redacted {span.kind}]"]
            end = span.end
        if not parts:
            break
        text = "".join([*parts, text[end:]])
    return text


REDACTORS: Mapping[str, Redact] = {"sensitive": redact_sensitive}
"""Functions that redact texts, by name."""


def find_redactor(name: str) -> Redact:
    """Return the redactor of a name, or the function that `package.module:function` names.

    Raises:
        RecipeError: Neither exists, or the redactor needs a package that is not installed.
    """
    redact: Redact = find_part("redact", name, REDACTORS)
    if name in REDACTORS:
        try:
            redact("")
        except DataError as error:
            raise RecipeError(str(error)) from None
    return redact


def collect_texts(value: Any) -> Iterator[str]:
    """Yield all texts in nested lists and mappings, the keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from collect_texts(key)
            yield from collect_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from collect_texts(item)


def redact_texts(value: Any, redact: Callable[[str], str]) -> Any:
    """Return nested lists and mappings with every text redacted, the keys included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        redacted: dict[Any, Any] = {}
        for key, item in value.items():
            name = unique = redact_texts(key, redact)
            for number in itertools.count(2):
                if unique not in redacted:
                    break
                unique = f"{name} {number}"  # keys that differ in redacted parts only
            redacted[unique] = redact_texts(item, redact)
        return redacted
    return [redact_texts(item, redact) for item in value] if isinstance(value, list | tuple) else value


def missing_package() -> bool:
    """Return whether the optional package `detect-secrets` is not installed."""
    return _plugins() is None


def _is_phone(text: str) -> bool:
    """Return whether a match has the digits of a phone number."""
    digits = sum(character.isdigit() for character in text)
    is_grouped = any(character in " ./-(" for character in text.strip())
    return 10 <= digits <= 15 or (7 <= digits <= 15 and is_grouped)


@functools.cache
def _plugins() -> Sequence[Any] | None:
    """Return the detectors of `detect-secrets` that have expressions; None if the package is not installed."""
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins.base import RegexBasedDetector
    except ImportError:
        return None
    classes = get_mapping_from_secret_type_to_class()
    return [
        plugin()
        for kind, plugin in sorted(classes.items())
        if issubclass(plugin, RegexBasedDetector) and kind not in _EXCLUDED
    ]


def _package_spans(text: str) -> Iterator[SensitiveSpan]:
    """Yield the secrets that `detect-secrets` finds, line by line; a long line is searched in windows."""
    offset = 0
    for line in text.split("\n"):
        for start in range(0, max(1, len(line) - _OVERLAP), _WINDOW - _OVERLAP):
            window = line[start : start + _WINDOW]
            for plugin in _plugins() or ():
                for expression in plugin.denylist:
                    for match in expression.finditer(window):
                        group = match.lastindex or 0
                        first, last = match.span(group)
                        if plugin.secret_type != _JWT or plugin.is_formally_valid(match[group]):
                            place = offset + start
                            yield SensitiveSpan(place + first, place + last, str(plugin.secret_type))
        offset += len(line) + 1
