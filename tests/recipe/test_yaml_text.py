"""YAML from any source is read in seconds, or refused in one line."""

import pytest

from whetstone.errors import RecipeError
from whetstone.recipe import load_recipe
from whetstone.recipe.yaml_text import yaml_document
from whetstone.tools import OpenApi


def aliases(opening, item, closing):
    first = f"a0: &a0 {opening}{','.join(item.format(i, 'x') for i in range(10))}{closing}\n"
    return first + "".join(
        f"a{n}: &a{n} {opening}{','.join(item.format(i, f'*a{n - 1} ') for i in range(10))}{closing}\n"
        for n in range(1, 10)
    )


BOMBS = {
    "lists of lists": (aliases("[", "{1}", "]"), "aliases expanded"),
    "mappings of mappings": (aliases("{", "k{0}: {1}", "}"), "aliases expanded"),
    "brackets": ("tasks: " + "[" * 20_000, "deep"),
    "closed brackets": ("tasks: " + "[" * 3_000 + "]" * 3_000, "deep"),
    "braces": ("tasks: " + "{a: " * 3_000 + "}" * 3_000, "deep"),
    "a list of itself": ("tasks: &a [*a ]\n", "contains itself"),
    "merged with itself": ("a: &a {<<: *a }\n", "contains itself"),
    "a number": ("seed: " + "9" * 200_000, "digits"),
    "a hexadecimal number": ("seed: 0x" + "f" * 900_000, "digits"),
    "a key twice": ("seed: 1\nseed: 2\n", "bombs.yaml:2  not YAML: found duplicate key"),
    "a line": ("tasks: " + "x" * 2_000_000, "longer than"),
    "no text": ("tasks: \0\n", "not YAML"),
    "no date": ("seed: 2001-99-99\n", "not YAML"),
    "another mapping": ("tasks: !!omap [a: 1]\n", "the tag"),
    "code": ("tasks: !!python/object/apply:os.system [true]\n", "the tag"),
}


@pytest.mark.parametrize(("text", "message"), BOMBS.values(), ids=BOMBS)
def test_excessive_recipe_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "bombs.yaml").write_text(text)
    with pytest.raises(RecipeError, match=message) as raised:
        load_recipe(tmp_path / "bombs.yaml")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("text", ["[" * 5_000, "9" * 200_000, "&a [*a ]"], ids=["brackets", "a number", "itself"])
def test_excessive_override_is_refused_in_one_line(text):
    with pytest.raises(RecipeError, match="the value is not YAML") as raised:
        load_recipe("demo", [f"seed={text}"])
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("policy.lora={rank:", "got '{rank:'; quote the whole argument in the shell: 'policy.lora={rank: …}'"),
        ("environment.tools=[{name:", "quote the whole argument in the shell: 'environment.tools=[{name: …]'"),
        ("title=@shop", """got '@shop'; quote a text with special characters: 'title="TEXT"'"""),
    ],
)
def test_override_that_the_shell_divided_is_to_be_quoted(override, remedy):
    with pytest.raises(RecipeError) as raised:
        load_recipe("demo", [override, "4}"])
    key = override.partition("=")[0]
    assert str(raised.value).startswith(f"{key}: the value is not YAML, ")
    assert str(raised.value).endswith(remedy)


def test_ordinary_aliases_are_read():
    assert yaml_document("a: &a {x: 1}\nb: [*a , *a ]\nc: {<<: *a , y: 2}", "here", plain=True) == {
        "a": {"x": 1},
        "b": [{"x": 1}, {"x": 1}],
        "c": {"x": 1, "y": 2},
    }


@pytest.mark.parametrize("name", ["lists of lists", "closed brackets", "a list of itself"])
def test_openapi_specification_is_read_with_the_same_limits(tmp_path, name):
    (tmp_path / "shop.yaml").write_text(BOMBS[name][0])
    with pytest.raises(RecipeError, match=r"openapi: .*shop\.yaml"):
        OpenApi(file=str(tmp_path / "shop.yaml"), url="http://127.0.0.1")


def test_nested_references_are_not_expanded_exponentially(tmp_path):
    schemas = ["    S0: {type: object}"]
    for n in range(1, 6):
        fields = ", ".join(f"p{i}: {{$ref: '#/components/schemas/S{n - 1}'}}" for i in range(100))
        schemas.append(f"    S{n}: {{type: object, properties: {{{fields}}}}}")
    operation = "{get: {operationId: a, parameters: [{name: x, in: query, schema: {$ref: '#/components/schemas/S5'}}]}}"
    text = "\n".join(["openapi: 3.0.0", f"paths: {{/a: {operation}}}", "components:", "  schemas:", *schemas])
    (tmp_path / "shop.yaml").write_text(text)
    with pytest.raises(RecipeError, match="references expanded"):
        OpenApi(file=str(tmp_path / "shop.yaml"), url="http://127.0.0.1")
