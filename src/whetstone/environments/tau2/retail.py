"""Tools of the agent in the retail domain of tau2-bench, with its names, arguments and effects; own implementation.

Note:
    The check compares the whole database at the end. An effect that no tool shows (a refund in a payment history, the
    balance of a gift card to the cent, the order of item ids) decides whether an episode is a success.

Source: tau2-bench, arXiv:2506.07982; tau-bench, arXiv:2406.12045.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from whetstone.environments.tau2.database import format_entity, read_database
from whetstone.environments.tau2.domain import Desk
from whetstone.errors import ToolError


@functools.lru_cache(maxsize=4)
def _indexes(path: str) -> tuple[dict[str, str], dict[tuple[str, str, str], str], dict[str, Any]]:
    """Build the indexes of the shop's database; cached.

    Returns:
        User id by e-mail, user id by (first name, last name, zip code), and product variant by item id.
    """
    database = read_database(path, "retail")
    by_email, by_name, items = {}, {}, {}
    for id, user in database["users"].items():
        by_email[user["email"].lower()] = id
        name = user["name"]
        by_name[name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]] = id
    for product in database["products"].values():
        items.update(product["variants"])
    return by_email, by_name, items


class RetailDesk(Desk):
    """Tools of the agent in the retail domain: sixteen tools over a shop's database.

    Each episode changes a separate database.

    Args:
        path: The folder with `db.json`.
    """

    domain = "retail"

    # ------------------------------------------------------------ reading

    def find_user_id_by_email(self, email: str) -> str:
        """Find a user id by e-mail.

        Args:
            email: The e-mail address.
        """
        return self._require_user(_indexes(self.path)[0].get(email.lower()))

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a user id by name and zip code, where no e-mail is known.

        Args:
            first_name: The first name.
            last_name: The last name.
            zip: The zip code.
        """
        return self._require_user(_indexes(self.path)[1].get((first_name.lower(), last_name.lower(), zip)))

    def get_order_details(self, order_id: str) -> str:
        """The status and details of an order.

        Args:
            order_id: The order, with the # in front, such as #W0000000.
        """
        return format_entity(self.store.read_entity("orders", order_id))

    def get_product_details(self, product_id: str) -> str:
        """The inventory details of a product.

        Args:
            product_id: The product, which is not an item.
        """
        return format_entity(self.store.read_entity("products", product_id))

    def get_item_details(self, item_id: str) -> str:
        """The inventory details of an item.

        Args:
            item_id: The item, which is not a product.
        """
        return format_entity(self._item(item_id))

    def get_user_details(self, user_id: str) -> str:
        """The details of a user, with the orders.

        Args:
            user_id: The user, such as sara_doe_496.
        """
        return format_entity(self.store.read_entity("users", user_id))

    def list_all_product_types(self) -> str:
        """The name and product id of every product type; there are 50."""
        return format_entity(
            dict(sorted((self.store.read_entity("products", id)["name"], id) for id in self.store.list_ids("products")))
        )

    # ------------------------------------------------------------ writing

    def cancel_pending_order(self, order_id: str, reason: str) -> str:
        """Cancel a pending order, for which the user has confirmed the reason. The payment is refunded.

        Args:
            order_id: The order, with the # in front.
            reason: "no longer needed" or "ordered by mistake".
        """
        if self.store.read_entity("orders", order_id)["status"] != "pending":
            raise ToolError("non-pending order cannot be cancelled")
        if reason not in ("no longer needed", "ordered by mistake"):
            raise ToolError("invalid reason")
        order = self.store.edit_entity("orders", order_id)
        refunds = []
        for payment in order["payment_history"]:
            method = payment["payment_method_id"]
            refunds.append({"transaction_type": "refund", "amount": payment["amount"], "payment_method_id": method})
            self._refund_gift_card(order["user_id"], method, payment["amount"])
        order["status"], order["cancel_reason"] = "cancelled", reason
        order["payment_history"].extend(refunds)
        return format_entity(order)

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Exchange items of a delivered order for items of the same product types. Once an order.

        Args:
            order_id: The order, with the # in front.
            item_ids: The items to be exchanged; an item twice where it is there twice.
            new_item_ids: What each is exchanged for, in the same order.
            payment_method_id: Where the difference is paid from or to.
        """
        order = self.store.read_entity("orders", order_id)
        if order["status"] != "delivered":
            raise ToolError("non-delivered order cannot be exchanged")
        difference = round(self._difference(order, item_ids, new_item_ids), 2)
        self._can_pay(order["user_id"], payment_method_id, difference)
        order = self.store.edit_entity("orders", order_id)
        order["status"] = "exchange requested"
        order["exchange_items"], order["exchange_new_items"] = sorted(item_ids), sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_method_id
        order["exchange_price_difference"] = difference
        return format_entity(order)

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change the shipping address of a pending order.

        Args:
            order_id: The order, with the # in front.
            address1: The first line.
            address2: The second line.
            city: The city.
            state: The state, such as CA.
            country: The country, such as USA.
            zip: The zip code.
        """
        if "pending" not in self.store.read_entity("orders", order_id)["status"]:
            raise ToolError("non-pending order cannot be modified")
        order = self.store.edit_entity("orders", order_id)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return format_entity(order)

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> str:
        """Change items of a pending order to items of the same product types. Once an order.

        Args:
            order_id: The order, with the # in front.
            item_ids: The items to be changed; an item twice where it is there twice.
            new_item_ids: What each is changed to, in the same order.
            payment_method_id: Where the difference is paid from or to.
        """
        order = self.store.read_entity("orders", order_id)
        if order["status"] != "pending":
            raise ToolError("non-pending order cannot be modified")
        if any(old == new for old, new in zip(item_ids, new_item_ids, strict=False)):
            raise ToolError("the new item id should be different from the old item id")
        difference = self._difference(order, item_ids, new_item_ids)
        self._can_pay(order["user_id"], payment_method_id, difference)
        order = self.store.edit_entity("orders", order_id)
        kind = "payment" if difference > 0 else "refund"
        paid = {"transaction_type": kind, "amount": abs(difference), "payment_method_id": payment_method_id}
        order["payment_history"].append(paid)
        self._refund_gift_card(order["user_id"], payment_method_id, -difference)
        for old, new in zip(item_ids, new_item_ids, strict=True):
            item = next(item for item in order["items"] if item["item_id"] == old)
            variant = self._item(new)
            item["item_id"], item["price"], item["options"] = new, variant["price"], variant["options"]
        order["status"] = "pending (item modified)"
        return format_entity(order)

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> str:
        """Change the payment method of a pending order.

        Args:
            order_id: The order, with the # in front.
            payment_method_id: Another method than the one it was paid with.
        """
        order = self.store.read_entity("orders", order_id)
        if "pending" not in order["status"]:
            raise ToolError("non-pending order cannot be modified")
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ToolError("there should be exactly one payment for a pending order")
        before, amount = history[0]["payment_method_id"], history[0]["amount"]
        if before == payment_method_id:
            raise ToolError("the new payment method should be different from the current one")
        self._can_pay(order["user_id"], payment_method_id, amount)
        order = self.store.edit_entity("orders", order_id)
        order["payment_history"] += [
            {"transaction_type": "payment", "amount": amount, "payment_method_id": payment_method_id},
            {"transaction_type": "refund", "amount": amount, "payment_method_id": before},
        ]
        self._refund_gift_card(order["user_id"], payment_method_id, -amount)
        self._refund_gift_card(order["user_id"], before, amount)
        return format_entity(order)

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> str:
        """Change the default address of a user.

        Args:
            user_id: The user.
            address1: The first line.
            address2: The second line.
            city: The city.
            state: The state, such as CA.
            country: The country, such as USA.
            zip: The zip code.
        """
        user = self.store.edit_entity("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return format_entity(user)

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> str:
        """Return items of a delivered order.

        Args:
            order_id: The order, with the # in front.
            item_ids: The items; an item twice where it is there twice.
            payment_method_id: Where the refund goes: the original method, or a gift card.
        """
        order = self.store.read_entity("orders", order_id)
        if order["status"] != "delivered":
            raise ToolError("non-delivered order cannot be returned")
        method = self._method(order["user_id"], payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise ToolError("payment method should be the original payment method or a gift card")
        _check_items(order, item_ids)
        order = self.store.edit_entity("orders", order_id)
        order["status"], order["return_items"] = "return requested", sorted(item_ids)
        order["return_payment_method_id"] = payment_method_id
        return format_entity(order)

    # ------------------------------------------------------------ helpers

    def _require_user(self, id: str | None) -> str:
        """Return a user id that was found, and mark the database as read by the agent.

        Raises:
            ToolError: If the id is None.
        """
        if id is None:
            raise ToolError("user not found")
        self.store.looked = True
        return id

    def _item(self, id: str) -> Any:
        """Return the product variant of an item id.

        Raises:
            ToolError: If the item does not exist.
        """
        item = _indexes(self.path)[2].get(id)
        if item is None:
            raise ToolError("item not found")
        return item

    def _method(self, user_id: str, payment_method_id: str) -> Any:
        """Return a payment method of a user.

        Raises:
            ToolError: If the user has no such payment method.
        """
        methods = self.store.read_entity("users", user_id)["payment_methods"]
        if payment_method_id not in methods:
            raise ToolError("payment method not found")
        return methods[payment_method_id]

    def _can_pay(self, user_id: str, payment_method_id: str, amount: float) -> None:
        """Check that a gift card has the balance for an amount.

        Other methods have no limit.

        Raises:
            ToolError: If the balance is too low.
        """
        method = self._method(user_id, payment_method_id)
        if method["source"] == "gift_card" and method["balance"] < amount:
            raise ToolError("insufficient gift card balance to pay for the difference")

    def _refund_gift_card(self, user_id: str, payment_method_id: str, amount: float) -> None:
        """Add an amount to a gift card.

        The database has no balances of other payment methods.
        """
        if self._method(user_id, payment_method_id)["source"] == "gift_card":
            method = self.store.edit_entity("users", user_id)["payment_methods"][payment_method_id]
            method["balance"] = round(method["balance"] + amount, 2)

    def _difference(self, order: Mapping[str, Any], item_ids: Sequence[str], new_item_ids: Sequence[str]) -> float:
        """Return the price of new items minus the price of the old items of an order."""
        _check_items(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise ToolError("the number of items to be exchanged should match")
        difference = 0.0
        for old, new in zip(item_ids, new_item_ids, strict=True):
            item = next(item for item in order["items"] if item["item_id"] == old)
            variants = self.store.read_entity("products", item["product_id"])["variants"]
            if new not in variants or not variants[new]["available"]:
                raise ToolError(f"new item {new} not found or available")
            difference += variants[new]["price"] - item["price"]
        return difference


def _check_items(order: Mapping[str, Any], item_ids: Sequence[str]) -> None:
    """Check that an order contains items, each as often as it is listed.

    Raises:
        ToolError: If it does not.
    """
    available = [item["item_id"] for item in order["items"]]
    for id in item_ids:
        if item_ids.count(id) > available.count(id):
            raise ToolError(f"{id} not found")


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> dict[str, str]:
    """Return an address in the format of the database."""
    return {"address1": address1, "address2": address2, "city": city, "state": state, "country": country, "zip": zip}
