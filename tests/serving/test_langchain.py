"""LangChain over the server: structured output by a required call or by a schema, whatever the model samples."""

import asyncio
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from support.constrained_decoding import engine_for, made_with
from support.served_policy import Served, at_a_socket

pytestmark = pytest.mark.slow
COMMAND = "pip install langchain-openai langchain-anthropic"


class Room(BaseModel):
    """A room to book."""

    floor: int = Field(ge=0, le=40)
    kind: Literal["single", "double"]
    wishes: list[Literal["bath", "view"]] = Field(max_length=3)


def openai_model(port):
    package = pytest.importorskip("langchain_openai", reason=f"langchain-openai is not installed: {COMMAND}")
    url = f"http://127.0.0.1:{port}/v1"
    return package.ChatOpenAI(model="tiny", base_url=url, api_key="none", max_retries=0)


def responses_model(port):
    package = pytest.importorskip("langchain_openai", reason=f"langchain-openai is not installed: {COMMAND}")
    url = f"http://127.0.0.1:{port}/v1"
    return package.ChatOpenAI(model="tiny", base_url=url, api_key="none", max_retries=0, use_responses_api=True)


def anthropic_model(port):
    package = pytest.importorskip("langchain_anthropic", reason=f"langchain-anthropic is not installed: {COMMAND}")
    url = f"http://127.0.0.1:{port}"
    return package.ChatAnthropic(model="tiny", base_url=url, api_key="none", max_retries=0, max_tokens=400)


@pytest.mark.parametrize("format", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (openai_model, {"method": "function_calling"}),
        (openai_model, {"method": "json_schema"}),
        (responses_model, {"method": "function_calling"}),
        (anthropic_model, {}),
    ],
)
def test_structured_output_is_an_object_of_the_model(make, options, format):
    assembly = made_with(format)

    async def run():
        served = Served(assembly, engine=engine_for(assembly.chat))
        async with at_a_socket(served.app) as port:
            answer = await make(port).with_structured_output(Room, **options).ainvoke("Book a room")
        await served.close()
        return answer

    answer = asyncio.run(run())
    assert isinstance(answer, Room)
    assert 0 <= answer.floor <= 40
