"""`flowctl discover`."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.console import visible
from derive.cli.folding import folded
from derive.cli.inputs import (
    InputFile,
    InputFormat,
    format_of,
    input_options,
    json_form,
    listed_files,
    shown_name,
    text_of,
)
from derive.cli.options import quiet_option
from derive.plural import counted

if TYPE_CHECKING:
    from derive.cli.console import Progress
    from derive.schema.discovery import Discovery, KeyChoice
    from derive.schema.shape import Types
    from derive.storage.ingest import Problems
    from derive.storage.inputs.line import Content, Line

_SHOWN_KEYS, _SHOWN_FILES = 5, 3
_WIDTH = 80
"""Greatest width of a printed line, if its words permit it."""

_SHOWN_DOCUMENTS = 1_000
"""Number of documents between two looks at the time, for the progress."""

_WORD = re.compile(r"[A-Za-z_/][\w/ -]*", re.ASCII)
_HINT = "flowctl ingest would refuse this file, too"


@click.command()
@click.option("--name", metavar="NAME", help="Name of the collection.  [default: by the name of the first file]")
@click.option(
    "--documents",
    "most",
    type=click.IntRange(min=1),
    metavar="N",
    default=100_000,
    show_default=True,
    help="Read at most N documents.",
)
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="A new file to write.  [default: print it]"
)
@input_options
@quiet_option
def command(
    *,
    name: str | None,
    most: int,
    output: Path | None,
    form: str | None,
    delimiter: str | None,
    most_mib: int,
    files: tuple[str, ...],
) -> None:
    """Infer a collection from the documents of FILES (or standard input, '-'), and print its YAML.

    The formats are those of `flowctl ingest`. The schema accepts all documents that were read: with types, required
    fields, formats that all values have, and enumerations of a few strings that often repeat. The key has the fewest
    fields that are unique in these documents; fields named like identifiers are preferred. Read the result before you
    use it: later documents may differ.

    \b
    Examples:
      flowctl discover orders.csv
      flowctl discover --name shop/orders exports/ --output orders.flow.yaml
      curl -s https://example.com/orders | flowctl discover --name shop/orders
    """
    from derive.catalog.language.structure import is_name
    from derive.cli.console import Progress, note
    from derive.errors import UsageError
    from derive.schema.discovery import Discovery

    paths = listed_files(files)
    name = name or _name_of(paths[0])
    if not is_name(name):
        raise UsageError(
            f"'{name}' is not a name of a collection",
            hint="a name has letters, numbers, '-', '_' and '.', with '/' between its parts: --name shop/orders",
        )
    if output is not None and output.exists():
        raise UsageError(f"{output} exists", hint="name a new file, and import it: 'import:' in flow.yaml")
    inputs = [_Input(shown_name(path), path, format_of(path, form, delimiter)) for path in paths]
    discovery = Discovery()
    with Progress() as progress, ExitStack() as stack:
        if any(file.form.form == "csv" for file in inputs):
            inputs = [_reread(file, stack) for file in inputs]
        is_whole = _read(inputs, discovery, most, most_mib << 20, progress)
    if not discovery.documents:
        raise UsageError(f"{_listed(paths)} has no documents")
    text = _yaml(name, discovery, _listed(paths), is_whole=is_whole)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        note(f"{output} defines '{name}'")


def _name_of(path: str) -> str:
    """Return the name of a collection for a file, without characters that names cannot have."""
    stem = "documents" if path == "-" else Path(path).name.partition(".")[0]
    return re.sub(r"(?:[\W])+", "-", stem).strip("-") or "documents"


def _listed(paths: Sequence[str]) -> str:
    """Return the names of files for a message."""
    more = f" and {len(paths) - _SHOWN_FILES:,} more" if len(paths) > _SHOWN_FILES else ""
    return ", ".join(map(shown_name, paths[:_SHOWN_FILES])) + more


@dataclass(frozen=True, slots=True)
class _Input:
    """A file: its name for messages, its path and its format."""

    shown: str
    path: str
    form: InputFormat


def _reread(file: _Input, stack: ExitStack) -> _Input:
    """Return an input that can be read twice: of standard input a copy, which exists as long as the stack is open."""
    if file.path != "-":
        return file
    copy = tempfile.NamedTemporaryFile(prefix="flowctl-")  # noqa: SIM115 (the stack closes it)
    stack.enter_context(copy)
    shutil.copyfileobj(sys.stdin.buffer, copy)
    copy.flush()
    return replace(file, path=copy.name)


class _Columns:
    """Types of the columns of CSV, from a first reading: text, unless all cells are JSON values other than strings."""

    def __init__(self) -> None:
        self._is_decided = False
        self._texts: set[str] = set()
        self._valued: set[str] = set()

    def learn(self, content: Content) -> None:
        """Learn from a row that was read while the types were not known."""
        from derive.document.exact import parse_exact

        document = parse_exact(content) if isinstance(content, bytes) else content
        if isinstance(document, dict):
            self._texts.update(column for column, value in document.items() if isinstance(value, str))
            self._valued.update(column for column, value in document.items() if value is not None)

    def decide(self) -> None:
        """End the first reading. A column that has only the word null has text."""
        self._is_decided = True

    def types_of(self, name: str, header: list[str]) -> list[Types]:
        """Return the types of the columns in a header."""
        from derive.errors import UsageError
        from derive.schema.shape import ALL
        from derive.storage.inputs.line import check_columns, separator_hint

        check_columns(header, name)
        if hint := separator_hint(header):
            raise UsageError(f"{name}:1: the header names one column: {header[0]}", hint=hint)
        others = self._valued - self._texts
        return [ALL if column in others or not self._is_decided else frozenset({"string"}) for column in header]


def _read(inputs: Sequence[_Input], discovery: Discovery, most: int, most_bytes: int, progress: Progress) -> bool:
    """Add the documents of files; return whether all were read.

    Raises:
        DocumentError: documents are malformed; the first ten are listed.
    """
    from derive.errors import DocumentError
    from derive.storage.ingest import Problems, batches_of

    columns = _Columns()
    tables = (_lines(file, columns, most_bytes) for file in inputs if file.form.form == "csv")
    try:
        for _, content in islice(chain.from_iterable(tables), most):
            columns.learn(content)
        columns.decide()
        for file in inputs:
            problems = Problems(file.shown, hint=_HINT)
            for number, content in chain.from_iterable(batches_of(file.shown, _lines(file, columns, most_bytes))):
                if discovery.documents == most:
                    problems.raise_any()
                    return False
                _add(number, content, discovery, problems)
                if not discovery.documents % _SHOWN_DOCUMENTS:
                    progress.show("discover", discovery.documents, share=discovery.documents / most)
            problems.raise_any()
    except DocumentError as error:
        raise DocumentError(error.message, hint=_HINT) from error
    return True


def _add(number: int, content: Content, discovery: Discovery, problems: Problems) -> None:
    """Add the document of a line, or record its error."""
    import orjson

    from derive.document.exact import parse_exact
    from derive.errors import DocumentError
    from derive.schema.shape import type_of

    try:
        document = parse_exact(content) if isinstance(content, bytes) else content
    except orjson.JSONDecodeError as exc:
        problems.add_syntax(number, exc)
    except ValueError as exc:
        problems.add(number, f"not JSON: {exc}")
    else:
        if isinstance(document, DocumentError):
            problems.add(number, document.message)
        elif isinstance(document, dict):
            discovery.add(document)
        else:
            problems.add(number, f"a document is a JSON object, but this is of type {type_of(document)}")


def _lines(file: _Input, columns: _Columns, most_bytes: int) -> Iterator[Line]:
    from derive.storage.inputs.json_documents import json_documents
    from derive.storage.inputs.line import json_lines, typed_rows
    from derive.storage.inputs.parquet_rows import parquet_rows

    form = file.form.form
    if form == "parquet":
        yield from parquet_rows(file.path, None, most_bytes)
        return
    with text_of(InputFile(file.path, is_hashed=False)) as text:
        if form == "csv":
            types_of = partial(columns.types_of, file.shown)
            yield from typed_rows(text, types_of, file.shown, most_bytes, file.form.delimiter)
        else:
            read = json_lines if (form or json_form(text)) == "jsonl" else json_documents
            yield from read(text, most_bytes)


def _yaml(name: str, discovery: Discovery, files: str, *, is_whole: bool) -> str:
    """Return the YAML of a collection, with comments about the documents and the key."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes all strings that are not words: `1e3` is a number in YAML 1.2, and a string in PyYAML's YAML 1.1."""

    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style=None if _WORD.fullmatch(text) else "'"
        ),
    )
    documents = counted(discovery.documents, "document")
    which = documents if is_whole else f"the first {documents}"
    choice = discovery.key()
    comments = [f"flowctl discover read {which} of {files}.", *_reasons(choice, discovery), *_notes(discovery)]
    collection = {"key": list(choice.pointers), "schema": discovery.schema()}
    text = yaml.dump(
        {"collections": {name: collection}},
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=_WIDTH,
        default_flow_style=None,
    )
    lines = [
        line for comment in comments for part in comment.splitlines() for line in folded(visible(part), _WIDTH - 2)
    ]
    return "".join(f"# {line}\n" for line in lines) + text


def _reasons(choice: KeyChoice, discovery: Discovery) -> list[str]:
    """Return the reasons for a key."""
    from derive.schema.discovery import is_identifier

    documents, mixed = discovery.documents, discovery.mixed()
    if not choice.pointers and mixed:
        is_one = "is in all documents, but has" if len(mixed) == 1 else "are in all documents, but have"
        fields = ", ".join(f"{pointer} ({' and '.join(types)})" for pointer, types in [*mixed.items()][:_SHOWN_KEYS])
        way_out = "write one type, or add a field that identifies a document"
        return [f"{fields} {is_one} several types, so there is no key: {way_out}."]
    rejected = [
        f"{pointer} has several types ({' and '.join(types)}), so it is no key."
        for pointer, types in mixed.items()
        if is_identifier(pointer)
    ]
    return [*_reasons_of_key(choice, documents), *rejected]


def _notes(discovery: Discovery) -> list[str]:
    """Return the comment on fields without a type."""
    nulls = discovery.nulls()
    if not nulls:
        return []
    more = f" and {len(nulls) - _SHOWN_KEYS:,} more" if len(nulls) > _SHOWN_KEYS else ""
    has = "has" if len(nulls) == 1 else "have"
    return [f"{', '.join(nulls[:_SHOWN_KEYS])}{more} {has} only null, so any value is allowed: write the type."]


def _reasons_of_key(choice: KeyChoice, documents: int) -> list[str]:
    if not choice.pointers:
        return ["No field is in all documents, so there is no key: add a field that identifies a document."]
    shown = ", ".join(choice.pointers)
    if choice.distinct < documents:
        return [
            f"No key of up to three fields is unique. {shown} has the most values: {choice.distinct:,}.",
            "Choose another key, unless several documents are versions of the same thing.",
        ]
    those = "is in all documents, and unique" if len(choice.pointers) == 1 else "are in all documents, unique together"
    others = [" and ".join(other) for other in choice.others[:_SHOWN_KEYS]]
    more = f" and {len(choice.others) - _SHOWN_KEYS:,} more" if len(choice.others) > _SHOWN_KEYS else ""
    return [f"The key: {shown} {those}.", *([f"Also unique: {', '.join(others)}{more}."] if others else [])]
