"""What may people ask for? To take over and rate answers, to sit in a user's seat, and the page to do it on.

    GET    /                                      the page, and its style and script under /page/
    GET    /v1/episodes/{id}/conversation         what was said in an episode, both answers where one was taken over
    POST   /v1/episodes/{id}/take-over            {"message": {"content": …, "tool_calls": […]}, "answer": 0, "by": …}
    POST   /v1/episodes/{id}/watch                {"by": …, "seconds": 60}: answers that are not taken over were let
                                                  stand; with seconds, each waits so long before it goes out
    POST   /v1/episodes/{id}/rate                 {"answer": 0, "rating": 1, "note": …, "by": …}
    POST   /v1/people/seats                       {"about": …, "seconds": 600}: a seat for whoever tests an agent
    POST   /v1/people/seats/{id}/turns            {"turn": 0, "messages": […]}: its words are waited for
    GET    /v1/people/seats/{id}/turns/{turn}     the words, ?wait=20 seconds for them
    DELETE /v1/people/seats/{id}
    GET    /v1/people/seats                       all that wait or are under way
    POST   /v1/people/claim                       {"by": …}: one that waits · /v1/people/seats/{id}/claim: that one
    POST   /v1/people/seats/{id}/release · /say   {"by": …, "content": …, "ended": false}; of an answer that is held
                                                  {"accept": true} or {"message": …}

Keys need the role `reward` to speak, to rate and to take over; a seat is made by any, and asked by its own.

Easy to get wrong: a person's name is that of his key. Only where there are no keys may he say it himself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from whetstone.chat import Message
from whetstone.chat.api.asked import RefusedError
from whetstone.chat.api.asked import told as as_told
from whetstone.chat.api.fields import finite, seconds_of, whole_number
from whetstone.errors import RecipeError
from whetstone.extras import install_command
from whetstone.serving.access import Key
from whetstone.serving.app import Server
from whetstone.serving.episodes import checked_name
from whetstone.serving.interventions import message_from, take_over
from whetstone.serving.people.holding import Holding, shown_to_people
from whetstone.serving.people.queue import PeopleQueue, Seat
from whetstone.serving.recording import Episode, Said, conversation

PAGE = {"people.html": "text/html", "people.css": "text/css", "people.js": "text/javascript"}
SAFE = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Headers of the page: what models and people write is shown, never run."""
_LONGEST_WAIT = 30.0
_LONGEST = 100_000
"""Characters of what a person writes at once."""
_MOST_BYTES = 1 << 20
"""Maximum size of a request."""


def people_routes(server: Server, queue: PeopleQueue) -> Sequence[Any]:
    """The routes, for `application`.

    Raises:
        RecipeError: Starlette is not installed.
    """
    try:
        from starlette.requests import Request
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise RecipeError(f"serving needs starlette and uvicorn: {install_command('serve')}") from None

    holding = Holding(server, queue)
    server.hold = holding.held

    async def asked_of(request: Request, role: str = "reward") -> tuple[Key, Mapping[str, Any], str]:
        """(whose request it is, what it holds, who the person is)"""
        key = server.key_of(request)
        if not key.may(role):
            raise RefusedError(f"this key may not do that; it takes the role {role}", status=403, code="forbidden")
        body = await server.body_of(request, key, most=_MOST_BYTES) if request.method == "POST" else {}
        return key, body, key.name or _text(body, "by", "somebody")[:80] or "somebody"

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "people.html")
        if name not in PAGE:
            raise RefusedError(f"there is no /page/{name[:80]}", status=404)
        content = (resources.files("whetstone.serving.people") / "page" / name).read_text("utf-8")
        return Response(content, headers={**SAFE, "content-type": f"{PAGE[name]}; charset=utf-8"})

    async def said(request: Request) -> JSONResponse:
        episode = server.episodes.get(server.key_of(request), request.path_params["id"])
        return JSONResponse(_conversation(episode, queue))

    async def take(request: Request) -> JSONResponse:
        key, body, by = await asked_of(request)
        episode = server.episodes.get(key, request.path_params["id"])
        number = _answer(body, episode)
        said = body.get("message")
        if not isinstance(said, Mapping):
            raise RefusedError("message: an object with content or tool_calls is asked for", param="message")
        speaker = server.speaker
        room = speaker.context_length
        person = take_over(episode, number, message_from(said), chat=speaker.chat, room=room, by=by)
        server.episodes.taken_over(episode, number)
        answer = next(place for place, each in enumerate(episode.said) if each is person)
        return JSONResponse({"object": "intervention", "answer": answer, "message": person.message.to_openai()})

    async def watch(request: Request) -> JSONResponse:
        key, body, by = await asked_of(request)
        seconds = _number(body, "seconds") or 0.0
        if not 0 <= seconds <= 3600:
            raise RefusedError("seconds: an answer waits for an hour at most; 0: not at all", param="seconds")
        episode = server.episodes.named(key, checked_name("id", request.path_params["id"], of_episode=True))
        episode.watched, episode.hold_seconds = by, seconds
        return JSONResponse({"object": "watch", "episode": episode.id, "by": by, "seconds": seconds})

    async def rate(request: Request) -> JSONResponse:
        key, body, by = await asked_of(request)
        episode = server.episodes.get(key, request.path_params["id"])
        number, note, rating = _answer(body, episode), _text(body, "note"), _number(body, "rating")
        if rating is None and not note:
            raise RefusedError("rating: a number, or a note, is asked for", param="rating")
        queue.refuse_bytes(key.name, note)  # before anything is stored
        if rating is not None:
            server.episodes.rated(episode, number, rating, note, by)
        queue.note(note, episode=episode.record_id, answer=number, by=by, rating=rating, owner=key.name)
        return JSONResponse({"object": "rating", "episode": episode.id, "answer": number, "rating": rating})

    async def seats(request: Request) -> JSONResponse:
        if request.method == "GET":
            await asked_of(request)
            return JSONResponse({"object": "list", "data": [seat.told() for seat in queue.open_seats()]})
        key, body, _ = await asked_of(request, "use")
        seconds = _number(body, "seconds")
        if seconds is not None and not 0 < seconds <= 86_400:
            raise RefusedError("seconds: above 0, and a day at most", param="seconds")
        seat = queue.open(about=_text(body, "about"), seconds=seconds or 600.0, owner=key.name)
        return JSONResponse(seat.told())

    def own(key: Key, id: str) -> Seat:
        seat = queue.get(id)
        if seat.owner != key.name and not key.may("admin"):
            raise RefusedError(f'there is no seat "{id[:80]}"', status=404, code="not_found")
        return seat

    async def seat(request: Request) -> JSONResponse:
        key, _, _ = await asked_of(request, "use")
        found = own(key, request.path_params["id"])
        if request.method == "DELETE":
            queue.close(found.id)
        return JSONResponse(found.told())

    async def turns(request: Request) -> JSONResponse:
        key, body, _ = await asked_of(request, "use")
        found, turn = own(key, request.path_params["id"]), body.get("turn")
        if not isinstance(turn, int) or isinstance(turn, bool):
            raise RefusedError("turn: a number is asked for", param="turn")
        return JSONResponse(queue.ask(found.id, turn, _messages(body.get("messages"))).told())

    async def words(request: Request) -> JSONResponse:
        key, _, _ = await asked_of(request, "use")
        found = own(key, request.path_params["id"])
        turn = whole_number(request.path_params["turn"], "turn")
        wait = min(_LONGEST_WAIT, seconds_of(request.query_params.get("wait", "0"), "wait"))
        said = await queue.words(found.id, turn, wait=wait)
        return JSONResponse({"object": "words", "said": said, "over": found.over})

    async def claim(request: Request) -> JSONResponse:
        _, _, by = await asked_of(request)
        found = queue.claim(by, request.path_params.get("id"))
        return JSONResponse({"object": "claim", "seat": found.told() if found is not None else None})

    async def release(request: Request) -> JSONResponse:
        _, _, by = await asked_of(request)
        return JSONResponse(queue.release(request.path_params["id"], by).told())

    async def say(request: Request) -> JSONResponse:
        _, body, by = await asked_of(request)
        id, content, ended = request.path_params["id"], _text(body, "content"), body.get("ended", False)
        if queue.held(id, by).kind == "policy":
            return JSONResponse(queue.say(id, by, holding.decide(id, by, body), ended=True).told())
        if not isinstance(ended, bool):
            raise RefusedError("ended: true or false", param="ended")
        if not content.strip() and not ended:
            raise RefusedError("content: has no words", param="content")
        return JSONResponse(queue.say(id, by, {"role": "user", "content": content}, ended=ended).told())

    of = "/v1/people/seats/{id}"
    return [
        Route("/", page),
        Route("/page/{name}", page),
        Route("/v1/episodes/{id}/conversation", said),
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


def _conversation(episode: Episode, queue: PeopleQueue) -> dict[str, Any]:
    """An episode as people look at it: every answer with what stands before it since the last, in order."""
    numbers = {id(said): number for number, said in enumerate(episode.said)}

    def told(said: Said) -> dict[str, Any]:
        return {
            "answer": numbers[id(said)],
            "behind": numbers[id(said.before)] if said.before is not None else None,
            "heard": [message.to_openai() for message in said.heard],
            "message": shown_to_people(said.message),
            "thought": as_told(said.message)[0],
            "by": said.by,
            "replaced_by": numbers[id(said.replaced)] if said.replaced is not None else None,
            "may_take_over": not said.by and said.replaced is None and not said.followed and said.text is None,
        }

    last = episode.said[-1] if episode.said else None
    tools = [tool.to_openai() for tool in last.context.tools] if last is not None else []
    whole = [*conversation(last), last.message] if last is not None else []
    return {
        "id": episode.id, "object": "conversation", "closed": episode.closed, "tools": tools,
        "messages": [shown_to_people(message) for message in whole], "answers": [told(said) for said in episode.said],
        "notes": [dict(note) for note in queue.notes if note["episode"] == episode.record_id],
    }  # fmt: skip


def _answer(body: Mapping[str, Any], episode: Episode) -> int:
    """Which answer is meant; the last unless it is said."""
    number = body.get("answer")
    if number is None:
        number = len(episode.said) - 1
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(episode.said):
        there = f"the episode has {len(episode.said)} answers, from 0"
        raise RefusedError(f"answer {str(number)[:20]}: {there}", param="answer")
    return number


def _text(body: Mapping[str, Any], name: str, default: str = "") -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise RefusedError(f"{name}: a text of up to {_LONGEST} characters is asked for", param=name)
    return value


def _number(body: Mapping[str, Any], name: str) -> float | None:
    return None if body.get(name) is None else finite(body[name], name)


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise RefusedError("messages: a list is asked for", param="messages")
    try:
        return [Message.from_openai(message).to_openai() for message in given]
    except (ValueError, TypeError) as error:
        raise RefusedError(f"messages: {error}", param="messages") from None
