"""The airline domain: fares to the dollar, refusals, and the published tasks."""

import asyncio
import json

import pytest

from tests_worlds import AIRLINE, environment_of, needs_airline, source_of
from whetstone.chat import ToolCall, assistant
from whetstone.environments.tau2 import AirlineDesk, task_of
from whetstone.errors import ToolError
from whetstone.evaluation.contract import play
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


def test_a_booking_costs_fare_insurance_and_bags_and_takes_a_seat():
    shop = desk()
    day = shop.store.look("flights", "HAT001")["dates"]["2024-05-16"]
    fare, seats = day["prices"]["economy"], day["available_seats"]["economy"]
    booked(shop, paid=from_card(fare + 30 + 50), insurance="yes", bags=1)
    made = shop.store.look("reservations", "HATHAT")
    assert (made["flights"][0]["price"], made["created_at"]) == (fare, "2024-05-15T15:00:00")
    assert shop.store.look("flights", "HAT001")["dates"]["2024-05-16"]["available_seats"]["economy"] == seats - 1
    assert shop.store.look("users", "mia_li_3668")["reservations"][-1] == "HATHAT"
    assert desk().store.look("flights", "HAT001")["dates"]["2024-05-16"]["available_seats"]["economy"] == seats


def test_a_certificate_is_gone_once_it_has_paid():
    shop = desk()
    fare = shop.store.look("flights", "HAT001")["dates"]["2024-05-16"]["prices"]["economy"]
    booked(shop, paid=[{"payment_id": "certificate_7504069", "amount": 100}, *from_card(fare - 100)])
    assert "certificate_7504069" not in shop.store.look("users", "mia_li_3668")["payment_methods"]


@pytest.mark.parametrize(
    ("act", "said"),
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
def test_what_the_rules_forbid_is_refused_and_changes_nothing(act, said):
    shop = desk()
    with pytest.raises(ToolError, match=said):
        act(shop)
    assert shop.store.differences() == {}


def test_a_cancelled_reservation_is_paid_back_and_gives_no_seat_back():
    shop = desk()
    shop.cancel_reservation("4WQ150")
    amounts = [paid["amount"] for paid in shop.store.look("reservations", "4WQ150")["payment_history"]]
    assert sum(amounts) == 0
    assert list(shop.store.differences()) == ["reservations/4WQ150"]


def test_a_flight_that_stays_keeps_its_price_and_another_cabin_has_todays():
    shop = desk()
    before = shop.store.look("reservations", "4WQ150")
    same = [{"flight_number": leg["flight_number"], "date": leg["date"]} for leg in before["flights"]]
    shop.update_reservation_flights("4WQ150", "business", same, "gift_card_3576581")
    assert shop.store.differences() == {}
    shop.update_reservation_flights("4WQ150", "economy", same, "gift_card_3576581")
    after = shop.store.look("reservations", "4WQ150")
    due = 3 * sum(new["price"] - old["price"] for new, old in zip(after["flights"], before["flights"], strict=True))
    assert after["payment_history"][-1] == {"payment_id": "gift_card_3576581", "amount": due}


def test_two_flights_with_one_stop_meet_on_the_day_the_first_lands():
    found = json.loads(desk().search_onestop_flight("JFK", "SEA", "2024-05-20"))
    for first, second in found:
        assert (first["origin"], second["origin"], second["destination"]) == ("JFK", first["destination"], "SEA")
        assert second["date"] == ("2024-05-21" if "+1" in first["scheduled_arrival_time_est"] else "2024-05-20")
    assert found


@pytest.mark.slow
def test_the_expert_helps_everyone_who_can_be():
    source = source_of("airline", path=PATH)
    tasks = [*map(source.task, range(source.training_tasks)), *source.held_out(100)]
    helped = 0
    for task in tasks:
        steps = iter(
            assistant(s[1]) if s[0] == "say" else assistant("", ToolCall(s[1], json.dumps(s[2])))
            for s in task.private["script"]
        )
        make = lambda: environment_of("airline", path=PATH)  # noqa: E731
        one = asyncio.run(play(make, task, lambda *_, steps=steps: next(steps), seed=0, max_turns=40)).trajectory
        helped += asyncio.run(tau2(one, task)).success
        assert asyncio.run(tau2(one, task, as_published=True)).success
    nothing_to_do = sum(not task.private["actions"] and not task.private["to_say"] for task in tasks)
    assert helped == len(tasks) - nothing_to_do


def test_what_is_published_is_counted_as_it_was_published():
    row = next(r for r in json.loads((AIRLINE / "tasks.json").read_text()) if not r["evaluation_criteria"]["actions"])
    task = task_of(row, "airline")
    make = lambda: environment_of("airline", path=PATH)  # noqa: E731
    bye = assistant("No. Is there anything else I can help with?")
    one = asyncio.run(play(make, task, lambda *_: bye, seed=0, max_turns=1)).trajectory
    assert asyncio.run(tau2(one, task)).success is False
    assert asyncio.run(tau2(one, task, as_published=True)).success is True
