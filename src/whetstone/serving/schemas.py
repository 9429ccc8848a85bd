"""How is an answer held to a JSON schema? Only tokens that can still lead to such JSON are drawn from.

What is recorded of a token is its log-prob among those that were allowed. Where one alone was, nothing was drawn: that
token is forced, read and not trained, as the beginning of a call that had to be made is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from whetstone.chat.api.asked import RefusedError
from whetstone.extras import install_command

_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As Python writes JSON: a model that may put spaces anywhere may put nothing else."""
_PARAM = "response_format"


class SchemaConstraint:
    """One answer under way; see `Constraint`."""

    def __init__(self, matcher: Any, stop_ids: Collection[int]) -> None:
        self._matcher, self._stops, self._read = matcher, list(stop_ids), 0
        self.forced: list[bool] = []
        """[T] whether nothing else was allowed, of each token so far."""

    def allowed(self, drawn: Sequence[int]) -> np.ndarray:
        """See `Constraint.allowed`. Where the schema leaves nothing, the answer ends."""
        self._matcher.consume_tokens(list(drawn[self._read :]))
        self._read = len(drawn)
        mask = np.frombuffer(self._matcher.compute_logit_bias(), dtype=np.uint8) > 0
        if self._matcher.is_error() or not mask.any():
            mask = np.zeros(max(len(mask), *(stop + 1 for stop in self._stops)), dtype=bool)
            mask[self._stops] = True
        self.forced[len(drawn) :] = [int(mask.sum()) == 1]
        return mask


class Schemas:
    """Makes constraints for a tokenizer.

    Args:
        stop_ids: Tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, stop_ids: Collection[int]) -> None:
        self._tokenizer, self._stops = tokenizer, sorted(stop_ids)
        self._known: Any = None

    def constraint(self, schema: Mapping[str, Any]) -> SchemaConstraint:
        """One for an answer. It may take a second.

        Raises:
            RefusedError: Nothing can be held to this schema.
        """
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ImportError:
            needed = install_command("serve")
            raise RefusedError(f"{_PARAM}: schemas need llguidance: {needed}", param=_PARAM) from None
        try:
            if self._known is None:
                self._known = from_tokenizer(self._tokenizer, eos_token=self._stops)
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_WRITTEN)
            matcher = LLMatcher(self._known, grammar, log_level=0)
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"{_PARAM}: {str(error)[:200]}", param=_PARAM) from None
        if matcher.is_error():
            said = str(matcher.get_error()).strip().partition("\n")[0]
            raise RefusedError(f"{_PARAM}: this schema cannot be followed: {said[:200]}", param=_PARAM)
        return SchemaConstraint(matcher, self._stops)
