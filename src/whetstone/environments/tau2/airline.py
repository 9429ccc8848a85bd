"""Tools of the agent in the airline domain of tau2-bench, with its names, arguments and effects; own implementation.

Note:
    Some changes have no side effects, as in the original: a canceled reservation returns no seats, and changed flights
    take none, but a booking takes seats. A certificate is gone once it has paid, whatever amount remained.

Source: tau2-bench, arXiv:2506.07982; tau-bench, arXiv:2406.12045.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from whetstone.environments.tau2.database import format_entity
from whetstone.environments.tau2.domain import Desk
from whetstone.errors import ToolError

Cabin = Literal["business", "economy", "basic_economy"]
_NOW = "2024-05-15T15:00:00"
_NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
_NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
_INSURANCE, _BAG = 30, 50
"""Dollars per passenger, and per bag that is not free."""
_AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas",
    "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix",
    "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte",
    "MSP": "Minneapolis", "DTW": "Detroit", "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip


class FlightOnDay(TypedDict):
    """A flight, such as HAT001, and its day, such as 2024-05-01."""

    flight_number: str
    date: str


class Passenger(TypedDict):
    """Who flies; born on a day, such as 1990-04-05."""

    first_name: str
    last_name: str
    dob: str


class Payment(TypedDict):
    """Dollars from one of the user's payment methods."""

    payment_id: str
    amount: int


class AirlineDesk(Desk):
    """Tools of the agent in the airline domain: fourteen tools over a database.

    The database has flights, users and reservations. Each episode changes a separate database.

    Args:
        path: The folder with `db.json`.
    """

    domain = "airline"

    # ------------------------------------------------------------ reading

    def get_reservation_details(self, reservation_id: str) -> str:
        """The details of a reservation.

        Args:
            reservation_id: The reservation, such as 8JX2WO.
        """
        return format_entity(self.store.read_entity("reservations", reservation_id))

    def get_user_details(self, user_id: str) -> str:
        """The details of a user, with the reservations.

        Args:
            user_id: The user, such as sara_doe_496.
        """
        return format_entity(self.store.read_entity("users", user_id))

    def get_flight_status(self, flight_number: str, date: str) -> str:
        """The status of a flight on a day.

        Args:
            flight_number: The flight, such as HAT001.
            date: The day, such as 2024-05-01.
        """
        return str(self._on_day(flight_number, date)["status"])

    def list_all_airports(self) -> str:
        """All airports: their IATA codes and cities."""
        return format_entity([{"iata": code, "city": city} for code, city in _AIRPORTS.items()])

    def search_direct_flight(self, origin: str, destination: str, date: str) -> str:
        """Direct flights between two airports on a day.

        Args:
            origin: The airport, such as JFK.
            destination: The airport, such as LAX.
            date: The day, such as 2024-05-01.
        """
        return format_entity(self._direct(date, origin, destination))

    def search_onestop_flight(self, origin: str, destination: str, date: str) -> str:
        """Pairs of flights between two airports, with one stop.

        Args:
            origin: The airport, such as JFK.
            destination: The airport, such as LAX.
            date: The day of the first, such as 2024-05-01.
        """
        pairs = []
        for first in self._direct(date, origin):
            arrival = first["scheduled_arrival_time_est"]
            day = f"2024-05-{int(date[-2:]) + 1}" if "+1" in arrival else date
            for second in self._direct(day, first["destination"], destination, leaves_after=arrival):
                pairs.append([{**first, "date": date}, {**second, "date": day}])
        return format_entity(pairs)

    # ------------------------------------------------------------ writing

    def book_reservation(
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: Literal["round_trip", "one_way"],
        cabin: Cabin,
        flights: list[FlightOnDay],
        passengers: list[Passenger],
        payment_methods: list[Payment],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: Literal["yes", "no"],
    ) -> str:
        """Book a reservation. What is paid is the sum of fares, insurance and bags to the dollar.

        Args:
            user_id: Who books.
            origin: The airport, such as SFO.
            destination: The airport, such as JFK.
            flight_type: One way, or there and back.
            cabin: The class, the same on all flights.
            flights: Each flight with its day.
            passengers: Who flies.
            payment_methods: What is paid from which of the user's methods.
            total_baggages: Bags checked.
            nonfree_baggages: Bags that are paid for.
            insurance: Whether there is travel insurance.
        """
        user, id = self.store.read_entity("users", user_id), self._new_reservation()
        legs, due = self._new_legs(flights, cabin, len(passengers))
        due += (_INSURANCE * len(passengers) if insurance == "yes" else 0) + _BAG * nonfree_baggages
        for payment in payment_methods:
            method = user["payment_methods"].get(payment["payment_id"])
            if method is None:
                raise ToolError(f"payment method {payment['payment_id']} not found")
            if method["source"] != "credit_card" and method["amount"] < payment["amount"]:
                raise ToolError(f"not enough balance in payment method {payment['payment_id']}")
        paid = sum(payment["amount"] for payment in payment_methods)
        if paid != due:
            raise ToolError(f"payment amount does not add up, total price is {due}, but paid {paid}")
        user = self.store.edit_entity("users", user_id)
        for payment in payment_methods:
            method = user["payment_methods"][payment["payment_id"]]
            if method["source"] == "gift_card":
                method["amount"] -= payment["amount"]
            elif method["source"] == "certificate":
                del user["payment_methods"][payment["payment_id"]]
        for leg in legs:
            day = self.store.edit_entity("flights", leg["flight_number"])["dates"][leg["date"]]
            day["available_seats"][cabin] -= len(passengers)
        reservation = {
            "reservation_id": id, "user_id": user_id, "origin": origin, "destination": destination,
            "flight_type": flight_type, "cabin": cabin, "flights": legs, "passengers": _passenger_rows(passengers),
            "payment_history": [{"payment_id": p["payment_id"], "amount": p["amount"]} for p in payment_methods],
            "created_at": _NOW, "total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages,
            "insurance": insurance,
        }  # fmt: skip
        self.store.add_entity("reservations", id, reservation)
        user["reservations"].append(id)
        return format_entity(reservation)

    def cancel_reservation(self, reservation_id: str) -> str:
        """Cancel a whole reservation; what was paid is refunded.

        Args:
            reservation_id: The reservation, such as ZFA04Y.
        """
        reservation = self.store.edit_entity("reservations", reservation_id)
        history = reservation["payment_history"]
        history += [{"payment_id": paid["payment_id"], "amount": -paid["amount"]} for paid in history]
        reservation["status"] = "cancelled"
        return format_entity(reservation)

    def send_certificate(self, user_id: str, amount: int) -> str:
        """Send a certificate to a user. Be careful!

        Args:
            user_id: The user, such as sara_doe_496.
            amount: Dollars.
        """
        methods = self.store.read_entity("users", user_id)["payment_methods"]
        id = next((id for id in _NEW_CERTIFICATES if id not in methods), None)
        if id is None:
            raise ToolError("too many certificates")
        methods = self.store.edit_entity("users", user_id)["payment_methods"]
        methods[id] = {"source": "certificate", "id": id, "amount": amount}
        return f"Certificate {id} added to user {user_id} with amount {amount}."

    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> str:
        """Change the bags of a reservation; more that are not free are paid for.

        Args:
            reservation_id: The reservation, such as ZFA04Y.
            total_baggages: Bags checked from now on.
            nonfree_baggages: Of them, bags that are paid for.
            payment_id: A payment method of the user's profile.
        """
        before = self.store.read_entity("reservations", reservation_id)["nonfree_baggages"]
        self._pay(reservation_id, payment_id, _BAG * max(0, nonfree_baggages - before))
        reservation = self.store.edit_entity("reservations", reservation_id)
        reservation["total_baggages"], reservation["nonfree_baggages"] = total_baggages, nonfree_baggages
        return format_entity(reservation)

    def update_reservation_flights(
        self, reservation_id: str, cabin: Cabin, flights: list[FlightOnDay], payment_id: str
    ) -> str:
        """Change the flights or the cabin of a reservation; the difference is paid or refunded.

        Args:
            reservation_id: The reservation, such as ZFA04Y.
            cabin: The class.
            flights: All flights of the reservation from now on, those that stay among them.
            payment_id: A payment method of the user's profile.
        """
        reservation = self.store.read_entity("reservations", reservation_id)
        size = len(reservation["passengers"])
        legs: list[dict[str, Any]] = []
        for flight in flights:
            unchanged = [leg for leg in reservation["flights"] if _same_flight(leg, flight)]
            stays = unchanged and cabin == reservation["cabin"]
            legs.append(unchanged[0] if stays else self._new_legs([flight], cabin, size)[0][0])
        due = sum(leg["price"] for leg in legs) - sum(leg["price"] for leg in reservation["flights"])
        self._pay(reservation_id, payment_id, due * size)
        reservation = self.store.edit_entity("reservations", reservation_id)
        reservation["flights"], reservation["cabin"] = legs, cabin
        return format_entity(reservation)

    def update_reservation_passengers(self, reservation_id: str, passengers: list[Passenger]) -> str:
        """Change who flies; as many as before.

        Args:
            reservation_id: The reservation, such as ZFA04Y.
            passengers: All passengers from now on.
        """
        if len(passengers) != len(self.store.read_entity("reservations", reservation_id)["passengers"]):
            raise ToolError("number of passengers does not match")
        reservation = self.store.edit_entity("reservations", reservation_id)
        reservation["passengers"] = _passenger_rows(passengers)
        return format_entity(reservation)

    # ------------------------------------------------------------ helpers

    def _on_day(self, flight_number: str, date: str) -> Mapping[str, Any]:
        """Return a flight on a day.

        Raises:
            ToolError: If the flight or the day does not exist.
        """
        days = self.store.read_entity("flights", flight_number)["dates"]
        if date not in days:
            raise ToolError(f"flight {flight_number} not found on date {date}")
        day: Mapping[str, Any] = days[date]
        return day

    def _direct(
        self, date: str, origin: str, destination: str | None = None, *, leaves_after: str = ""
    ) -> list[dict[str, Any]]:
        """Return the available direct flights between two airports on a day.

        A destination of None means any. `leaves_after` compares times as strings, including `+1`.
        """
        matches = []
        for number in self.store.list_ids("flights"):
            flight = self.store.read_entity("flights", number)
            day = flight["dates"].get(date, {})
            if (
                flight["origin"] == origin
                and destination in (None, flight["destination"])
                and day.get("status") == "available"
                and flight["scheduled_departure_time_est"] >= leaves_after
            ):
                details = {key: value for key, value in flight.items() if key != "dates"}
                matches.append({**details, **day})
        return matches

    def _new_legs(self, flights: Sequence[FlightOnDay], cabin: Cabin, size: int) -> tuple[list[dict[str, Any]], int]:
        """Return flights as entries of a reservation, and their total price in dollars.

        Raises:
            ToolError: If a flight is not available or has too few seats.
        """
        legs = []
        for flight in flights:
            number, date = flight["flight_number"], flight["date"]
            day, known = self._on_day(number, date), self.store.read_entity("flights", number)
            if day["status"] != "available":
                raise ToolError(f"flight {number} not available on date {date}")
            if cabin not in day["prices"]:
                raise ToolError(f"no cabin {cabin} on flight {number}")
            if day["available_seats"][cabin] < size:
                raise ToolError(f"not enough seats on flight {number}")
            between = {"origin": known["origin"], "destination": known["destination"]}
            legs.append({**between, "flight_number": number, "date": date, "price": day["prices"][cabin]})
        return legs, sum(leg["price"] for leg in legs) * size

    def _new_reservation(self) -> str:
        """Return the first unused id of a reservation.

        Raises:
            ToolError: If all ids are used.
        """
        id = next((id for id in _NEW_RESERVATIONS if not self.store.has_entity("reservations", id)), None)
        if id is None:
            raise ToolError("too many reservations")
        return id

    def _pay(self, reservation_id: str, payment_id: str, due: int) -> None:
        """Pay or refund a change, and add it to the payment history of the reservation.

        Args:
            reservation_id: Id of the reservation.
            payment_id: Id of a payment method of the user.
            due: Dollars to pay; negative: dollars to refund.
        """
        user_id = self.store.read_entity("reservations", reservation_id)["user_id"]
        method = self.store.read_entity("users", user_id)["payment_methods"].get(payment_id)
        if method is None:
            raise ToolError("payment method not found")
        if method["source"] == "certificate":
            raise ToolError("certificate cannot be used to update reservation")
        if method["source"] == "gift_card":
            if method["amount"] < due:
                raise ToolError("gift card balance is not enough")
            self.store.edit_entity("users", user_id)["payment_methods"][payment_id]["amount"] -= due
        if due:
            history = self.store.edit_entity("reservations", reservation_id)["payment_history"]
            history.append({"payment_id": payment_id, "amount": due})


def _same_flight(leg: Mapping[str, Any], flight: FlightOnDay) -> bool:
    """Return whether an entry of a reservation is a flight on the same day."""
    return (leg["flight_number"], leg["date"]) == (flight["flight_number"], flight["date"])


def _passenger_rows(passengers: Sequence[Passenger]) -> list[dict[str, str]]:
    """Return passengers as entries of a reservation."""
    return [{"first_name": one["first_name"], "last_name": one["last_name"], "dob": one["dob"]} for one in passengers]
