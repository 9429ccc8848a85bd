"""A chat template that could not carry a conversation is refused with what is wrong, before anything is sampled."""

import pytest

from whetstone.chat import Chat, system, user
from whetstone.chat.formats import Hermes
from whetstone.errors import PolicyError
from whetstone.policies import build_tiny

TURN = "<|start|>{{ m.role }}\n{{ m.content }}<|end|>"
ASKED = "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"


def chat(template):
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    policy.tokenizer.add_special_tokens({"additional_special_tokens": ["<|start|>", "<|end|>"]})
    policy.tokenizer.chat_template = template
    return Chat(policy.tokenizer, Hermes())


def test_one_that_carries_a_conversation_is_taken():
    assert chat("{% for m in messages %}" + TURN + "{% endfor %}" + ASKED).stop_ids
    # Mistral's has no header in front of an answer, so it needs no generation prompt
    assert chat(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<|end|>"
        "{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"
    ).stop_ids


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}" + TURN + "{% endfor %}", r"has no generation prompt .*<\|start\|>assistant"),
        (
            "{% for m in messages %}{% if m.role != 'user' %}" + TURN + "{% endif %}{% endfor %}" + ASKED,
            "does not show",
        ),
        ("{% for m in messages %}{{ m.content }}", "its chat template fails: line 1: "),
        ("{{ raise_exception('not today') }}", "its chat template fails: not today"),
        ("{{ messages[0].nothing.at_all }}", "its chat template fails: "),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "could never end one"),
    ],
)
def test_one_that_does_not_is_refused(template, said):
    with pytest.raises(PolicyError, match=said):
        chat(template)


def test_where_no_system_is_known_the_user_says_what_it_would_have_said():
    refuses = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    taken = chat(refuses + TURN + "{% endfor %}" + ASKED)
    context = taken.open([system("Be brief."), user("How much?")], ())
    assert taken.tokenizer.decode(context.ids) == "<|start|>user\nBe brief.\n\nHow much?<|end|><|start|>assistant\n"
    alone = taken.open([user("How much?")], ())
    assert "Be brief" not in taken.tokenizer.decode(alone.ids)
