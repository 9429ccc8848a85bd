"""A folder is split into passages and indexed; searches read the index on disk."""

import asyncio
import json
import pydoc_data.topics
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tool_episodes import played
from whetstone.chat import ToolCall
from whetstone.errors import InfrastructureError, RecipeError, TaskError
from whetstone.policies import build_tiny
from whetstone.tools import HttpSearch, Search, Toolset
from whetstone.tools.corpus import split_paragraphs
from whetstone.tools.corpus_index import build_index
from whetstone.tools.embedding import Encoder


def letters(texts):
    """Return vectors of letter counts."""
    counted = [[text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]
    return np.asarray(counted, dtype=np.float32) + 1e-3


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "tea.md").write_text("# Tea\n\nGreen tea is steamed.\n\nBlack tea is oxidised.\n")
    (folder / "rice.html").write_text(
        "<html><head><title>Rice</title><style>b{}</style></head><body><p>Basmati &amp; jasmine smell.</p>"
        "<script>steal()</script><p>Risotto needs arborio.</p></body></html>"
    )
    (folder / "more.jsonl").write_text('{"id": "d7", "title": "Salt", "text": "Sea salt dries in the sun."}\n')
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


def called(search, *calls):
    toolset = Toolset([search])
    return [asyncio.run(toolset.call(ToolCall(name, json.dumps(arguments)))).text for name, arguments in calls]


def test_words_find_passages_and_open_shows_the_page(corpus, tmp_path):
    search = Search(corpus=str(corpus), words=4, index=str(tmp_path / "indexes"))
    first, second, opened, missing, nothing = called(
        search,
        ("search", {"query": "oxidised black"}),
        ("search", {"query": "sun-dried SALT?"}),
        ("open", {"id": "tea.md#1"}),
        ("open", {"id": "tea.md#9"}),
        ("search", {"query": "?!"}),
    )
    assert first.startswith("[tea.md#2] tea.md\nBlack tea is oxidised.")
    assert second.startswith("[d7#0] Salt\nSea salt")
    assert opened == "tea.md\n\n# Tea\n\nGreen tea is steamed.\n\nBlack tea is oxidised."
    assert "there is no passage" in missing
    assert nothing == "nothing found"


def test_pages_are_read_without_markup(corpus, tmp_path):
    search = Search(corpus=str(corpus), index=str(tmp_path / "indexes"))
    (result,) = called(search, ("search", {"query": "arborio"}))
    assert result == "[rice.html#0] Rice\nBasmati & jasmine smell. Risotto needs arborio."
    assert called(search, ("search", {"query": "steal"})) == ["nothing found"]


@pytest.mark.parametrize("query", ['title:"', "a AND (", "+++", "id:*", "\\", "^2", "x" * 5000, "NOT", "[a TO b]"])
def test_query_has_no_syntax(corpus, tmp_path, query):
    search = Search(corpus=str(corpus), index=str(tmp_path / "indexes"))
    toolset = Toolset([search])
    answer = asyncio.run(toolset.call(ToolCall("search", json.dumps({"query": query}))))
    assert answer.record.outcome == "ok", answer


def test_index_is_built_once_and_rebuilt_if_the_corpus_changes(corpus, tmp_path):
    folder = tmp_path / "indexes"

    def index():
        return build_index(corpus, words=50, embedding=None, name="", folder=folder)

    first = index()
    assert index() is first
    assert len(list(folder.iterdir())) == 1
    (corpus / "new.txt").write_text("Pepper is a berry.")
    second = index()
    assert len(second) == len(first) + 1
    assert second.by_words("pepper", 1)[0].passage.id == "new.txt#0"


def test_vectors_find_synonyms_and_ranks_combine_both(corpus, tmp_path):
    options = {"corpus": str(corpus), "words": 4, "index": str(tmp_path / "i"), "embedding": f"{__name__}:letters"}
    by_vectors = Search(mode="vectors", **options)
    assert called(by_vectors, ("search", {"query": "oxidised tea is black", "count": 1}))[0].startswith("[tea.md#2]")
    assert called(by_vectors, ("search", {"query": "blackteaisoxidised", "count": 1}))[0].startswith("[tea.md#2]")
    hits = Search(**options).index.by_both("black tea is oxidised", 3)
    assert hits[0].passage.id == "tea.md#2"
    # first in both lists: 1/61 + 1/61
    assert hits[0].score == pytest.approx(2 / 61)
    with pytest.raises(RecipeError, match="requires an `embedding`"):
        Search(corpus=str(corpus), mode="both")


@given(st.lists(st.text("ab ", min_size=0, max_size=30), max_size=8), st.integers(1, 6))
def test_passages_keep_every_word_in_order_and_their_length(paragraphs, words):
    text = "\n\n".join(paragraphs)
    cut = list(split_paragraphs(text, words))
    assert " ".join(cut).split() == text.split()
    assert all(1 <= len(piece.split()) <= words for piece in cut)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("a.png", "x", "no file with a suffix of"), ("a.jsonl", '{"id": 1}', "a.jsonl:1: a document requires"),
     ("b.jsonl", "[1]", "not a JSON object")],
)  # fmt: skip
def test_unreadable_corpus_is_reported(tmp_path, name, content, message):
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / name).write_text(content)
    with pytest.raises(TaskError, match=message):
        Search(corpus=str(folder), index=str(tmp_path / "i"))
    assert not list((tmp_path / "i").glob("*")) if (tmp_path / "i").exists() else True
    with pytest.raises(TaskError, match="no such folder"):
        Search(corpus=str(tmp_path / "nowhere"))


def test_documentation_of_python_is_a_corpus(tmp_path):
    folder = tmp_path / "python"
    folder.mkdir()
    for topic, text in pydoc_data.topics.topics.items():
        (folder / f"{topic}.rst").write_text(text)
    search = Search(corpus=str(folder), index=str(tmp_path / "i"))
    for query, topic in (
        ("try except finally clause", "try.rst"),
        ("format specification mini-language alignment", "formatstrings.rst"),
        ("lambda anonymous functions", "lambda.rst"),
        ("yield expression generator", "yield.rst"),
    ):
        assert f"[{topic}" in called(search, ("search", {"query": query, "count": 5}))[0], query


class Server(BaseHTTPRequestHandler):
    answer: object = None

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(self.answer(request)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: {"results": [{"title": "T", "text": request["query"]}]},
        lambda request: {"result": [[{"document": {"title": "T", "contents": request["query"]}}]]},
    ],
)
def test_search_server_is_called_and_an_unreachable_one_is_no_observation(answer):
    server = HTTPServer(("127.0.0.1", 0), type("Its", (Server,), {"answer": staticmethod(answer)}))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    search = HttpSearch(url=f"http://127.0.0.1:{server.server_port}/")
    assert called(search, ("search", {"query": "tea"})) == ["T\ntea"]
    server.shutdown()
    server.server_close()
    with pytest.raises(InfrastructureError, match="search server"):
        played(Toolset([search]), ("search", {"query": "tea"}))


def test_search_server_that_fails_on_one_query_is_not_unreachable():
    def answer(request):
        return {"results": []} if request["query"] == "word" else 1 / 0

    server = HTTPServer(("127.0.0.1", 0), type("Its", (Server,), {"answer": staticmethod(answer)}))
    server.handle_error = lambda *_: None
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    search = HttpSearch(url=f"http://127.0.0.1:{server.server_port}/")
    (choked,) = played(Toolset([search]), ("search", {"query": "tea"}))
    assert (choked.record.outcome, choked.failure) == ("tool_error", None)
    server.shutdown()
    server.server_close()


def test_local_encoder_returns_unit_vectors(tmp_path):
    policy = build_tiny(["green tea", "black tea", "salt"], hidden=16, heads=2, layers=1)
    policy.model.save_pretrained(tmp_path / "encoder")
    policy.tokenizer.save_pretrained(tmp_path / "encoder")
    vectors = Encoder(str(tmp_path / "encoder"))(["green tea", "salt"] * 20 + ["green tea and more of it"])
    assert vectors.shape == (41, 16)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(41), abs=1e-5)
    # other texts of the batch and padding change nothing
    assert vectors[0] == pytest.approx(vectors[38], abs=1e-5)
    assert vectors[1] != pytest.approx(vectors[0], abs=1e-3)


def test_folder_with_an_encoder_searches_by_vectors(corpus, tmp_path):
    policy = build_tiny(["green tea", "black tea", "salt"], hidden=16, heads=2, layers=1)
    policy.model.save_pretrained(tmp_path / "encoder")
    policy.tokenizer.save_pretrained(tmp_path / "encoder")
    options = {"corpus": str(corpus), "index": str(tmp_path / "i"), "embedding": str(tmp_path / "encoder"), "words": 4}
    (result,) = called(
        Search(mode="vectors", **options), ("search", {"query": "tea.md\nBlack tea is oxidised.", "count": 1})
    )
    assert result.startswith("[tea.md#2]")
