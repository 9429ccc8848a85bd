"""Page of recipes: every built-in recipe and method, with its keys and measured results."""

from __future__ import annotations

import re
from importlib.resources import files

from measured import of_a_world, papers_of, verdicts

from whetstone.recipe import built_in_methods, built_in_recipes, load_recipe, read_method

TOP = """# Recipes

*Generated from `src/whetstone/recipes` and stored results by `make docs`.*

A recipe has tasks, an environment and a reward; a method is a layer of a few keys that applies to any of them:

```console
$ whetstone train frozen-lake with=gigpo
$ whetstone recipes show frozen-lake with=gigpo        # all keys, and the origin of each
$ whetstone compare frozen-lake with=null,gigpo --seeds 3
```

## Tasks

Success on held-out tasks, before and after reinforcement, with 95 % intervals. Results of policies with a hundred
million parameters: [real models](../../benchmarks/results/real_models.md).

| recipe | title | tasks, environment, reward | measured |
| --- | --- | --- | --- |
"""
METHODS = """
## Methods

{count} methods, each with its file and the results for the claims of its paper ([rule](papers.md)). The measurements
test the mechanism at small scale, with tiny policies for minutes, and do not judge a paper.

"""


def recipes_page() -> str:
    """Return the whole page."""
    parts = [TOP, *(_world(name) for name in built_in_recipes())]
    names = built_in_methods()
    parts.append(METHODS.format(count=len(names)))
    parts += [_method(name) for name in names]
    return "".join(parts).rstrip() + "\n"


def _world(name: str) -> str:
    recipe = load_recipe(name).recipe
    parts = f"`{recipe.tasks.source}`, `{recipe.environment.name}`, `{recipe.reward.name}`"
    return f"| `{name}` | {recipe.title} | {parts} | {of_a_world(name) or 'not stored'} |\n"


def _method(name: str) -> str:
    keys = dict(read_method(name).keys)
    links = {paper.arxiv: paper.title for paper in papers_of(f"method {name}") if paper.arxiv}
    for arxiv in re.findall(r"\d{4}\.\d{5}", str(keys.get("paper") or "")):
        links.setdefault(arxiv, f"arXiv:{arxiv}")
    papers = " · ".join(f"[{title}](https://arxiv.org/abs/{arxiv})" for arxiv, title in links.items())
    text = (files("whetstone") / "recipes" / "methods" / f"{name}.yaml").read_text(encoding="utf-8")
    about, _, rest = _parted(text)
    lines = [f"### `{name}`\n\n", f"{keys.get('title') or name}. {about}\n\n", f"```yaml\n{rest}```\n\n"]
    if papers:
        lines.append(f"*Paper:* {papers}\n\n")
    if results := verdicts(f"method {name}"):
        lines.append(f"{results}\n")
    return "".join(lines)


def _parted(text: str) -> tuple[str, str, str]:
    """Split a file into (leading comment, title and paper, other keys)."""
    lines = text.splitlines(keepends=True)
    head = 0
    while head < len(lines) and lines[head].startswith("#"):
        head += 1
    about = " ".join(line.lstrip("# ").strip() for line in lines[:head])
    named = [line for line in lines[head:] if re.match(r"(title|paper):", line)]
    rest = "".join(line for line in lines[head:] if line not in named)
    return about, "".join(named), rest.strip("\n") + "\n"
