"""Oracles and the stored results of the benchmark that plays environments of OpenEnv and verifiers."""

import base64
import io
import json
from pathlib import Path

import pytest
from PIL import Image

import exchange
from whetstone.chat import Message, assistant

RESULTS = Path(exchange.__file__).parents[1] / "results"
STORED = json.loads((RESULTS / "raw" / "exchange.json").read_text())


def squares(*colors):
    """Return a message with an image of each color."""
    urls = []
    for color in colors:
        written = io.BytesIO()
        Image.new("RGB", (20, 20), color).save(written, format="PNG")
        urls.append(f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}")
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return Message.from_openai({"role": "user", "content": [*parts, {"type": "text", "text": "squares"}]})


def test_page_has_the_stored_results_and_ten_tasksets_of_verifiers_are_played():
    assert (RESULTS / "exchange.md").read_text() == exchange.format_page(STORED)
    loaded = [row for row in STORED["rows"] if row["package"] == "verifiers" and row["loaded"]]
    assert len(loaded) >= 10
    assert all(row["random"] for row in loaded)


def test_oracle_of_squares_names_all_colors_so_far():
    play = exchange.read_squares()
    first, second = squares("red", "blue"), squares("black", "orange")
    assert play([first], [], []).text == "AC"
    assert play([first, assistant("AC"), second], [], []).text == "ACIG"


@pytest.mark.parametrize(
    ("wanted", "output"), [("the sum of the integers 1 to 100", "5050"), ("HELLO reversed", "OLLEH")]
)
def test_oracle_of_code_golf_prints_the_requested_output(wanted, output, capsys):
    answer = exchange.print_expected()([Message.from_openai({"role": "user", "content": f"Print {wanted}."})], [], [])
    exec(answer.text.removeprefix("```python\n").removesuffix("\n```"), {})
    assert capsys.readouterr().out.strip() == output
