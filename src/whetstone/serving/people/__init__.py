"""How do people take part? They take over answers, rate them, and sit where a simulated user would.

page or any client → routes → interventions, ratings → what is learned
agent under test → queue → a person's claim → his words → agent
"""

from typing import TYPE_CHECKING

from whetstone.window import window

if TYPE_CHECKING:
    from whetstone.serving.people.queue import PeopleQueue
    from whetstone.serving.people.routes import people_routes

__getattr__, __dir__ = window(__name__)

__all__ = ["PeopleQueue", "people_routes"]
