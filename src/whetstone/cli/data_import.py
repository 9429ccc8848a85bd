"""`whetstone data import`: conversations from the exports of other tools as training data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

import whetstone.assembly
from whetstone.atomic_write import convert_save_errors
from whetstone.data.conversations import Conversation
from whetstone.data.dataset_formats import ROLES
from whetstone.data.demonstrations import tokenize_conversation
from whetstone.data.sensitive import mask_sensitive, redact_sensitive
from whetstone.data.traces.import_conversations import (
    ConversationImporter,
    ImportOptions,
    ImportReport,
    describe_report,
    load_tools,
)
from whetstone.data.traces.records import REMEDIES, ImportProblem, RefusalReason
from whetstone.data.traces.trace_formats import FORMATS, TraceFormat, detect_format, find_format
from whetstone.errors import DataError, did_you_mean
from whetstone.recipe import load_recipe
from whetstone.strict_json import to_json


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Output file, JSON lines.  [default: none, the report only]",
)
@click.option(
    "--from", "source", type=click.Choice(["auto", *FORMATS]), default="auto", show_default=True, help="Format of FILE."
)
@click.option("--recipe", help="Recipe (a name, a YAML file) whose model, chat template and tools are checked.")
@click.option(
    "--tools",
    "tools_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON list of tools, for conversations that declare none.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="MEANING=NAME",
    help="Column of a CSV file with one message per row, such as role=speaker; repeatable.",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="VALUE=ROLE",
    help="Role of a value in the column of the role of a CSV file, such as customer=user; repeatable.",
)
@click.option(
    "--secrets",
    type=click.Choice(["refuse", "redact", "keep"]),
    default="refuse",
    show_default=True,
    help="Refuse conversations with keys, replace keys and personal data, or keep them.",
)
@click.option(
    "--report",
    "listing",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with one JSON object per conversation: its place, and why it cannot be trained.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_data(
    files: tuple[Path, ...],
    output: Path | None,
    source: str,
    recipe: str | None,
    tools_file: Path | None,
    columns: tuple[str, ...],
    roles: tuple[str, ...],
    secrets: str,
    listing: Path | None,
    as_json: bool,
) -> None:
    """Convert conversations that other tools export into training data.

    Reads spans of OpenTelemetry, exports of Langfuse and LangSmith, conversations of OpenAI, ShareGPT and Hermes, and
    CSV. Calls of one conversation become one conversation. The report lists how many conversations can be trained, and
    why the others cannot, with the first places. The exit code is 2 if none can be trained.
    """
    for path in (output, listing):
        if path is not None and path.exists():
            raise DataError(f"{path}: exists; choose another name")
    if secrets == "redact":
        redact_sensitive("")  # before a file is created
    renamed = dict(_split_pair("--column", each, "MEANING=NAME", "role=speaker") for each in columns)
    named = dict(_split_pair("--role", each, "VALUE=ROLE", "customer=user") for each in roles)
    for value, role in named.items():
        if role not in ROLES.values():
            raise DataError(f"--role {value}={role}: unknown role{did_you_mean(role, set(ROLES.values()))}")
    read = [(path, find_format(path, source, renamed, named)) for path in files]
    if (renamed or named) and not any(trace_format.name == "csv" for _, trace_format in read):
        path, trace_format = read[0]
        option, what = ("--column", "columns") if renamed else ("--role", "roles")
        raise DataError(
            f"{path}: {option} has no effect on {trace_format.title}; it names the {what} of a CSV file with one "
            f"message per row: remove {option}"
        )
    options = ImportOptions(load_tools(tools_file) if tools_file is not None else None, secrets)
    if recipe is not None:
        _use_recipe(options, recipe)
    importer = ConversationImporter(options)
    _write(importer, read, output, listing)
    report = importer.report
    if as_json:
        formats = {str(path): trace_format.name for path, trace_format in read}
        click.echo(to_json({"formats": formats, "output": output, **report.to_json()}))
    else:
        _print_report(report, read)
        if output is not None and report.trainable:
            click.echo(f"wrote {output}; next: whetstone data check {output} RECIPE")
    if not report.trainable:
        raise DataError(_explain_failure(read, source, report))


def _split_pair(option: str, text: str, form: str, example: str) -> tuple[str, str]:
    one, equals, other = text.partition("=")
    if not equals or not other:
        raise DataError(f"{option} {text}: {form} is expected, such as {example}")
    return one, other


def _use_recipe(options: ImportOptions, recipe: str) -> None:
    """Set the model and the tools of a recipe, under which imported conversations are checked.

    Conversations without tools get the tools of the recipe.
    """
    components = whetstone.assembly.assemble(whetstone.assembly.as_reinforcement(load_recipe(recipe, ())))
    chat, limit = components.chat, components.policy.context_length
    if options.tools is None and components.offered_tools:
        options.tools = [spec.to_openai() for spec in components.offered_tools]

    def check(conversation: Conversation) -> ImportProblem | None:
        episode = tokenize_conversation(conversation, chat)
        if episode.error is not None:
            detail = episode.error.removeprefix(f"{conversation.where}  ")
            return ImportProblem(RefusalReason.TEMPLATE, re.sub(r"\s+", " ", detail))
        longest = max(map(len, episode.segments()))
        return (
            ImportProblem(RefusalReason.TOO_LONG, f"{longest:,} tokens, the limit is {limit:,}")
            if longest > limit
            else None
        )

    options.check = check


def _write(
    importer: ConversationImporter, read: list[tuple[Path, TraceFormat]], output: Path | None, listing: Path | None
) -> None:
    """Write the training rows and the listing while the files are read."""
    with _new_file(listing) as write_outcome, _new_file(output) as write_row:
        for imported in importer.read(read):
            if imported.line is not None:
                write_row(imported.line)
            problem = imported.problem
            outcome = {"row": importer.report.trainable} if problem is None else {"reason": problem.reason}
            detail = mask_sensitive(problem.detail) if problem is not None else ""
            write_outcome(to_json({"where": imported.where, **outcome, "detail": detail}).encode())
    if output is not None and not importer.report.trainable:
        output.unlink()


@contextmanager
def _new_file(path: Path | None) -> Iterator[Callable[[bytes], None]]:
    """Create a file when the block ends without an error.

    Yields:
        Function that writes one line.
    """
    if path is None:
        yield lambda line: None
        return
    aside = path.with_name(f".{path.name}.partial")
    with convert_save_errors(path, aside):
        with open(aside, "wb") as file:

            def write(line: bytes) -> None:
                file.write(line + b"\n")

            yield write
        os.replace(aside, path)


def _print_report(report: ImportReport, read: list[tuple[Path, TraceFormat]]) -> None:
    for path, trace_format in read:
        click.echo(f"{path}: {trace_format.title} (--from {trace_format.name})")
    first, *lines = describe_report(report)
    click.secho(first, bold=True)
    for line in lines:
        click.echo(f"  {line}")
    for reason, count in report.refused.most_common():
        remedy = f"; {REMEDIES[reason]}" if reason in REMEDIES else ""
        click.secho(f"  {count} × {reason}{remedy}", fg="yellow")
        places = report.places[reason]
        for place in places:
            click.echo(f"      {place[:300]}")
        if count > len(places):
            click.echo(f"      … and {count - len(places)} more")


def _explain_failure(read: list[tuple[Path, TraceFormat]], source: str, report: ImportReport) -> str:
    """Format the error if no conversation can be trained, with the most frequent reasons."""
    names = ", ".join(str(path) for path, _ in read)
    reasons = ", ".join(f"{reason} ({count})" for reason, count in report.refused.most_common(3))
    detected = detect_format(read[0][0]) if source != "auto" else source
    is_other = detected != source and detected in FORMATS
    other = f"; {read[0][0]} is in the format {detected}: `--from {detected}`" if is_other else ""
    return (
        f"{names}: none of {report.num_conversations} conversations can be trained: {reasons or 'no messages'}{other}"
    )
