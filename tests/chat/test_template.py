"""Chat templates are untrusted programs: they render as in Transformers, within limits of time and memory."""
# ruff: noqa: E501 - templates are lines

import resource

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from support.slow import mostly_slow
from whetstone.chat import Chat
from whetstone.chat.formats import Hermes
from whetstone.chat.template import ChatTemplate
from whetstone.errors import PolicyError
from whetstone.policies import build_tiny

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  How <much>?\n"},
    {"role": "assistant", "content": "<think>a\nb</think>\n\n4"},
]


def render(source, messages=MESSAGES, *, prompt=True):
    return ChatTemplate(source).render(messages, add_generation_prompt=prompt, special={"bos_token": "<s>"})


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}{% for m in messages %}\n  {%- if loop.first %}!{% endif %}\n{{ m.role ~ ': ' + m['content'] | trim }}\n"
        "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}\n",
        "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% set ns.last = loop.index0 %}{% endfor %}{{ ns.last }}",
        "{% macro say(m, tag='x') %}<{{ tag }}>{{ m.content }}{% endmacro %}{% for m in messages %}{{ say(m, tag=m.role) }}"
        "{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}",
        "{% for m in messages if m.role != 'system' %}{% generation %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
        "{% endgeneration %}{{ messages | length }}{{ tools is none }}{{ nothing }}{{ none }}{{ 7 // 2 * 3 ** 2 }}{% endfor %}",
        "{{ messages | tojson(indent=2) }}{{ messages | map(attribute='role') | join(', ') }}{{ ('a', 'b') + ('c',) }}"
        "{{ [1, 2] | list }}{{ {'a': 1}.items() | list }}{{ '%s-%d' | format('x', 3) }}{{ 'q' * 3 }}",
        "{% set text %}in {{ messages[1].content }}{% endset %}{{ text | replace('much', 'many') | upper }}{{ range(3) | list }}"
        "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{{ 'x' if a in [1] else 'y' }}{% else %}no{% endfor %}",
    ],
)
@pytest.mark.parametrize("prompt", [True, False])
def test_rendering_equals_that_of_transformers(source, prompt):
    ((expected,), _) = render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=prompt, bos_token="<s>"
    )
    assert render(source, prompt=prompt) == expected


BOMBS = {
    "a range": "{% for i in range(10**12) %}{% endfor %}",
    "ranges in ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "a filtered range": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "a product": "{{ 'a' * 10**10 }}",
    "a product the other way": "{{ 100000 * ('a' * 100000) }}",
    "a list": "{{ [messages] * 10**9 }}",
    "a doubled text": "{% set n = namespace(a='x') %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}",
    "a text doubled by ~": "{% set n = namespace(a='x') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
    "a doubled block": "{% set n = namespace(a='x') %}{% for i in range(60) %}{% set n.a %}{{ n.a }}{{ n.a }}{% endset %}"
    "{% endfor %}",
    "a list of itself": "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% endfor %}"
    "{{ n.a }}",
    "a mapping of itself": "{% set n = namespace(a=1) %}{% for i in range(60) %}{% set n.a = dict(a=n.a, b=n.a) %}{% endfor %}"
    "{{ n.a }}",
    "a namespace of itself": "{% set n = namespace(a=1) %}{% for i in range(60) %}{% set n.a = [namespace(a=n.a), n.a, n.a] %}"
    "{% endfor %}{{ n.a | string }}",
    "a list of one text": "{{ [messages[0].content * 100000] * 100000 }}",
    "much output": "{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}",
    "a format": "{{ '%1000000000d' % 1 }}",
    "a format's filter": "{{ '%*d' | format(1000000000, 1) }}",
    "a format's method": "{{ '{:>1000000000}'.format(1) }}",
    "padding": "{{ 'a'.ljust(10**10) }}",
    "centring": "{{ 'a' | center(10**10) }}",
    "indenting": "{{ ('\\n' * 99999) | indent('x' * 99999) }}",
    "replacing": "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "replacing by a filter": "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "joining": "{{ ('a' * 99999).join('b' * 99999) }}",
    "joining by a filter": "{{ range(99999) | map('string') | join('b' * 99999) }}",
    "slices": "{{ [1] | slice(10**9) | list }}",
    "a power": "{{ 10 ** 10 ** 10 }}",
    "a square of squares": "{% set n = namespace(a=7) %}{% for i in range(90) %}{% set n.a = n.a * n.a %}{% endfor %}",
    "a macro in itself": "{% macro a() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}",
    "macros in macros": "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(90) }}",
    "a block in itself": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "a loop in itself": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "nesting": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "blocks": "{% if 1 %}" * 5_000 + "{% endif %}" * 5_000,
    "length": "x" * (2 << 20),
    "insides": "{{ messages.__class__.__mro__ }}{{ ''.__class__.__subclasses__() }}",
    "insides by a format": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "insides by a filter": "{{ messages | attr('__class__') | attr('__mro__') | list }}{{ raise_exception.__globals__['os'] }}",
    "insides of the measure": "{{ namespace(__class__=1) }}",
    "another file": "{% include '/etc/passwd' %}",
}


QUICK_BOMBS = ["much output", "a format's filter", "padding", "a power", "nesting", "length", "insides", "another file"]


@pytest.mark.parametrize(
    "source", mostly_slow([pytest.param(source, id=name) for name, source in BOMBS.items()], quick=QUICK_BOMBS)
)
def test_template_beyond_its_limits_is_refused(source, monkeypatch):
    monkeypatch.setattr("whetstone.chat.template._MOST_SECONDS", 0.5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TemplateError):
        render(source)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB: a GiB


def test_long_conversation_is_within_the_limits():
    source = "{% for m in messages %}{{ m.role }}: {{ m.content | trim | replace('a', 'b') }}\n{% endfor %}"
    messages = [{"role": "user", "content": "word " * 2000}] * 400
    assert len(render(source, messages)) == 400 * (len("user: ") + 10_000 - 1 + 1)


@pytest.mark.parametrize("name", ["a product", "ranges in ranges", "insides", "nesting"])
def test_model_with_an_expensive_template_is_refused_in_one_line(name, monkeypatch):
    monkeypatch.setattr("whetstone.chat.template._MOST_SECONDS", 0.5)
    policy = build_tiny(["Compute 12"], hidden=16, heads=2, layers=1, intermediate=16, context_length=64)
    policy.tokenizer.chat_template = BOMBS[name] + policy.tokenizer.chat_template
    with pytest.raises(PolicyError, match="its chat template fails: ") as raised:
        Chat(policy.tokenizer, Hermes())
    assert "\n" not in str(raised.value)
