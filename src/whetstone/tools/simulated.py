"""Simulated tools: a table or a language model provides the results of tools that are not available.

A table is JSON Lines: `{"name": "weather", "arguments": {"city": "Bern"}, "result": "rain"}`. A call that is not in the
table is sent to the model if there is one; otherwise it is an error for the agent.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import httpx2
import orjson

from whetstone.chat import ToolSpec
from whetstone.chat.message import Text
from whetstone.errors import InfrastructureError, RecipeError, TaskError, summarize_exception
from whetstone.network import BoundedResponse, fetch_bounded, ssl_context
from whetstone.provenance import Provenance
from whetstone.tools.backend_failures import BackendError, is_retryable, is_sent
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.protocol import Result
from whetstone.tools.schema import Tool, with_integers
from whetstone.tools.server_health import classify_failure

_ASKED = (
    "You stand in for a tool. Answer the call as the tool would, with its output alone. If the arguments make no "
    'sense, answer with an error as the tool would, beginning with "error:".'
)


class Simulated:
    """Tools of a file, with results from a table or from a language model.

    Args:
        file: JSON Lines with one tool per line, in the OpenAI format.
        answers: JSON Lines with `name`, `arguments` and `result`.
        url: OpenAI-compatible address of a model (`…/v1`); its key is in `OPENAI_API_KEY`.
        model: Name of the model on the server.
        timeout_seconds: Time limit of a request, in seconds.

    Raises:
        RecipeError: If neither `answers` nor `url` is set.
        TaskError: If a file cannot be read.
    """

    effects = "read"

    def __init__(
        self,
        *,
        file: str,
        answers: str | None = None,
        url: str | None = None,
        model: str = "",
        timeout_seconds: float = 60.0,
    ) -> None:
        if answers is None and url is None:
            raise RecipeError("simulated: there is no source of results; set `answers` or `url`")
        self.replayable = url is None
        self.stateless = url is None
        self.provenance = Provenance.SAMPLED if url is None else Provenance.IMAGINED
        self.answers = Answers(answers) if answers is not None else None
        self.url, self.model, self.timeout_seconds = url, model, timeout_seconds
        rows = read_lines(file)
        try:
            self.specs = [ToolSpec.from_openai(row) for row in rows]
        except ValueError as error:
            raise TaskError(f"{file}: {error}") from None

    def tools(self) -> list[Tool]:
        """Return the tools of the file."""
        return [tool_from_schema(spec, functools.partial(self._answer, spec.name)) for spec in self.specs]

    async def _answer(self, name: str, arguments: dict[str, Any]) -> Result:
        if self.answers is not None:
            result = await self.answers.answer(name, arguments)
            if result.outcome == "ok" or self.url is None:
                return result
        return await self._ask_model(name, arguments)

    async def _ask_model(self, name: str, arguments: dict[str, Any]) -> Result:
        spec = next(spec for spec in self.specs if spec.name == name)
        call = json.dumps({"tool": spec.to_openai()["function"], "arguments": arguments}, ensure_ascii=False)
        try:
            answer = await self._request(_ASKED, call)
        except httpx2.HTTPError as error:  # a call longer than the model can read is one, too
            raise self._error(summarize_exception(error), was_sent=is_sent(error)) from None
        if answer.status >= 300:
            after = answer.headers.get("retry-after")
            failed = self._error(f"status {answer.status}", status=answer.status, retry_after=after)
            blame = failed.blame
            raise failed if is_retryable(answer.status) or blame is None else await blame()
        try:
            text = str(answer.json()["choices"][0]["message"]["content"])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise InfrastructureError(f"the model at {self.url}: {summarize_exception(error)}") from None
        return Result((Text(text),), "tool_error" if text.startswith("error:") else "ok")

    async def _request(self, system: str, call: str) -> BoundedResponse:
        """Request the result of a call from the model.

        Raises:
            httpx2.HTTPError: If the request fails.
        """
        messages = [{"role": "system", "content": system}, {"role": "user", "content": call}]
        body = {"model": self.model, "temperature": 0, "messages": messages}
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx2.AsyncClient(timeout=self.timeout_seconds, headers=headers, verify=ssl_context()) as client:
            return await fetch_bounded(
                client, "POST", f"{self.url}/chat/completions", seconds=self.timeout_seconds, json=body
            )

    def _error(self, failure: str, **options: Any) -> BackendError:
        """Return the error of a failed request.

        A short plain request decides later whether the server is down.
        """
        failure = f"the model at {self.url}: {failure}"
        plain = functools.partial(self._request, "You are there.", "Are you?")
        return BackendError(failure, blame=functools.partial(classify_failure, failure, plain, below=400), **options)


class Answers:
    """Table of calls and their results.

    Args:
        file: JSON Lines with `name`, `arguments` and `result`.

    Raises:
        TaskError: If the file cannot be read, or a line has no `name` or `result`.
    """

    def __init__(self, file: str) -> None:
        self._known: dict[str, str] = {}
        for number, row in enumerate(read_lines(file), 1):
            if not isinstance(row, dict) or not {"name", "result"} <= row.keys():
                raise TaskError(f'{file}:{number}: each line must be an object with "name", "arguments" and "result"')
            result = row["result"]
            self._known[_key(row["name"], row.get("arguments", {}))] = (
                result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
            )

    async def answer(self, name: str, arguments: dict[str, Any]) -> Result:
        """Return the result of a call in the table.

        The result is a `tool_error` if the table does not contain the call.
        """
        result = self._known.get(_key(name, arguments))
        if result is None:
            text = json.dumps(arguments, ensure_ascii=False)
            return Result((Text(f"error: {name} knows nothing of {text}"),), "tool_error")
        return Result((Text(result),), "tool_error" if result.startswith("error:") else "ok")


def read_lines(file: str) -> list[Any]:
    """Read the values of a JSON Lines file; empty lines are skipped.

    Raises:
        TaskError: If the file does not exist, or a line is not JSON.
    """
    values = []
    try:
        lines = Path(file).read_bytes().splitlines()
    except OSError as error:
        raise TaskError(f"{file}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                values.append(orjson.loads(line))
            except ValueError as error:
                raise TaskError(f"{file}:{number}: {error}") from None
    return values


def _key(name: str, arguments: dict[str, Any]) -> str:
    return f"{name} {json.dumps(with_integers(arguments), sort_keys=True)}"
