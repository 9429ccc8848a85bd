"""The airline domain: exact fares, refusals, and the published tasks."""

import asyncio
import json

import pytest

from support.environments import AIRLINE, environment_of, needs_airline, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.tau2 import AirlineDesk, parse_task
from whetstone.errors import ToolError
from whetstone.evaluation.environment_checks import play_with_policy
from whetstone.rewards import tau2

pytestmark = needs_airline
PATH = str(AIRLINE)
FLIGHT = {"flight_number": "HAT001", "date": "2024-05-16"}
MIA = {"first_name": "Mia", "last_name": "Li", "dob": "1990-04-05"}


def desk():
    return AirlineDesk(path=PATH)


def booked(shop, *, paid, insurance="no", bags=0, flights=(FLIGHT,), passengers=(MIA,)):
    return shop.book_reservation(
        "mia_li_3668", "PHL", "LGA", "one_way", "economy", list(flights), list(passengers), paid, bags, bags, insurance
    )


def from_card(amount):
    return [{"payment_id": "credit_card_4421486", "amount": amount}]


def test_booking_costs_fare_insurance_and_bags_and_takes_a_seat():
    shop = desk()
    day = shop.store.read_entity("flights", "HAT001")["dates"]["2024-05-16"]
    fare, seats = day["prices"]["economy"], day["available_seats"]["economy"]
    booked(shop, paid=from_card(fare + 30 + 50), insurance="yes", bags=1)
    reservation = shop.store.read_entity("reservations", "HATHAT")
    assert (reservation["flights"][0]["price"], reservation["created_at"]) == (fare, "2024-05-15T15:00:00")
    assert shop.store.read_entity("flights", "HAT001")["dates"]["2024-05-16"]["available_seats"]["economy"] == seats - 1
    assert shop.store.read_entity("users", "mia_li_3668")["reservations"][-1] == "HATHAT"
    assert desk().store.read_entity("flights", "HAT001")["dates"]["2024-05-16"]["available_seats"]["economy"] == seats


def test_certificate_is_removed_after_payment():
    shop = desk()
    fare = shop.store.read_entity("flights", "HAT001")["dates"]["2024-05-16"]["prices"]["economy"]
    booked(shop, paid=[{"payment_id": "certificate_7504069", "amount": 100}, *from_card(fare - 100)])
    assert "certificate_7504069" not in shop.store.read_entity("users", "mia_li_3668")["payment_methods"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda d: booked(d, paid=from_card(1)), "does not add up"),
        (lambda d: booked(d, paid=[{"payment_id": "gift_1", "amount": 1}]), "gift_1 not found"),
        (lambda d: booked(d, paid=[], flights=[{**FLIGHT, "date": "2024-05-01"}]), "not available on date"),
        (lambda d: booked(d, paid=[], passengers=[MIA] * 40), "not enough seats"),
        (lambda d: d.cancel_reservation("NONE00"), "reservation not found"),
        (lambda d: d.update_reservation_baggages("4WQ150", 5, 1, "certificate_1"), "payment method not found"),
        (lambda d: d.update_reservation_passengers("4WQ150", [MIA]), "number of passengers"),
        (lambda d: d.get_flight_status("HAT001", "2023-01-01"), "not found on date"),
    ],
)
def test_forbidden_actions_are_refused_and_change_nothing(act, message):
    shop = desk()
    with pytest.raises(ToolError, match=message):
        act(shop)
    assert shop.store.find_differences() == {}


def test_canceled_reservation_is_refunded_without_releasing_the_seat():
    shop = desk()
    shop.cancel_reservation("4WQ150")
    amounts = [paid["amount"] for paid in shop.store.read_entity("reservations", "4WQ150")["payment_history"]]
    assert sum(amounts) == 0
    assert list(shop.store.find_differences()) == ["reservations/4WQ150"]


def test_unchanged_flights_keep_their_price_and_a_new_cabin_has_the_current_price():
    shop = desk()
    before = shop.store.read_entity("reservations", "4WQ150")
    same = [{"flight_number": leg["flight_number"], "date": leg["date"]} for leg in before["flights"]]
    shop.update_reservation_flights("4WQ150", "business", same, "gift_card_3576581")
    assert shop.store.find_differences() == {}
    shop.update_reservation_flights("4WQ150", "economy", same, "gift_card_3576581")
    after = shop.store.read_entity("reservations", "4WQ150")
    due = 3 * sum(new["price"] - old["price"] for new, old in zip(after["flights"], before["flights"], strict=True))
    assert after["payment_history"][-1] == {"payment_id": "gift_card_3576581", "amount": due}


def test_second_flight_departs_on_the_arrival_date_of_the_first():
    connections = json.loads(desk().search_onestop_flight("JFK", "SEA", "2024-05-20"))
    for first, second in connections:
        assert (first["origin"], second["origin"], second["destination"]) == ("JFK", first["destination"], "SEA")
        assert second["date"] == ("2024-05-21" if "+1" in first["scheduled_arrival_time_est"] else "2024-05-20")
    assert connections


@pytest.mark.slow
def test_expert_solves_every_solvable_task():
    source = source_of("airline", path=PATH)
    tasks = [*map(source.task, range(source.training_tasks)), *source.held_out(100)]
    helped = 0
    for task in tasks:
        steps = iter(
            assistant(s[1]) if s[0] == "say" else assistant("", ToolCall(s[1], json.dumps(s[2])))
            for s in task.private["script"]
        )
        make = lambda: environment_of("airline", path=PATH)  # noqa: E731
        one = asyncio.run(
            play_with_policy(make, task, lambda *_, steps=steps: next(steps), seed=0, max_turns=40)
        ).trajectory
        helped += asyncio.run(tau2(one, task)).success
        assert asyncio.run(tau2(one, task, as_published=True)).success
    nothing_to_do = sum(not task.private["actions"] and not task.private["to_say"] for task in tasks)
    assert helped == len(tasks) - nothing_to_do


def test_published_tasks_are_scored_by_the_published_rules():
    row = next(r for r in json.loads((AIRLINE / "tasks.json").read_text()) if not r["evaluation_criteria"]["actions"])
    task = parse_task(row, "airline")
    make = lambda: environment_of("airline", path=PATH)  # noqa: E731
    bye = assistant("No. Is there anything else I can help with?")
    one = asyncio.run(play_with_policy(make, task, lambda *_: bye, seed=0, max_turns=1)).trajectory
    assert asyncio.run(tau2(one, task)).success is False
    assert asyncio.run(tau2(one, task, as_published=True)).success is True
