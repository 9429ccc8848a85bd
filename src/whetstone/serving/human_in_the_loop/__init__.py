"""Human in the loop: people take over answers, rate them, and play the simulated user.

page or any client → routes → interventions, ratings → training agent under test → queue → a person's claim → the
person's message → agent
"""

from typing import TYPE_CHECKING

from whetstone.lazy_imports import export_lazily

if TYPE_CHECKING:
    from whetstone.serving.human_in_the_loop.queue import PeopleQueue as PeopleQueue
    from whetstone.serving.human_in_the_loop.review_routes import people_routes as people_routes

__getattr__, __dir__ = export_lazily(__name__)
