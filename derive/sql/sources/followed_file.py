"""Growing files that sources follow: checks which files may be read, and returns complete lines as rows.

A path is resolved and compared with the allowed folders. Then it is opened folder by folder, without following symbolic
links, so that a concurrent change of the path cannot lead to another file.

The position in the file is a row of a relation beside the source. One commit writes rows and position, so each line
becomes a row exactly once, even if the process is killed.
"""

from __future__ import annotations

import csv
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from derive.algebra.types import Datum, Row, Type
from derive.document.pointer import JSON
from derive.errors import SqlError
from derive.functions.types.jsonb import jsonb_datum, jsonb_of_text, parsed_json
from derive.functions.types.type_info import datum_of_text
from derive.plural import counted
from derive.sql.copy_format import CopyIn
from derive.sql.parser.statement import CopyFormat

_HINT = "Name the folder with: flowctl sql serve --files DIR"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # the opening of a pipe must not block


class FileAccess:
    """The files that sources may read.

    Args:
        folders: folders of readable files; None for all files.
        secret: files and folders that are never readable, such as the password file.
    """

    def __init__(self, folders: Iterable[Path] | None = None, secret: Iterable[Path] = ()) -> None:
        self._folders = None if folders is None else tuple(map(_resolved, folders))
        self._secret = tuple(map(_resolved, secret))

    def open(self, path: Path) -> BinaryIO:
        """Open a regular file.

        Raises:
            SqlError: 42501, sources may not read the file; 58P01, the file does not exist.
        """
        if self._folders is None:
            return _regular(path, lambda: os.open(path, _FILE))
        folder, parts = self._place(path, self._folders)
        return _regular(path, lambda: _opened_below(folder, parts))

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes; 0 if the file cannot be read, because it may be created later.

        Raises:
            SqlError: sources may not read the file (42501).
        """
        try:
            with self.open(path) as file:
                return os.fstat(file.fileno()).st_size
        except SqlError as error:
            if error.sqlstate != "58P01":
                raise
            return 0

    def _place(self, path: Path, folders: tuple[Path, ...]) -> tuple[Path, tuple[str, ...]]:
        """Return the allowed folder that contains a file, and the path of the file below that folder."""
        try:
            real = _resolved(path)
        except OSError as exc:  # the path is changing right now
            raise _unreadable(path, exc) from exc
        folder = next((folder for folder in folders if real.is_relative_to(folder)), None)
        if folder is None or any(real.is_relative_to(secret) for secret in self._secret):
            raise SqlError("42501", f"permission denied to read '{path}' on the server", hint=_HINT)
        return folder, real.relative_to(folder).parts


def require_right(*, has_right: bool) -> None:
    """Check that a user may read files of the server.

    Raises:
        SqlError: the user may not (42501).
    """
    if not has_right:
        raise SqlError(
            "42501",
            "permission denied to read files of the server",
            hint="Mark the user in the password file, as in bob [files]:password.",
        )


def _resolved(path: Path) -> Path:
    """Return the path without symbolic links and `..`. Cyclic links remain, and are never followed."""
    return Path(os.path.realpath(path))


def _opened_below(folder: Path, parts: tuple[str, ...]) -> int:
    """Return a descriptor of a path below a folder, without following symbolic links."""
    descriptor = os.open(folder, _FOLDER)
    for index, part in enumerate(parts):
        flags = _FOLDER if index < len(parts) - 1 else _FILE | os.O_NOFOLLOW
        try:
            below = os.open(part, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _regular(path: Path, opened: Callable[[], int]) -> BinaryIO:
    try:
        descriptor = opened()
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SqlError("58P01", f"cannot read '{path}': it is not a regular file")
    return os.fdopen(descriptor, "rb")


def _unreadable(path: Path, error: OSError) -> SqlError:
    return SqlError("58P01", f"cannot read '{path}': {error.strerror}")


ALL_FILES = FileAccess()
"""Access to all files that the process can read."""


PIECE_BYTES = 1 << 20
"""Number of bytes that are read at once."""

_MARK_BYTES = 4096

_MOST_LINE_BYTES = 128 << 20
"""Greatest length of a line in bytes: the greatest length of a value."""


class FilePosition(NamedTuple):
    """A position in a file; its fields are the columns of the position table.

    Attributes:
        offset: offset of the first unread line, in bytes.
        lines: number of lines before `offset`.
        checksum: checksum of the first and the last bytes before `offset`, which do not change while the file grows.
    """

    offset: int = 0
    lines: int = 0
    checksum: int = 0


POSITION_COLUMNS = tuple((name, Type.BIGINT) for name in FilePosition._fields)
"""Names and types of the columns of the position table."""


@dataclass(frozen=True, slots=True)
class FileFormat:
    """The format of a file.

    Attributes:
        path: path of the file.
        is_csv: whether lines are CSV; else each line is a JSON value.
        has_header: whether the first line of CSV has the column names.
        columns: names and types. For JSON, members of objects; a single column `data` of type jsonb is the whole value.
    """

    path: Path
    is_csv: bool
    has_header: bool
    columns: tuple[tuple[str, Type], ...]


WHOLE = (("data", Type.JSONB),)
"""The columns of a JSON file without declared columns."""


def header_of(path: Path, files: FileAccess = ALL_FILES) -> tuple[tuple[str, Type], ...]:
    """Return the columns in the first line of a CSV file; all have type text.

    Raises:
        SqlError: 58P01, the file does not exist; 42501, sources may not read the file; 42P16, the file has no first
            line yet, or a name occurs twice.
    """
    with files.open(path) as file:
        line = file.readline(_MOST_LINE_BYTES + 1)
    if len(line) > _MOST_LINE_BYTES:
        raise SqlError("54000", f"the first line of '{path}' has more than {_MOST_LINE_BYTES} bytes")
    if not line.endswith(b"\n"):
        raise SqlError(
            "42P16", f"'{path}' has no first line yet", hint="Name the columns: CREATE SOURCE name (…) FROM …"
        )
    texts = next(csv.reader([line.decode(errors="replace")]))
    if not all(texts) or len(set(texts)) < len(texts):
        raise SqlError(
            "42P16",
            f"the first line of '{path}' does not name its columns",
            hint="Name the columns: CREATE SOURCE name (…) FROM …",
        )
    return tuple((text, Type.TEXT) for text in texts)


class FollowedFile:
    """A growing file.

    Args:
        form: format of the file.
        files: files that sources may read.
    """

    def __init__(self, form: FileFormat, files: FileAccess = ALL_FILES) -> None:
        self._form, self._files = form, files

    def poll(self, position: FilePosition) -> tuple[list[Row], FilePosition]:
        """Return the rows of complete lines after a position, about `PIECE_BYTES` at most, and the new position.

        Raises:
            SqlError: 58P01, the file does not exist; 42501, sources may not read the file; 55000, the file was replaced
                or truncated; 54000, a line is too long; 22P02 and others, a line is no row.
        """
        with self._files.open(self._form.path) as file:
            try:
                head, tail = self._checked(file, position)
                data, end = self._read(file)
            except OSError as exc:
                raise SqlError("58030", f"cannot read '{self._form.path}': {exc.strerror}") from exc
        if not end:
            return [], position
        complete = data[:end]
        rows, lines = self._rows(complete, position.lines)
        offset = position.offset + end
        checksum = _checksum(offset, (head + complete)[:_MARK_BYTES], (tail + complete)[-_MARK_BYTES:])
        return rows, FilePosition(offset, lines, checksum)

    def _read(self, file: BinaryIO) -> tuple[bytes, int]:
        """Return the data after the position, and the number of bytes in complete lines."""
        data = file.read(PIECE_BYTES)
        while data and (end := self._end(data)) == 0 and (more := file.read(len(data))):
            data += more  # the line is longer
            if len(data) > _MOST_LINE_BYTES:
                raise SqlError("54000", f"'{self._form.path}' has a line of more than {_MOST_LINE_BYTES} bytes")
        return data, end if data else 0

    def _end(self, data: bytes) -> int:
        """Return the number of bytes in complete lines."""
        if not self._form.is_csv:
            return data.rfind(b"\n") + 1
        copy = CopyIn(CopyFormat("csv", ",", ""), "", ())
        return len(data) - copy.skip(data)

    def _checked(self, file: BinaryIO, position: FilePosition) -> tuple[bytes, bytes]:
        """Check the checksum of a position; return the first bytes of the file, and the last bytes before the position.

        Afterwards the file is at the position.
        """
        hint = "DROP the source and CREATE it again to read the file from its beginning."
        size = file.seek(0, 2)
        if size < position.offset:
            message = f"'{self._form.path}' has {counted(size, 'byte')}, and was read up to byte {position.offset}"
            raise SqlError("55000", message, hint=hint)
        file.seek(0)
        head = file.read(min(position.offset, _MARK_BYTES))
        file.seek(max(0, position.offset - _MARK_BYTES))
        tail = file.read(min(position.offset, _MARK_BYTES))
        # Earlier versions store the checksum of the first bytes alone.
        if position.checksum not in {_checksum(position.offset, head, tail), zlib.crc32(head)}:
            raise SqlError("55000", f"'{self._form.path}' was replaced by another file", hint=hint)
        return head, tail

    def _rows(self, data: bytes, lines: int) -> tuple[list[Row], int]:
        if self._form.is_csv:
            form = CopyFormat("csv", ",", "", self._form.has_header)
            copy = CopyIn(form, str(self._form.path), self._form.columns, lines)
            return copy.feed(data), copy.lines
        texts = data.split(b"\n")[:-1]
        make = _json_row(self._form.columns)
        rows = []
        for number, text in enumerate(texts, lines + 1):
            if text.strip():
                try:
                    rows.append(make(text.decode()))
                except UnicodeDecodeError as exc:
                    raise SqlError("22021", f"{self._form.path}:{number}: the line is not UTF-8") from exc
                except SqlError as exc:
                    raise SqlError(exc.sqlstate, f"{self._form.path}:{number}: {exc.message}", hint=exc.hint) from exc
        return rows, lines + len(texts)


def _json_row(columns: Sequence[tuple[str, Type]]) -> Callable[[str], Row]:
    if tuple(columns) == WHOLE:
        return lambda text: (jsonb_of_text(text),)

    def row(text: str) -> Row:
        value = parsed_json(jsonb_of_text(text))
        if not isinstance(value, dict):
            raise SqlError("22P02", "the line is not a JSON object")
        return tuple(_datum(kind, value.get(name)) for name, kind in columns)

    return row


def _datum(kind: Type, value: JSON) -> Datum:
    """Convert a JSON value to a datum, like `->>` with a cast."""
    if value is None:
        return None
    if kind is Type.JSONB:
        return jsonb_datum(value)
    return datum_of_text(kind, value if isinstance(value, str) else jsonb_datum(value))


def _checksum(offset: int, head: bytes, tail: bytes) -> int:
    """Compute the checksum of the first `_MARK_BYTES` bytes, and of the last `_MARK_BYTES` bytes before an offset."""
    return zlib.crc32(tail, zlib.crc32(head)) if offset > _MARK_BYTES else zlib.crc32(head)
