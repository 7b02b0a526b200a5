"""Files and standard input with documents: their formats, their content and its digest."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from derive.cli.options import Command

if TYPE_CHECKING:
    from derive.errors import UsageError

_FORMS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".tsv": "csv",
}
"""Formats by the suffixes of files; the format of other files depends on their content."""

_COMPRESSED = (".gz", ".zst")


def input_options(command: Command) -> Command:
    """Add the options that describe files with documents, and the files."""
    for option in (
        click.argument("files", nargs=-1),
        click.option(
            "--max-document-mib",
            "most_mib",
            type=click.IntRange(1, 2047),
            default=128,
            show_default=True,
            help="Largest document (line or row), in MiB.",
        ),
        click.option(
            "--delimiter",
            metavar="CHAR",
            help="Character between the cells of CSV; 'tab' for a tab.  [default: a tab in .tsv, else a comma]",
        ),
        click.option(
            "--format",
            "form",
            type=click.Choice(["jsonl", "json", "csv", "parquet"]),
            help="Format of the files; jsonl has a document per line, json has arrays or documents of several lines."
            "  [default: by the suffix, else by the first line]",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class InputFormat:
    """Format of a file.

    Attributes:
        form: jsonl, json, csv or parquet; None if the content determines whether a file is jsonl or json.
        delimiter: the character between cells of CSV.
    """

    form: str | None
    delimiter: str = ","


def format_of(name: str, form: str | None, delimiter: str | None) -> InputFormat:
    """Return the format of a file.

    Args:
        name: path of the file, or '-'.
        form: value of --format; None for the format by the suffix.
        delimiter: value of --delimiter.

    Raises:
        UsageError: the format has no such delimiter, or the file cannot be read.
    """
    from derive.errors import UsageError

    path = Path(name)
    is_packed = path.suffix in _COMPRESSED
    suffix = path.with_suffix("").suffix if is_packed else path.suffix
    form = form or _FORMS.get(suffix)
    if delimiter is not None:
        if form != "csv":
            raise UsageError("--delimiter is for CSV", hint="add --format csv")
        delimiter = {"tab": "\t", "\\t": "\t"}.get(delimiter, delimiter)
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise UsageError("--delimiter takes one character, which is neither a quote nor a line break")
    if form == "parquet" and is_packed:
        raise UsageError(f"{name} is a compressed Parquet file, which cannot be read", hint="decompress it first")
    if form == "parquet" and name == "-":
        raise UsageError("a Parquet file cannot be read from standard input")
    return InputFormat(form, delimiter or ("\t" if suffix == ".tsv" else ","))


def no_file(name: str) -> UsageError:
    """Return the error of a missing file, with a similar name, or the first of its folders that is missing."""
    from derive.errors import UsageError, suggest_misspelt

    path = Path(name)
    missing = next((part for part in reversed(path.parents) if not part.exists()), path)
    try:
        present = [file.name for file in missing.parent.iterdir()]
    except OSError:  # a part of the path is a file, or a folder that others may not read
        present = []
    guess = suggest_misspelt(missing.name, present)
    hint = None if missing == path else f"there is no folder {missing}"
    if guess:
        hint = f"did you mean {missing.with_name(guess) / path.relative_to(missing)}?"
    return UsageError(f"there is no file {name}", hint=hint)


def listed_files(names: Sequence[str]) -> list[str]:
    """Return the paths of input files: a folder has its files with known suffixes, also in its folders, sorted.

    Args:
        names: paths of files and folders, and '-' for standard input; none for standard input alone.

    Raises:
        UsageError: a path does not exist, or a folder has no such file.
    """
    from derive.cli.console import note
    from derive.errors import UsageError

    if not names and sys.stdin.isatty():
        note("reading documents from standard input: end them with Ctrl-D")
    files: list[str] = []
    for name in names or ("-",):
        path = Path(name)
        if name != "-" and not path.exists():
            raise no_file(name)
        if name == "-" or not path.is_dir():
            files.append(name)
            continue
        within = [str(file) for file in sorted(path.rglob("*")) if _is_listed(file, path)]
        if not within:
            suffixes = ", ".join(sorted(_FORMS))
            raise UsageError(f"the folder {name} has no file to load", hint=f"known suffixes: {suffixes}")
        files += within
    return files


def _is_listed(file: Path, folder: Path) -> bool:
    """Return true for a file of a known format; hidden files and folders are left out."""
    is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return not is_hidden and is_listed(file) and file.is_file()


def is_listed(file: Path) -> bool:
    """Return true for a name with the suffix of a known format."""
    bare = file.with_suffix("") if file.suffix in _COMPRESSED else file
    return bare.suffix in _FORMS


class InputFile:
    """A file or standard input, and the digest of its content.

    The digest of a regular file is computed at the beginning. The content of other inputs is read only once, so with a
    load identifier the digest is computed while the documents are read.

    Args:
        name: path of the file, or '-'.
        load_id: identifier of the load; None if missing.
        is_hashed: whether the digest is needed.
    """

    def __init__(self, name: str, load_id: str | None = None, *, is_hashed: bool = True) -> None:
        self.name, self._load_id = name, load_id
        self.is_regular = name != "-" and Path(name).is_file()
        self._state = self._stat()
        self._digest = ""
        self._hashed: _Hashed | None = None
        self._stream: io.BufferedReader | None = None
        if self.is_regular and is_hashed:
            try:
                with Path(name).open("rb") as stream:
                    self._digest = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError as exc:
                raise _unreadable(name, exc) from exc

    def _stat(self) -> tuple[int, int, int] | None:
        if not self.is_regular:
            return None
        status = Path(self.name).stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def open(self) -> io.BufferedReader:
        """Open the content for reading.

        Raises:
            OSError: the file cannot be opened.
        """
        if self.name == "-" and sys.stdin.isatty():
            from derive.cli.console import note

            note("type documents, and end with Ctrl-D on a line of its own")
        stream: Any = sys.stdin.buffer if self.name == "-" else Path(self.name).open("rb")  # noqa: SIM115
        self._stream = stream
        if self.is_regular or self._load_id is None:
            return cast("io.BufferedReader", stream)
        self._hashed = _Hashed(stream)
        return io.BufferedReader(self._hashed, 1 << 17)

    def share(self) -> float | None:
        """Return the share of the bytes of an open file that were read, from 0 to 1; None if it is unknown."""
        with suppress(OSError, ValueError):
            if self._stream is not None and (size := os.fstat(self._stream.fileno()).st_size):
                return min(1.0, self._stream.tell() / size)
        return None

    def digest(self) -> str:
        """Read the content to its end, and return its SHA-256; empty for an input without digest.

        Raises:
            DocumentError: the file of a load with an identifier has changed since the digest was computed.
        """
        if self._hashed is not None:
            return self._hashed.digest()
        if self._stat() == self._state:
            return self._digest
        if self._load_id is None:
            return ""
        from derive.errors import DocumentError
        from derive.storage.inputs.line import NOTHING_INGESTED

        raise DocumentError(f"{self.name} has changed during the read", hint=NOTHING_INGESTED)


class _Hashed(io.RawIOBase):
    """A stream that computes the SHA-256 of the bytes that are read."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._sum = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._stream.read1(len(buffer))  # without waiting until the buffer is full
        self._sum.update(chunk)
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def digest(self) -> str:
        """Read to the end, and return the digest of all bytes."""
        while chunk := self._stream.read(1 << 17):
            self._sum.update(chunk)
        return self._sum.hexdigest()


@contextmanager
def text_of(file: InputFile) -> Iterator[io.BufferedReader[Any]]:
    """Open the text of a file or of standard input, decompressed if it is compressed."""
    from derive.storage.inputs.line import unpacked

    shown = shown_name(file.name)
    with ExitStack() as stack:
        try:
            stream = file.open()
            if file.name != "-":
                stack.enter_context(stream)
            text = unpacked(stream, shown)
        except OSError as exc:
            raise _unreadable(shown, exc) from exc
        yield text


def _unreadable(shown: str, exc: OSError) -> UsageError:
    from derive.errors import UsageError

    return UsageError(f"cannot read {shown}: {exc.strerror}")


def shown_name(name: str) -> str:
    """Return the name of an input for messages."""
    return "standard input" if name == "-" else name


def json_form(text: io.BufferedReader[Any]) -> str:
    """Return the format of JSON: jsonl if the first line is one document, else json."""
    from derive.storage.inputs.json_documents import is_one_document
    from derive.storage.inputs.line import BOM

    first, newline, _ = text.peek(1).removeprefix(BOM).lstrip().partition(b"\n")
    return "jsonl" if newline and is_one_document(first) else "json"
