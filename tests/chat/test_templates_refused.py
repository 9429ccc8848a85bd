"""Chat templates that cannot render a conversation are refused with the problem before sampling."""

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


def test_template_that_renders_conversations_is_accepted():
    assert chat("{% for m in messages %}" + TURN + "{% endfor %}" + ASKED).stop_ids
    # the template of Mistral has no header before an answer, so it needs no generation prompt
    assert chat(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<|end|>"
        "{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}"
    ).stop_ids


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages %}" + TURN + "{% endfor %}", r"has no generation prompt .*<\|start\|>assistant"),
        (
            "{% for m in messages %}{% if m.role != 'user' %}" + TURN + "{% endif %}{% endfor %}" + ASKED,
            "does not render user messages",
        ),
        ("{% for m in messages %}{{ m.content }}", "its chat template fails: line 1: "),
        ("{{ raise_exception('not today') }}", "its chat template fails: not today"),
        ("{{ messages[0].nothing.at_all }}", "its chat template fails: "),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "could never end one"),
    ],
)
def test_template_without_conversations_is_refused(template, message):
    with pytest.raises(PolicyError, match=message):
        chat(template)


def test_system_message_is_part_of_the_user_message_without_system_role():
    refuses = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    taken = chat(refuses + TURN + "{% endfor %}" + ASKED)
    context = taken.open([system("Be brief."), user("How much?")], ())
    assert taken.tokenizer.decode(context.ids) == "<|start|>user\nBe brief.\n\nHow much?<|end|><|start|>assistant\n"
    without_system = taken.open([user("How much?")], ())
    assert "Be brief" not in taken.tokenizer.decode(without_system.ids)
