"""Constraints of structured outputs: sampling is restricted to tokens that can still lead to a valid answer.

A grammar is a JSON schema (`response_format`) or a turn of tool calls (`tool_choice`). The recorded log-prob of a token
is the one among the allowed tokens. If only one token is allowed, nothing is sampled: the token is forced, read and not
trained.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from whetstone.chat.api.requests import RefusedError
from whetstone.chat.call_grammar import JSON_SPACING, CallGrammar
from whetstone.chat.token_bytes import TokenBytes
from whetstone.optional_dependencies import install_command


class GrammarConstraint:
    """Restricts the sampled tokens of one answer to a grammar; a `Constraint` of the engine.

    Args:
        stop_ids: Tokens that end the answer when the grammar is complete.
        other_stop_ids: Tokens that end another kind of answer.
        excluded: Texts that the answer contains only if the grammar permits nothing else.
    """

    def __init__(
        self,
        matcher: Any,
        stop_ids: Collection[int],
        other_stop_ids: Collection[int] = (),
        excluded: ExcludedTexts | None = None,
    ) -> None:
        self._matcher, self._stops, self._other_stops, self._read = matcher, list(stop_ids), list(other_stop_ids), 0
        self._excluded = excluded
        self.forced: list[bool] = []
        """[T] whether only one token was allowed at each place so far."""

    def allowed(self, drawn: Sequence[int]) -> np.ndarray:
        """Return the [V] mask of allowed next tokens; see `Constraint.allowed`.

        If the grammar allows no token, only the tokens that end the answer are allowed.
        """
        self._matcher.consume_tokens(list(drawn[self._read :]))
        self._read = len(drawn)
        mask = np.frombuffer(self._matcher.compute_logit_bias(), dtype=np.uint8) > 0
        if not self._matcher.is_error():
            mask = self._without(mask, self._other_stops)
            if self._excluded is not None:
                mask = self._without(mask, self._excluded.completing_tokens(drawn))
        if self._matcher.is_error() or not mask.any():
            mask = np.zeros(max(len(mask), *(stop + 1 for stop in self._stops)), dtype=bool)
            mask[self._stops] = True
        self.forced[len(drawn) :] = [int(mask.sum()) == 1]
        return mask

    def _without(self, mask: np.ndarray, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the mask without the given tokens; unchanged if no other token is allowed."""
        fewer = mask.copy()
        fewer[[token for token in tokens if token < len(mask)]] = False
        return fewer if fewer.any() else mask


class ExcludedTexts:
    """Finds the next tokens that would complete one of several forbidden texts, such as markers of tool calls.

    Args:
        pieces: [V] the bytes of each token.
        exempt: Tokens that are never returned.
        cache: Tokens by the bytes they start with, shared by all instances with the same pieces.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        texts: Sequence[str],
        exempt: Collection[int],
        cache: dict[bytes, np.ndarray] | None = None,
    ) -> None:
        self._pieces, self._texts, self._exempt = pieces, [text.encode() for text in texts], np.array(sorted(exempt))
        self._known = {} if cache is None else cache
        self._tail, self._read = b"", 0
        self._longest = max(map(len, self._texts), default=1)

    def completing_tokens(self, sampled: Sequence[int]) -> np.ndarray:
        """Return the ids of tokens that would complete one of the texts if sampled next."""
        new = b"".join(self._pieces[token] for token in sampled[self._read :])
        self._tail, self._read = (self._tail + new)[-self._longest :], len(sampled)
        rests = {
            text[count:] for text in self._texts for count in range(len(text)) if self._tail.endswith(text[:count])
        }
        token_arrays = [self._tokens(rest, rest in self._texts) for rest in sorted(rests)]
        tokens = np.concatenate(token_arrays) if token_arrays else np.zeros(0, dtype=np.int64)
        return tokens[~np.isin(tokens, self._exempt)]

    def _tokens(self, rest: bytes, is_whole: bool) -> np.ndarray:
        """Return the ids of tokens that start with the rest of a text, or contain a whole text."""
        if rest not in self._known:
            fits = bytes.__contains__ if is_whole else bytes.startswith
            tokens = [token for token, piece in enumerate(self._pieces) if fits(piece, rest)]
            self._known[rest] = np.array(tokens, dtype=np.int64)
        return self._known[rest]


class Schemas:
    """Builds grammar constraints for the tokenizer of a server; created by `CompletionService`.

    Args:
        stop_ids: Tokens that end an answer.
    """

    def __init__(self, tokenizer: Any, stop_ids: Collection[int]) -> None:
        self._tokenizer, self._stops = tokenizer, sorted(stop_ids)
        self._known: Any = None
        self._pieces: list[bytes] = []
        self._completions: dict[bytes, np.ndarray] = {}

    def build_constraint(self, schema: Mapping[str, Any]) -> GrammarConstraint:
        """Compile a JSON schema into the constraint of an answer. This can take a second.

        Raises:
            RefusedError: llguidance is not installed, or does not support the schema.
        """
        param = "response_format"
        try:
            grammar = _llguidance(param).LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_SPACING)
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"{param}: {str(error)[:200]}", param=param) from None
        return GrammarConstraint(self._matcher(grammar, param), self._stops)

    def call_constraint(self, grammar: CallGrammar) -> GrammarConstraint:
        """Compile a grammar of tool calls into the constraint of an answer.

        Raises:
            RefusedError: llguidance is not installed, or does not support the schema of a tool.
        """
        param = "tool_choice"
        matcher = self._matcher(_llguidance(param).LLMatcher.grammar_from_lark(grammar.lark), param)
        others = [stop for stop in self._stops if stop != grammar.stop_id]
        if not self._pieces:
            token_bytes = TokenBytes(self._tokenizer)
            self._pieces = [token_bytes.decode_token(token) for token in range(len(self._tokenizer))]
        excluded = ExcludedTexts(self._pieces, grammar.excluded, grammar.token_ids, self._completions)
        return GrammarConstraint(matcher, [grammar.stop_id], others, excluded)

    def _matcher(self, grammar: str, param: str) -> Any:
        library = _llguidance(param)
        try:
            if self._known is None:
                from llguidance.hf import from_tokenizer

                self._known = from_tokenizer(self._tokenizer, eos_token=self._stops)
            matcher = library.LLMatcher(self._known, grammar, log_level=0)
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"{param}: {str(error)[:200]}", param=param) from None
        if matcher.is_error():
            reason = str(matcher.get_error()).strip().partition("\n")[0]
            whose, remedy = ("this schema", "")
            if param == "tool_choice":
                whose, remedy = "the schema of a tool", "; leave that keyword out, or use tool_choice auto"
            raise RefusedError(f"{param}: {whose} cannot be followed: {reason[:200]}{remedy}", param=param)
        return matcher


def _llguidance(param: str) -> Any:
    try:
        import llguidance
    except ImportError:
        needed = install_command("serve")
        raise RefusedError(f"{param}: structured outputs need llguidance: {needed}", param=param) from None
    return llguidance
