"""Notes, budgets and images: tools with state for one episode."""

import asyncio

import pytest
from PIL import Image as Pictures

from support.tool_episodes import played
from whetstone.chat import Image
from whetstone.environments import ToolEnvironment
from whetstone.errors import InfrastructureError, RecipeError
from whetstone.tools import Budget, ImageTools, Notes, Toolset, calculator
from whetstone.tools.image import as_url, load_image
from whetstone.trajectory import Task


class Basket:
    """Things put together."""

    def __init__(self, *, size: int = 2) -> None:
        self.declared = {"basket": "kept"}
        self.size, self.things = size, []

    def add(self, thing: str) -> list[str]:
        """Put a thing in.

        Args:
            thing: What.
        """
        if len(self.things) == self.size:
            raise ValueError("full")
        self.things.append(thing)
        return self.things

    async def count(self) -> int:
        """How many there are."""
        return len(self.things)

    def _hidden(self) -> None:
        """No tool."""

    def close(self) -> None:
        """Empty it."""
        self.things = []


def texts(*args, **options):
    return [answer.text for answer in played(*args, **options)]


def test_public_methods_of_a_class_are_tools_in_their_order():
    toolset = Toolset([Basket])
    assert [spec.name for spec in toolset.specs] == ["add", "count"]
    assert toolset.specs[0].parameters["properties"]["thing"]["description"] == "What."
    assert texts(toolset, ("add", {"thing": "tea"}), ("count", {})) == ['["tea"]', "1"]
    assert texts(toolset, ("count", {})) == ["0"]  # in the next episode
    assert not toolset.stateless
    assert toolset.declared == {"basket": "kept"}


def test_environments_do_not_share_objects_of_a_class():
    first, second = (ToolEnvironment(tools=[Basket, calculator]) for _ in range(2))
    assert first.toolset.holders[0] is not second.toolset.holders[0]
    assert ToolEnvironment(tools=[calculator]).stateless


def test_failure_to_close_one_closes_the_others():
    closed = []

    class Bad(Basket):
        def close(self):
            raise OSError("stuck")

    class Good(Notes):
        def close(self):
            closed.append(self)

    toolset = Toolset([Good, Bad])
    asyncio.run(toolset.open(Task("t", "?"), seed=0))
    with pytest.raises(OSError, match="stuck"):
        asyncio.run(toolset.close())
    assert len(closed) == 1


def test_notes_are_found_by_words_and_deleted():
    texts_ = texts(
        Toolset([Notes(max_notes=2)]),
        ("write_note", {"text": "Tea is 4 coins."}),
        ("write_note", {"text": "Rice is 7 coins."}),
        ("write_note", {"text": "too many"}),
        ("read_notes", {"words": "coins tea"}),
        ("delete_note", {"number": 1}),
        ("delete_note", {"number": 1}),
        ("read_notes", {}),
        ("read_notes", {"words": "gold"}),
    )
    assert texts_[3] == "1: Tea is 4 coins."
    assert "delete some first" in texts_[2]
    assert "there is no note 1; there are: 2" in texts_[5]
    assert texts_[6:] == ["2: Rice is 7 coins.", "there are no such notes"]


def test_calls_are_charged_until_the_budget_is_spent():
    toolset = Toolset([calculator, Budget(total=2.5, prices={"calculator": 1.0})])
    call = ("calculator", {"expression": "1+1"})
    answers = played(toolset, call, ("budget", {}), call, call, ("calculator", {"expression": 5}), ("budget", {}))
    assert [a.record.outcome for a in answers] == ["ok", "ok", "ok", "budget_exhausted", "invalid_arguments", "ok"]
    assert [a.record.cost for a in answers] == [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert "calculator costs 1, and 0.5 of 2.5 are left" in answers[3].text
    assert [spec.name for spec in toolset.specs] == ["calculator", "budget"]  # calls of a user are not charged
    assert answers[5].text == "0.5 of 2.5 left; prices: calculator 1, others 1"
    with pytest.raises(RecipeError, match="must be 0 or more"):
        Budget(total=1, price=-1)


@pytest.fixture
def picture():
    drawing = Pictures.new("RGB", (40, 20), "white")
    drawing.putpixel((30, 10), (255, 0, 0))
    return Task("t", "?", private={"images": [as_url(drawing)]})


def test_zoom_into_an_image(picture):
    answers = played(
        Toolset([ImageTools]),
        ("measure", {"image": 1}),
        ("measure", {"image": 1, "x1": 30, "y1": 10}),
        ("measure", {"image": 1, "x1": 0, "y1": 0, "x2": 3, "y2": 4}),
        ("crop", {"image": 1, "left": 29, "top": 9, "right": 32, "bottom": 12}),
        ("measure", {"image": 2, "x1": 1, "y1": 1}),
        ("zoom", {"image": 1, "left": 0, "top": 0, "right": 20, "bottom": 20, "factor": 4}),
        ("rotate", {"image": 1, "degrees": 90}),
        ("draw", {"image": 1, "shape": "box", "x1": 2, "y1": 2, "x2": 10, "y2": 10, "colour": "blue"}),
        ("measure", {"image": 5, "x1": 2, "y1": 5}),
        task=picture,
    )
    texts_ = [answer.text for answer in answers]
    assert texts_[:3] == ["40×20 pixels", "#ff0000", "5.0 pixels"]
    assert texts_[3:7] == ["picture 2: 3×3 pixels", "#ff0000", "picture 3: 80×80 pixels", "picture 4: 20×40 pixels"]
    assert texts_[8] == "#0000ff"
    (cropped,) = (part for part in answers[3].content if isinstance(part, Image))
    assert load_image(cropped.url).size == (3, 3)
    assert load_image(cropped.url).getpixel((1, 1)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("crop", {"image": 2, "left": 0, "top": 0, "right": 1, "bottom": 1}, "there is no picture 2; there are 1"),
        ("crop", {"image": 1, "left": 50, "top": 0, "right": 60, "bottom": 1}, "nothing of the picture"),
        ("zoom", {"image": 1, "left": 0, "top": 0, "right": 1, "bottom": 1, "factor": 99}, "from 1 to 16"),
        ("measure", {"image": 1, "x1": 100, "y1": 0}, "outside of 40×20"),
        ("draw", {"image": 1, "shape": "star", "x1": 0, "y1": 0}, "argument shape"),
    ],
)
def test_impossible_image_operation_is_reported(picture, name, arguments, message):
    assert message in texts(Toolset([ImageTools]), (name, arguments), task=picture)[0]


def test_image_that_decompresses_too_far_is_not_decoded():
    huge = Pictures.new("1", (5000, 5000))
    with pytest.raises(InfrastructureError, match=r"5000×5000 pixels exceeds 16000000"):
        played(Toolset([ImageTools]), task=Task("t", "?", private={"images": [as_url(huge)]}))
    with pytest.raises(ValueError, match="base64"):
        load_image("data:image/png;base64,%%%")


@pytest.mark.slow
def test_image_size_is_bounded_despite_repeated_rotation():
    task = Task("t", "?", private={"images": [as_url(Pictures.new("RGB", (3000, 3000)))]})
    turns = [("rotate", {"image": 1 + n, "degrees": 45.0}) for n in range(3)]
    answers = played(Toolset([ImageTools]), *turns, task=task)
    assert "would be 4243×4243 pixels" in answers[0].text
    odd = [("rotate", {"image": 1, "degrees": degrees}) for degrees in (1e308, -1e308, 720.5)]
    assert {a.record.outcome for a in played(Toolset([ImageTools]), *odd, task=task)} <= {"ok", "tool_error"}
    region = {"image": 1, "left": 0, "top": 0, "right": 3000, "bottom": 3000}
    wide = played(Toolset([ImageTools]), ("zoom", {**region, "factor": 1.36}), task=task)  # 4080 per side, 16.6 million
    assert "are possible" in wide[0].text
    many = played(Toolset([ImageTools]), *[("crop", region)] * 16, task=task)
    assert [a.record.outcome for a in many] == ["ok"] * 13 + ["tool_error"] * 3
    assert "all pictures together" in many[-1].text


@pytest.mark.parametrize("name", ["draw", "measure"])
def test_huge_coordinates_are_refused(picture, name):
    arguments = {"image": 1, "x1": 10**400, "y1": 1, "x2": 5, "y2": -(10**30)}
    arguments |= {"shape": "line"} if name == "draw" else {}
    assert "pixels away" in texts(Toolset([ImageTools]), (name, arguments), task=picture)[0]


def test_truncated_image_file_is_refused():
    complete = as_url(Pictures.new("RGB", (300, 300), "red"))
    for damaged in (complete[:80], complete[: len(complete) * 3 // 4 // 4 * 4], "data:image/png;base64,iVBORw0KGgo="):
        with pytest.raises((ValueError, OSError)):
            load_image(damaged)
