"""HTTP routes for people: take over and rate answers, play the user of a tested agent, and the web page for both.

    GET    /                                      the page, and its style and script under /page/
    GET    /v1/episodes/{id}/conversation         the messages of an episode, with both answers of an intervention
    POST   /v1/episodes/{id}/take-over            {"message": {"content": …, "tool_calls": […]}, "answer": 0, "by": …}
    POST   /v1/episodes/{id}/watch                {"by": …, "seconds": 60}: answers that are not taken over count as
                                                  accepted; with seconds, each waits this time before it is sent
    POST   /v1/episodes/{id}/rate                 {"answer": 0, "rating": 1, "note": …, "by": …}
    POST   /v1/people/seats                       {"about": …, "seconds": 600}: open a seat for a test of an agent
    POST   /v1/people/seats/{id}/turns            {"turn": 0, "messages": […]}: request its message
    GET    /v1/people/seats/{id}/turns/{turn}     the message, ?wait=20 seconds for it
    DELETE /v1/people/seats/{id}
    GET    /v1/people/seats                       all open seats
    POST   /v1/people/claim                       {"by": …}: a waiting seat · /v1/people/seats/{id}/claim: this one
    POST   /v1/people/seats/{id}/release · /say   {"by": …, "content": …, "ended": false}; for a held answer
                                                  {"accept": true} or {"message": …}

Keys need the role `reward` to answer in a seat, to rate and to take over. Any key opens seats and reads its own.

Note:
    A person's name is that of their key. Only without keys may a request name the person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from whetstone.chat import Message
from whetstone.chat.api.request_fields import parse_finite, parse_seconds, whole_number
from whetstone.chat.api.requests import RefusedError
from whetstone.chat.api.requests import split_thinking as as_told
from whetstone.errors import RecipeError
from whetstone.optional_dependencies import install_command
from whetstone.serving.api_keys import Key
from whetstone.serving.app import Server
from whetstone.serving.conversation_matching import RecordedAnswer, ServerEpisode, list_messages_before
from whetstone.serving.episodes import check_name
from whetstone.serving.human_in_the_loop.queue import PeopleQueue
from whetstone.serving.human_in_the_loop.review_hold import ReviewQueue, public_message
from whetstone.serving.human_in_the_loop.seat_journal import HumanSeat
from whetstone.serving.interventions import message_from, take_over

PAGE = {"people.html": "text/html", "people.css": "text/css", "people.js": "text/javascript"}
SAFE = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Headers of the page: text of models and people is displayed, never executed."""
_LONGEST_WAIT = 30.0
_LONGEST = 100_000
"""Maximum characters of a person's text."""
_MOST_BYTES = 1 << 20
"""Maximum size of a request."""


def people_routes(server: Server, queue: PeopleQueue) -> Sequence[Any]:
    """Build the routes for people and their page, to pass to `build_serving_app`.

    Args:
        server: Server of the policy.
        queue: Queue of seats and notes.

    Raises:
        RecipeError: Starlette is not installed.
    """
    try:
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(f"serving needs starlette and uvicorn: {install_command('serve')}") from None

    reviews = ReviewQueue(server, queue)
    server.hold = reviews.wait_for_review

    async def asked_of(request: Request, role: str = "reward") -> tuple[Key, Mapping[str, Any], str]:
        """Return (key of the request, its body, name of the person)."""
        key = server.authenticate_request(request)
        if not key.has_role(role):
            raise RefusedError(f"this key may not do this; the role {role} is required", status=403, code="forbidden")
        body = await server.read_object(request, key, max_bytes=_MOST_BYTES) if request.method == "POST" else {}
        return key, body, key.name or _text(body, "by", "somebody")[:80] or "somebody"

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "people.html")
        if name not in PAGE:
            raise RefusedError(f"there is no /page/{name[:80]}", status=404)
        content = (resources.files("whetstone.serving.human_in_the_loop") / "page" / name).read_text("utf-8")
        return Response(content, headers={**SAFE, "content-type": f"{PAGE[name]}; charset=utf-8"})

    async def conversation_json(request: Request) -> JSONResponse:
        episode = server.episodes.get(server.authenticate_request(request), request.path_params["id"])
        return JSONResponse(_conversation(episode, queue))

    async def take(request: Request) -> JSONResponse:
        key, body, by = await asked_of(request)
        episode = server.episodes.get(key, request.path_params["id"])
        number = _answer(body, episode)
        message = body.get("message")
        if not isinstance(message, Mapping):
            raise RefusedError("message: must be an object with content or tool_calls", param="message")
        completions = server.completions
        context_length = completions.context_length
        person = take_over(
            episode, number, message_from(message), chat=completions.chat, context_length=context_length, by=by
        )
        server.episodes.register_intervention(episode, number)
        answer = next(place for place, each in enumerate(episode.answers) if each is person)
        return JSONResponse({"object": "intervention", "answer": answer, "message": person.message.to_openai()})

    async def watch(request: Request) -> JSONResponse:
        key, body, by = await asked_of(request)
        seconds = _number(body, "seconds") or 0.0
        if not 0 <= seconds <= 3600:
            raise RefusedError("seconds: must be from 0 (do not hold) to 3600", param="seconds")
        episode = server.episodes.get_or_open(key, check_name("id", request.path_params["id"], of_episode=True))
        episode.reviewer, episode.hold_seconds = by, seconds
        return JSONResponse({"object": "watch", "episode": episode.id, "by": by, "seconds": seconds})

    async def rate(request: Request) -> JSONResponse:
        key, body, by = await asked_of(request)
        episode = server.episodes.get(key, request.path_params["id"])
        number, note, rating = _answer(body, episode), _text(body, "note"), _number(body, "rating")
        if rating is None and not note:
            raise RefusedError("rating: a number or a note is required", param="rating")
        queue.refuse_bytes(key.name, note)  # before anything is stored
        if rating is not None:
            server.episodes.register_rating(episode, number, rating, note, by)
        queue.store_note(note, episode=episode.record_id, answer=number, by=by, rating=rating, owner=key.name)
        return JSONResponse({"object": "rating", "episode": episode.id, "answer": number, "rating": rating})

    async def seats(request: Request) -> JSONResponse:
        if request.method == "GET":
            await asked_of(request)
            return JSONResponse({"object": "list", "data": [seat.to_json() for seat in queue.open_seats()]})
        key, body, _ = await asked_of(request, "use")
        seconds = _number(body, "seconds")
        if seconds is not None and not 0 < seconds <= 86_400:
            raise RefusedError("seconds: must be above 0 and at most 86400", param="seconds")
        seat = queue.open_seat(about=_text(body, "about"), seconds=seconds or 600.0, owner=key.name)
        return JSONResponse(seat.to_json())

    def own(key: Key, id: str) -> HumanSeat:
        seat = queue.get(id)
        if seat.owner != key.name and not key.has_role("admin"):
            raise RefusedError(f'there is no seat "{id[:80]}"', status=404, code="not_found")
        return seat

    async def seat(request: Request) -> JSONResponse:
        key, _, _ = await asked_of(request, "use")
        claimed = own(key, request.path_params["id"])
        if request.method == "DELETE":
            queue.close(claimed.id)
        return JSONResponse(claimed.to_json())

    async def turns(request: Request) -> JSONResponse:
        key, body, _ = await asked_of(request, "use")
        claimed, turn = own(key, request.path_params["id"]), body.get("turn")
        if not isinstance(turn, int) or isinstance(turn, bool):
            raise RefusedError("turn: must be a whole number", param="turn")
        return JSONResponse(queue.request_message(claimed.id, turn, _messages(body.get("messages"))).to_json())

    async def words(request: Request) -> JSONResponse:
        key, _, _ = await asked_of(request, "use")
        claimed = own(key, request.path_params["id"])
        turn = whole_number(request.path_params["turn"], "turn")
        wait = min(_LONGEST_WAIT, parse_seconds(request.query_params.get("wait", "0"), "wait"))
        message = await queue.wait_for_message(claimed.id, turn, wait=wait)
        return JSONResponse({"object": "words", "said": message, "over": claimed.over})

    async def claim(request: Request) -> JSONResponse:
        _, _, by = await asked_of(request)
        claimed = queue.claim_seat(by, request.path_params.get("id"))
        return JSONResponse({"object": "claim", "seat": claimed.to_json() if claimed is not None else None})

    async def release(request: Request) -> JSONResponse:
        _, _, by = await asked_of(request)
        return JSONResponse(queue.release_seat(request.path_params["id"], by).to_json())

    async def say(request: Request) -> JSONResponse:
        _, body, by = await asked_of(request)
        id, content, ended = request.path_params["id"], _text(body, "content"), body.get("ended", False)
        if queue.get_claimed(id, by).kind == "policy":
            return JSONResponse(queue.store_message(id, by, reviews.apply_review(id, by, body), ended=True).to_json())
        if not isinstance(ended, bool):
            raise RefusedError("ended: must be true or false", param="ended")
        if not content.strip() and not ended:
            raise RefusedError("content: must not be empty", param="content")
        return JSONResponse(queue.store_message(id, by, {"role": "user", "content": content}, ended=ended).to_json())

    of = "/v1/people/seats/{id}"
    return [
        Route("/", page),
        Route("/page/{name}", page),
        Route("/v1/episodes/{id}/conversation", conversation_json),
        Route("/v1/episodes/{id}/take-over", take, methods=["POST"]),
        Route("/v1/episodes/{id}/watch", watch, methods=["POST"]),
        Route("/v1/episodes/{id}/rate", rate, methods=["POST"]),
        Route("/v1/people/seats", seats, methods=["GET", "POST"]),
        Route("/v1/people/claim", claim, methods=["POST"]),
        Route(of, seat, methods=["GET", "DELETE"]),
        Route(f"{of}/turns", turns, methods=["POST"]),
        Route(f"{of}/turns/{{turn}}", words),
        Route(f"{of}/claim", claim, methods=["POST"]),
        Route(f"{of}/release", release, methods=["POST"]),
        Route(f"{of}/say", say, methods=["POST"]),
    ]


def _conversation(episode: ServerEpisode, queue: PeopleQueue) -> dict[str, Any]:
    """Convert an episode into JSON for the page: each answer, in order, with the messages since the previous one."""
    numbers = {id(answer): number for number, answer in enumerate(episode.answers)}

    def to_json(answer: RecordedAnswer) -> dict[str, Any]:
        return {
            "answer": numbers[id(answer)],
            "behind": numbers[id(answer.before)] if answer.before is not None else None,
            "heard": [message.to_openai() for message in answer.new_messages],
            "message": public_message(answer.message),
            "thought": as_told(answer.message)[0],
            "by": answer.by,
            "replaced_by": numbers[id(answer.replaced)] if answer.replaced is not None else None,
            "may_take_over": not answer.by
            and answer.replaced is None
            and not answer.num_continued
            and answer.text is None,
        }

    last = episode.answers[-1] if episode.answers else None
    tools = [tool.to_openai() for tool in last.context.tools] if last is not None else []
    messages = [*list_messages_before(last), last.message] if last is not None else []
    return {
        "id": episode.id, "object": "conversation", "closed": episode.closed, "tools": tools,
        "messages": [public_message(message) for message in messages],
        "answers": [to_json(answer) for answer in episode.answers],
        "notes": [dict(note) for note in queue.notes if note["episode"] == episode.record_id],
    }  # fmt: skip


def _answer(body: Mapping[str, Any], episode: ServerEpisode) -> int:
    """Return the index of the answer that a request names, from 0; the last answer by default."""
    number = body.get("answer")
    if number is None:
        number = len(episode.answers) - 1
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(episode.answers):
        range_text = f"the episode has {len(episode.answers)} answers, from 0"
        raise RefusedError(f"answer {str(number)[:20]}: {range_text}", param="answer")
    return number


def _text(body: Mapping[str, Any], name: str, default: str = "") -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise RefusedError(f"{name}: must be a text of up to {_LONGEST} characters", param=name)
    return value


def _number(body: Mapping[str, Any], name: str) -> float | None:
    return None if body.get(name) is None else parse_finite(body[name], name)


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise RefusedError("messages: must be a list", param="messages")
    try:
        return [Message.from_openai(message).to_openai() for message in value]
    except (ValueError, TypeError) as error:
        raise RefusedError(f"messages: {error}", param="messages") from None
