"""Operations of an OpenAPI 3 specification as tools, one tool per operation.

Note:
    For the model, the parameters of path, query, header, cookie and body are one flat object; the specification
    determines where each is sent. The fields of an object body are separate arguments, and any other body is the
    argument `body`. It is sent as JSON, as a form, as multipart, or as plain text.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2

from whetstone.chat.message import Text, ToolSpec
from whetstone.errors import InfrastructureError, RecipeError, ToolError, summarize_exception
from whetstone.network import BoundedResponse, NotPublicError, PublicTransport, fetch_bounded
from whetstone.recipe.yaml_text import yaml_document
from whetstone.tools.backend_failures import BackendError, is_retryable, is_sent
from whetstone.tools.json_schema_tools import tool_from_schema
from whetstone.tools.protocol import Result
from whetstone.tools.schema import Tool
from whetstone.tools.server_health import UNSAID, classify_failure
from whetstone.tools.side_effects import effect_of_method

_METHODS = ("get", "post", "put", "patch", "delete")
_MOST_DEPTH = 12
_MOST_VALUES = 100_000
_LONGEST = 16 << 20
_JSON, _FORM, _PARTS = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
_WITH_FIELDS = frozenset({_JSON, _FORM, _PARTS})
_PARAMETERS = ("path", "query", "header", "cookie")


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """Operation of an OpenAPI specification, with the place in the request for each argument."""

    spec: ToolSpec
    """Declaration of the operation as a tool."""
    method: str
    """HTTP method in upper case."""
    path: str
    """Path below the service's address, with parameters as `{name}`."""
    places: Mapping[str, str]
    """Place by argument: `path`, `query`, `header`, `cookie`, `body` or `file` (a field), `whole` (the whole body)."""
    media: str = "application/json"
    """Media type of the request body."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Name in the request by argument, for arguments that were renamed because another one has that name."""


class OpenApi:
    """Operations of an OpenAPI 3 specification as tools.

    Args:
        file: Path of the specification, JSON or YAML.
        url: Address of the service; null: the specification's first server, which must have a public address.
        include: Names of the operations to include; null: all.
        headers: Headers of each request, such as credentials; the model does not see them.
        timeout_seconds: Time limit of a request, in seconds.

    A request that fails (connection, timeout, status 429 and 5xx) is sent again. After the last attempt, it is the
    model's failure if the service's address still responds with a status below 500, except for 429.

    Raises:
        RecipeError: If the file cannot be read, has no operation of a name in `include`, or there is no address.
    """

    replayable = False

    def __init__(
        self,
        *,
        file: str,
        url: str | None = None,
        include: Sequence[str] | None = None,
        headers: dict[str, str] | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        document = _read(Path(file))
        self.url = (url or _first_server(document)).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise RecipeError(f"openapi: {file} has no server address; set `url`")
        self._said = url is not None
        self.headers, self.timeout_seconds = headers or {}, timeout_seconds
        self.operations = {operation.spec.name: operation for operation in list_operations(document)}
        if include is not None:
            missing = set(include) - self.operations.keys()
            if missing:
                known = ", ".join(self.operations)
                raise RecipeError(f"openapi: no operation {', '.join(sorted(missing))}; there are: {known}")
            self.operations = {name: self.operations[name] for name in include}

    def tools(self) -> list[Tool]:
        """Return one tool per operation."""
        return [self._tool(operation) for operation in self.operations.values()]

    def _tool(self, operation: ApiOperation) -> Tool:
        async def answer(arguments: dict[str, Any]) -> Result:
            return await self._request(operation, arguments)

        return replace(tool_from_schema(operation.spec, answer), effects=effect_of_method(operation.method))

    def _client(self) -> httpx2.AsyncClient:
        transport = PublicTransport(is_allowed=lambda host: self._said)
        return httpx2.AsyncClient(timeout=self.timeout_seconds, transport=transport, trust_env=False)

    def _blame(self, failure: str) -> Callable[[], Awaitable[ToolError | InfrastructureError]]:
        """Return the function that attributes a failure, by a plain request to the service's address."""

        async def ask_plainly() -> BoundedResponse:
            async with self._client() as client:
                return await fetch_bounded(client, "GET", self.url, seconds=self.timeout_seconds)

        return functools.partial(classify_failure, failure, ask_plainly)

    async def _request(self, operation: ApiOperation, arguments: dict[str, Any]) -> Result:
        path, query, headers, cookies = operation.path, {}, dict(self.headers), []
        body: dict[str, Any] = {}
        whole_body: Any = None
        for argument, value in arguments.items():
            place, name = operation.places.get(argument, "body"), operation.names.get(argument, argument)
            if place == "path":
                if not str(value):
                    raise ToolError(f"{name}: '' names nothing")
                path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
            elif place == "query":
                query[name] = _plain(value)
            elif place == "header":
                headers[name] = str(value)
            elif place == "cookie":
                cookies.append(f"{name}={quote(str(value), safe='')}")
            elif place == "whole":
                whole_body = value
            else:
                body[name] = value  # a field of it, or a file in it
        for step in set(path.split("/")) & {".", ".."}:  # a way to another operation, with this one's rights
            raise ToolError(f"{operation.path}: {step!r} names nothing")
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        async with self._client() as client:
            try:
                sent = _format_body(operation, whole_body, body)
                if "content" in sent:
                    headers["Content-Type"] = operation.media
                response = await fetch_bounded(
                    client,
                    operation.method,
                    f"{self.url}{path}",
                    seconds=self.timeout_seconds,
                    params=query,
                    headers=headers,
                    **sent,
                )
            except NotPublicError as error:
                raise InfrastructureError(f"{error}; if this is intended, set the address as `url`") from None
            except UNSAID as error:
                raise ToolError(summarize_exception(error)) from None
            except httpx2.HTTPError as error:
                failure = summarize_exception(error)
                raise BackendError(failure, was_sent=is_sent(error), blame=self._blame(failure)) from None
        if is_retryable(response.status):
            failure, after = f"status {response.status}: {response.text}", response.headers.get("retry-after")
            raise BackendError(failure, status=response.status, retry_after=after, blame=self._blame(failure))
        text = response.text or f"[status {response.status}, nothing was said]"
        if response.status >= 400:
            return Result((Text(f"error: status {response.status}: {text}"),), "tool_error")
        return Result((Text(text),))


def list_operations(document: Mapping[str, Any]) -> list[ApiOperation]:
    """Return all operations of a specification, named by `operationId`, otherwise by method and path.

    Raises:
        RecipeError: If a part of the specification is not valid OpenAPI 3.
    """
    operations = []
    for path, item in _mapping(document.get("paths") or {}).items():
        if not str(path).startswith("/"):  # it would be another host's: `https://shop.org` `@evil.net/`
            raise RecipeError(f"openapi: a path must start with /, got {str(path)[:60]!r}")
        for method in _METHODS:
            if method in _mapping(item):
                try:
                    operations.append(_operation(_References(document), str(path), method, item))
                except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    raise RecipeError(f"openapi: {method} {path} is not valid in OpenAPI 3: {reason}") from None
    return operations


def _first_server(document: Mapping[str, Any]) -> str:
    servers = document.get("servers")
    first = servers[0] if isinstance(servers, list) and servers else {}
    return str(first.get("url", "")) if isinstance(first, Mapping) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RecipeError(f"openapi: a mapping is expected, got {str(value)[:80]!r}")
    return value


def _operation(references: _References, path: str, method: str, item: Mapping[str, Any]) -> ApiOperation:
    declared = item[method]
    tool = declared.get("operationId") or f"{method}_{path}"
    tool = re.sub(r"_+", "_", re.sub(r"[^A-Za-z0-9_-]+", "_", tool)).strip("_")[:64]
    properties: dict[str, Any] = {}
    required: list[str] = []
    places: dict[str, str] = {}
    names: dict[str, str] = {}

    def declare(sent: str, place: str, schema: Any, *, is_required: bool) -> None:
        """Declare an argument. If another part of the request has its name, its own part is appended."""
        name = sent
        while name in places and (places[name], names.get(name, name)) != (place, sent):
            name = f"{name}_{place if place in _PARAMETERS else 'body'}"
        names.update({name: sent} if name != sent else {})
        properties[name], places[name] = schema, place
        required.extend([name] if is_required else [])

    for parameter in (*item.get("parameters", ()), *declared.get("parameters", ())):
        parameter = references.resolved(parameter)
        schema = {**references.resolved(parameter.get("schema", {})), **_about(parameter)}
        is_required = bool(parameter.get("required")) or parameter["in"] == "path"
        declare(parameter["name"], parameter["in"], schema, is_required=is_required)
    body = references.resolved(declared.get("requestBody", {}))
    media, content = _media(body.get("content", {}))
    if content is not None:
        schema = references.resolved(content.get("schema", {}))
        fields, needed = _fields(schema) if media in _WITH_FIELDS else ({}, [])
        if fields:
            for name, inner in fields.items():
                place = "file" if media == _PARTS and _is_file(inner) else "body"
                declare(name, place, inner, is_required=name in needed)
        else:
            typed = media in _WITH_FIELDS or "type" in schema
            schema = schema if typed else {"type": "string", **schema}
            declare("body", "whole", schema, is_required=bool(body.get("required")))
    parameters = {"type": "object", "properties": properties, "required": list(dict.fromkeys(required))}
    description = "\n".join(filter(None, (declared.get("summary"), declared.get("description"))))
    return ApiOperation(ToolSpec(tool, description, parameters), method.upper(), path, places, media, names)


def _media(content: Mapping[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
    """Return (media type, declaration) of a request body.

    JSON is preferred, then a form or multipart, then the first declared type.
    """
    for media, declared in content.items():
        plain = media.partition(";")[0].strip().lower()
        if plain == _JSON or plain.endswith("+json"):
            return _JSON if plain == _JSON else media, declared
    for media, declared in content.items():
        plain = media.partition(";")[0].strip().lower()
        if plain in (_FORM, _PARTS):
            return plain, declared
    return next(iter(content.items()), (_JSON, None))


def _fields(schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return (fields, names of required fields) of an object schema, `allOf` included.

    Both are empty for other types.
    """
    if schema.get("type", "object") != "object":
        return {}, []
    fields, needed = dict(schema.get("properties", {})), list(schema.get("required", []))
    for part in schema.get("allOf", ()):
        more, needs = _fields(part)
        fields, needed = {**more, **fields}, [*needed, *needs]
    return fields, needed


def _is_file(schema: Mapping[str, Any]) -> bool:
    if schema.get("type") == "array":
        return _is_file(schema.get("items", {}))
    if schema.get("type") != "string":
        return False
    return schema.get("format") in ("binary", "byte") or "contentMediaType" in schema or "contentEncoding" in schema


def _format_body(operation: ApiOperation, whole_body: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request body as keyword arguments of the HTTP client."""
    if whole_body is None and not body:
        return {}
    if isinstance(whole_body, Mapping) and operation.media in (_FORM, _PARTS):
        whole_body, body = None, whole_body
    if operation.media == _FORM and whole_body is None:
        return {"data": {name: _plain(value) for name, value in body.items()}}
    if operation.media == _PARTS and whole_body is None:
        parts = []
        files = {operation.names.get(name, name) for name, place in operation.places.items() if place == "file"}
        for name, value in body.items():
            for one in value if isinstance(value, list) else [value]:  # a list is a part for each
                text = one if isinstance(one, str) else str(_plain(one))
                parts.append((name, (name if name in files else None, text.encode())))
        return {"files": parts}
    if operation.media == _JSON:
        return {"json": whole_body if whole_body is not None else body}
    if operation.media.endswith("+json") or whole_body is None:
        return {"content": json.dumps(whole_body if whole_body is not None else body).encode()}
    return {"content": str(whole_body).encode()}


def _about(parameter: Mapping[str, Any]) -> dict[str, str]:
    return {"description": parameter["description"]} if parameter.get("description") else {}


class _References:
    """Resolver of `$ref` in a specification, with a limit on the size of the expansion.

    Args:
        document: Specification with the targets of all references.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document, self.left = document, _MOST_VALUES

    def resolved(self, value: Any, depth: int = 0) -> Any:
        """Return a value with all references replaced by their targets.

        A recursive schema ends with one that accepts anything.

        Raises:
            RecipeError: If a reference has no target, or the expansion is too large.
        """
        self.left -= 1
        if self.left < 0:
            raise RecipeError(f"openapi: an operation with more than {_MOST_VALUES} values, references expanded")
        if isinstance(value, Mapping):
            if depth > _MOST_DEPTH:
                return {}
            if "$ref" in value:
                return self.resolved(self._target(str(value["$ref"])), depth + 1)
            return _as_now({str(key): self.resolved(inner, depth + 1) for key, inner in value.items()})
        if isinstance(value, list):
            return [self.resolved(inner, depth + 1) for inner in value]
        return value

    def _target(self, reference: str) -> Any:
        target: Any = self.document
        for step in reference.removeprefix("#/").split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or key not in target:
                raise RecipeError(f"openapi: {reference}: no such reference target")
            target = target[key]
        return target


def _as_now(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of OpenAPI 3.0 as current JSON Schema: numeric exclusive bounds, and null as a type."""
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(name) is True and bound in schema:
            schema[name] = schema.pop(bound)
        elif isinstance(schema.get(name), bool):
            del schema[name]
    if schema.get("nullable") is True and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    return schema


def _plain(value: Any) -> Any:
    """Return a value in the form of a query parameter: `true`, `false`, and objects as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict) else value


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)
    except OSError as error:
        raise RecipeError(f"openapi: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RecipeError(f"openapi: {path}: not UTF-8") from None
    document = yaml_document(text, f"openapi: {path}", plain=True, max_characters=_LONGEST, most_nodes=1_000_000)
    if not isinstance(document, Mapping) or not str(document.get("openapi", "")).startswith("3"):
        raise RecipeError(f"openapi: {path}: not an OpenAPI 3 specification")
    return document
