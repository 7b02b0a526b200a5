"""The terminal: data on standard output, all other text on standard error; tables, and errors.

The text of a document, a lambda or an endpoint may contain escape sequences, with which a terminal hides lines, renames
windows or fills the clipboard. All commands that print such text for people use this module; JSON and raw data stay
unchanged.

A name or number that continues on the next line is hard to read and copy, so a table that is too wide leaves out whole
columns.

This is the only module that imports rich. The import of rich takes longer than most commands, so text without colours
or columns is written without rich.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import combining, east_asian_width

import orjson

from derive.cli.folding import cells, folded, folded_hint
from derive.cli.foreground import is_in_foreground
from derive.cli.pasting import pasteable
from derive.cli.pipes import discard
from derive.document.clock import format_rfc3339
from derive.errors import CatalogError, FlowError, SqlError, ViewError
from derive.plural import counted, plural
from derive.position import Position
from derive.protocol.secrets import hide_in_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from derive.errors import Fact, Issue

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"  # text direction, line separators
)
_SHORT = {"\r": "\\r", "\n": "\\n", "\b": "\\b", "\f": "\\f"}


def visible(text: str) -> str:
    r"""Return a text with each control character as an escape, except line ends and tabs.

    >>> print(visible("a\x1b[2Jb\u202ec\rd"))
    a\x1b[2Jb\u202ec\rd
    """
    return _CONTROLS.sub(_escape, text)


def visible_line(text: str) -> str:
    r"""Return a text with each control character as an escape, including line ends.

    >>> print(visible_line("a\nb"))
    a\nb
    """
    return visible(text).replace("\n", "\\n")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A shown column: its name, the text of each cell, and the alignment of both."""

    name: str
    cells: tuple[str, ...]
    is_numeric: bool
    width: int


def columns_of(names: Sequence[str], rows: Sequence[Mapping[str, Any]], length: Callable[[str], int]) -> list[Column]:
    """Return the columns of rows.

    Args:
        names: the properties of the rows that become columns, in order.
        rows: JSON values.
        length: returns the number of columns of a terminal that a text needs.
    """
    columns = []
    for name in names:
        kinds = {type(row[name]) for row in rows} - {type(None)}
        texts = tuple(_cell(row[name]) for row in rows)
        width = max(map(length, (name, *texts)))
        columns.append(Column(name, texts, bool(kinds) and kinds <= {int, float}, width))
    return columns


def width_of(columns: Sequence[Column]) -> int:
    """Return the width of a table in columns of a terminal."""
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def fit(columns: Sequence[Column], width: int | None, spare: Sequence[str]) -> tuple[list[Column], list[str]]:
    """Leave out columns until the other columns fit.

    Args:
        columns: all columns, in order.
        width: number of columns of the terminal; None for no limit.
        spare: the columns that may be left out, in this order.

    Returns:
        The columns to show, and the names of the others, both in the order of `columns`. Lines may be longer than the
            terminal if the columns that are not in `spare` do not fit.
    """
    hidden: set[str] = set()
    for name in spare:
        if width is None or width_of([column for column in columns if column.name not in hidden]) <= width:
            break
        hidden.add(name)
    return (
        [column for column in columns if column.name not in hidden],
        [column.name for column in columns if column.name in hidden],
    )


def lines_of(columns: Sequence[Column], length: Callable[[str], int]) -> list[str]:
    """Return the header and a line for each row."""
    texts = zip(*((column.name, *column.cells) for column in columns), strict=True)
    return [_line(columns, row, length) for row in texts]


def records_of(columns: Sequence[Column], length: Callable[[str], int], width: int | None = None) -> list[str]:
    """Return a line for each cell: the records of a table that is wider than the terminal, with empty lines between.

    A cell that does not fit beside its name has lines of its own, which end between words.
    """
    names = max((length(column.name) for column in columns), default=0)
    lines: list[str] = []
    for record in zip(*(column.cells for column in columns), strict=True):
        lines += [""] if lines else []
        for column, cell in zip(columns, record, strict=True):
            if width is not None and names + _GAP + length(cell) > width:
                lines += [column.name, *folded(cell, width, " " * _GAP, " " * _GAP)]
            else:
                lines.append(f"{column.name}{' ' * (names - length(column.name) + _GAP)}{cell}".rstrip())
    return lines


def _line(columns: Sequence[Column], row: Sequence[str], length: Callable[[str], int]) -> str:
    padded = []
    for column, cell in zip(columns, row, strict=True):
        blank = " " * (column.width - length(cell))
        padded.append(blank + cell if column.is_numeric else cell + blank)
    return (" " * _GAP).join(padded).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return visible_line(", ".join(map(str, value)))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,}" if is_number else visible_line(str(value))


_CONFIGURATIONS = (".yaml", ".yml", ".json")
"""Suffixes of files that may contain passwords."""

_BEFORE, _BEHIND = 80, 120
"""Characters of a long line shown before and after the column."""

_LEAST_ROOM = 20

_MOST_MARGIN = 12
"""Characters in which an excerpt has the number of its line, and a bar."""


def render_error(error: FlowError, width: int | None = None) -> str:
    """Return an error as lines of text.

    Args:
        error: the error.
        width: number of columns of the terminal, which excerpts and hints have to fit; None for no terminal.
    """
    if isinstance(error, CatalogError):
        count = len(error.issues)
        issues = [
            _render(f"error[{issue.code}]", issue.message, issue.position, issue.hint, width) for issue in error.issues
        ]
        return "\n\n".join([*issues, counted(count, "error")])
    if isinstance(error, ViewError):
        return _render(f"error[{error.sqlstate}]", error.message, None, error.remedy, width)
    if isinstance(error, SqlError):
        lines = _render(f"error[{error.sqlstate}]", error.message, error.position, error.hint, width)
        return "\n".join([lines, *_noted(error.detail, width)]) if error.detail else lines
    return _render("error", error.title, error.position, error.hint, width, error.facts)


def describe_error(error: FlowError) -> list[dict[str, Any]]:
    """Return an error as JSON objects, one for each issue of a catalog; unknown properties are null."""
    if isinstance(error, CatalogError):
        return [{"code": issue.code, **_describe(issue.message, issue.position, issue.hint)} for issue in error.issues]
    if isinstance(error, ViewError):
        return [{"code": error.sqlstate, **_describe(error.message, None, error.remedy)}]
    if isinstance(error, SqlError):
        described = _describe(error.message, error.position, error.hint)
        return [{"code": error.sqlstate, **described, "detail": error.detail}]
    return [_describe(error.message, error.position, error.hint)]


def _describe(message: str, position: Position | None, hint: str | None) -> dict[str, Any]:
    return {
        "message": message,
        "file": position.file if position else None,
        "line": position.line if position else None,
        "column": position.column if position else None,
        "length": position.length if position else None,
        "hint": pasteable(hint) if hint else hint,
    }


def _render(
    label: str,
    message: str,
    position: Position | None,
    hint: str | None,
    width: int | None,
    facts: Sequence[Fact] = (),
) -> str:
    hint = pasteable(hint) if hint else hint
    lines, note = [f"{label}: {message}", *(f"  {fact.label}: {fact.value}" for fact in facts)], hint
    if position is not None:
        lines.append(f"  --> {position}")
        line = _source_line(position)
        if line is not None:
            number = str(position.line)
            text, column = _window(line, position.column, None if width is None else width - len(number) - 3)
            room = max(1, min(position.length, len(text) - column + 1))
            indent = "".join(map(_blank, text[: column - 1])) + " " * (column - 1 - len(text))
            carets = f"{' ' * len(number)} | {indent}{'^' * room}"
            if hint and (width is None or len(carets) + 1 + len(hint) <= width):
                carets, note = f"{carets} {hint}", None
            lines += [f"{number} | {text}", carets]
    return "\n".join([*lines, *_noted(note, width)] if note else lines)


def _noted(text: str, width: int | None) -> list[str]:
    """Return the lines of a hint; ways that do not fit beside one another have lines of their own."""
    if width is None or cells(text) + 4 <= width:
        return [f"  = {text}"]
    return list(chain.from_iterable(folded_hint(way, width, "  = ", "    ") for way in text.split("; ")))


def _blank(character: str) -> str:
    """Return blanks as wide as a character, so that carets are below the marked text; a tab stays a tab."""
    if character == "\t":
        return character
    return "" if combining(character) else "  " if east_asian_width(character) in "WF" else " "


def _window(line: str, column: int, room: int | None) -> tuple[str, int]:
    """Return the part of a line around a column, and the column's number in that part.

    Args:
        line: the line.
        column: the column, from 1.
        room: largest length of the part; None for the default.
    """
    before, behind = _BEFORE, _BEHIND
    if room is not None and room < before + behind:
        room = max(room, _LEAST_ROOM)
        before = (room - 2) * _BEFORE // (_BEFORE + _BEHIND)
        behind = room - 2 - before
    if len(line) <= before + behind:
        return line, column
    begin, end = max(0, column - before), column + behind
    ellipsis = "…" if begin else ""
    return f"{ellipsis}{line[begin:end]}{'…' if end < len(line) else ''}", column - begin + len(ellipsis)


def _source_line(position: Position) -> str | None:
    if position.text is not None:
        return position.text
    try:
        lines = Path(position.file).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return None
    if position.line > len(lines):
        return None
    line = lines[position.line - 1].rstrip()
    return hide_in_line(line) if position.file.lower().endswith(_CONFIGURATIONS) else line


_LIVE_SECONDS, _PLAIN_SECONDS, _TICK_SECONDS = 0.2, 10.0, 1.0

_LEAST_RATED, _LEAST_ESTIMATED = 0.05, 1.0
"""Seconds after which a rate, and the time that is left, are known well enough."""

_NAME_WIDTH, _LEAST_NAME = 34, 12
"""Width of the column of names, and its least width; a terminal without room for the least width shows no rates."""

_REPEAT_SECONDS, _REPEAT_MOST, _FORGET_SECONDS = 60.0, 3600.0, 120.0


@dataclass(slots=True)
class _Repeated:
    """A printed error: times of the first and last occurrence, and the time of the next report."""

    first: float
    last: float
    due: float
    count: int = 0


_repeated: dict[tuple[Any, ...], _Repeated] = {}


class _Form:
    is_json = False
    is_quiet = False
    live: Live | None = None
    """Live lines on the terminal; other text is written above them."""


_form = _Form()

_writing = threading.RLock()
"""Held while text is written to standard error, or live lines are drawn."""


@cache
def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def _is_terminal() -> bool:
    return sys.stderr.isatty() or bool(os.environ.get("FORCE_COLOR"))


def _can_draw() -> bool:
    """Return whether live lines can be drawn now: not by a background job, whose terminal others use, too."""
    return is_in_foreground(sys.stderr) if sys.stderr.isatty() else _is_terminal()


def _stop_live() -> None:
    """Remove the live lines; those of a process that is now in the background stay, and others write below them."""
    live, _form.live = _form.live, None
    if live is None:
        return
    is_left = live.console.quiet = not _can_draw()
    try:
        live.stop()
    finally:
        live.console.quiet = False
    if is_left:
        live.console.show_cursor(show=True)


def is_interactive() -> bool:
    """Return whether a person can be asked: standard input and standard error are terminals, and text is not JSON."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not _form.is_json


def _print(line: str, style: str = "") -> None:
    """Write a line to standard error, in a style if standard error is a terminal."""
    line = _wrapped(visible(line))
    style = "" if "NO_COLOR" in os.environ else style
    with _writing, _work_first():
        if not _can_draw():
            _stop_live()
        if _form.live or (style and _is_terminal()):
            from rich.text import Text

            _stderr().print(Text(line, style=style))
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def _wrapped(text: str) -> str:
    """Return lines that end between words at the width of a terminal; an excerpt stays as it is."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    if width is None or cells(text) <= width or " | " in text[:_MOST_MARGIN]:
        return text
    return "\n".join(_fitted_line(line, width, _GAP if line.startswith(" ") else 0) for line in text.split("\n"))


def fitted(text: str) -> str:
    """Return text for standard output; on a narrow terminal, its lines end between words."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(_fitted_line(line, width, _GAP) for line in text.split("\n"))


def _fitted_line(line: str, width: int, hanging: int) -> str:
    """Return lines that fit; all but the first are indented more than the line, by some blanks.

    A command at the end of the line has lines of its own, which a shell accepts.
    """
    if cells(line) <= width:
        return line
    margin = " " * (len(line) - len(line.lstrip()))
    _, colon, command = line.partition(": flowctl ")
    if colon and ";" not in command and not command.endswith(")"):
        return "\n".join(folded_hint(line.strip(), width, margin, margin + " " * (hanging or _GAP)))
    return "\n".join(folded(line.strip(), width, margin, margin + " " * hanging))


@contextmanager
def _work_first() -> Iterator[None]:
    """Discard standard error if it cannot be written, because a closed pipe or a full disk must not stop the work."""
    try:
        yield
    except OSError:
        discard(sys.stderr)


def use_json() -> None:
    """Write everything to standard error as one JSON object per line from now on."""
    _form.is_json = True


def use_quiet() -> None:
    """Write only warnings and errors to standard error from now on: no progress and no notes."""
    _form.is_quiet = True


def is_quiet() -> bool:
    """Return whether only warnings and errors are wanted."""
    return _form.is_quiet


def print_error(error: FlowError) -> None:
    """Print an error on standard error."""
    if _form.is_json:
        for description in describe_error(error):
            _print_entry("error", **description)
        return
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    for line in render_error(error, width).split("\n"):
        style = "bold red" if line.startswith("error") else "dim" if line.startswith("  -->") else ""
        _print(line, style)


def print_warning(issue: Issue) -> None:
    """Print a warning about a catalog on standard error, with its place."""
    if _form.is_json:
        _print_entry("warn", code=issue.code, **_describe(issue.message, issue.position, issue.hint))
        return
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    for line in _render(f"warning[{issue.code}]", issue.message, issue.position, issue.hint, width).split("\n"):
        style = "bold yellow" if line.startswith("warning") else "dim" if line.startswith("  -->") else ""
        _print(line, style)


@cache
def print_warning_once(issue: Issue) -> None:
    """Print a warning about a catalog unless this process has printed it."""
    print_warning(issue)


def print_usage_error(text: str, message: str) -> None:
    """Print the error of a wrong command line on standard error.

    Args:
        text: the usage of the command, and the message, for people.
        message: the message, for programs.
    """
    if _form.is_json:
        _print_entry("error", **_describe(message, None, None))
    else:
        _print(text)


def print_repeated(error: FlowError, lead: str | None = None, **fields: Any) -> None:
    """Print an error that may repeat, such as an error of an endpoint that cannot be reached.

    The first occurrence is printed in full. Repetitions print one line after a minute, then one line at growing
    intervals of at most an hour. As JSON, each repetition is an entry.

    Args:
        error: the error.
        lead: a note to print before the error.
        fields: more about the note, for programs; they also distinguish one repeated error from another.
    """
    key = (lead, error.message, *sorted(fields.items()))
    now = time.monotonic()
    repeated = _repeated.get(key)
    if repeated is None or now - repeated.last > _FORGET_SECONDS or _form.is_json:
        _repeated[key] = _Repeated(now, now, now + _REPEAT_SECONDS)
        if lead is not None:
            note(lead, level="warn", **fields)
        print_error(error)
        return
    repeated.last = now
    repeated.count += 1
    if now >= repeated.due:
        repeated.due = now + min(2 * (now - repeated.first), _REPEAT_MOST)
        about = "".join(f"{value}: " for value in fields.values())
        often = f"{counted(repeated.count, 'time')} in {now - repeated.first:,.0f} s"
        note(f"{about}{error.message} (again, {often})", level="warn", **fields)


def note(text: str, *, level: str = "info", **fields: Any) -> None:
    """Write a note to standard error.

    Args:
        text: the note, for people.
        level: `debug`, `info` or `warn`.
        fields: more about the note, for programs: only JSON shows them.
    """
    if _form.is_quiet and level == "info":
        return
    text = pasteable(text)
    if _form.is_json:
        _print_entry(level, message=text, **fields)
    else:
        _print(text)


def log_decisions() -> None:
    """Write a note for each decision that a module of `derive` logs, with the module's name."""
    import logging

    class NoteHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(f"{record.name.removeprefix('derive.')}: {record.getMessage()}", level=record.levelname.lower())

    logger = logging.getLogger("derive")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(NoteHandler())
    logger.propagate = False


def _print_entry(level: str, **fields: Any) -> None:
    entry = {"at": format_rfc3339(time.time_ns() // 1000), "level": level, **fields}
    with _work_first():
        sys.stderr.write(orjson.dumps(entry).decode() + "\n")
        sys.stderr.flush()


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    output: str | None,
    *,
    spare: Sequence[str] = (),
    wide: bool = False,
) -> None:
    """Print rows on standard output: as a table, or as one JSON object per line.

    A table on a terminal leaves out columns that do not fit, and a note on standard error names them. If the
    others are still too wide, each row becomes a record with a line for each column. Elsewhere a table has all columns.

    Args:
        columns: properties of the rows, in order.
        rows: JSON values.
        output: `table` or `json`; None for a table on a terminal and JSON otherwise.
        spare: the columns that a narrow terminal can leave out, in this order.
        wide: whether to show all columns: as records if they do not fit.
    """
    if (output or ("table" if sys.stdout.isatty() else "json")) == "json":
        for row in rows:
            sys.stdout.write(orjson.dumps(dict(row)).decode() + "\n")
        return
    from rich.cells import cell_len

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    table = columns_of(columns, rows, cell_len)
    shown, hidden = fit(table, None if wide else width, spare)
    if width is not None and rows and width_of(shown) > width:
        sys.stdout.write("".join(f"{line}\n" for line in records_of(table, cell_len, width)))
        return
    header, *lines = lines_of(shown, cell_len)
    if is_terminal and "NO_COLOR" not in os.environ:
        header = f"\x1b[1m{header}\x1b[0m"
    sys.stdout.write("".join(f"{line}\n" for line in (header, *lines)))
    if hidden:
        sys.stdout.flush()
        text = f"--wide also shows {', '.join(hidden)}"
        note("\n".join(textwrap.wrap(text, width or len(text), subsequent_indent="  ")))


@dataclass(slots=True)
class _Work:
    """Work in progress.

    Attributes:
        begun: time of its start, monotonic seconds.
        done: number of things that are done.
        total: number of things in all; None if unknown.
        before: number of things that were done before this part of the work.
        share: share of the work that is done, or of the present thing if `total` is known, from 0 to 1; None if
            unknown.
    """

    begun: float
    done: int = 0
    total: int | None = None
    before: int = 0
    share: float | None = None

    @property
    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.begun

    def texts(self, noun: str) -> tuple[str, str, str]:
        """Return the amount, the rate, and the time that is left; if that time is unknown, the time since the start."""
        elapsed, share = self.elapsed, self.share
        amount = f"{self.before + self.done:>12,} {noun if self.before + self.done == 1 else plural(noun)}"
        if self.total == 1:
            amount = "running" if share is None or share == 1 else f"{100 * share:>3.0f} %"
        elif self.total is not None and self.done <= self.total:
            everything, done = self.before + self.total, self.done + (share or 0)
            share = done / self.total if self.total else None
            percent = 100 * (self.before + done) // everything if everything else 100
            amount = f"{percent:>3.0f} % of {counted(everything, noun)}"
        elif share is not None:
            amount += f" {100 * share:>3.0f} %"
        rate = f"{self.done / elapsed:,.0f}/s" if elapsed > _LEAST_RATED and self.done >= elapsed else ""
        if share and share < 1 and elapsed > _LEAST_ESTIMATED:
            return amount, rate, f"{_duration(elapsed * (1 - share) / share)} left"
        minutes, seconds = divmod(elapsed, 60)
        return amount, rate, f"{int(minutes)}:{seconds:04.1f}"


def _duration(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds.

    >>> _duration(59.5), _duration(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Progress of long work on standard error: live lines on a terminal, otherwise a plain line from time to time.

    A background job of a shell draws no live lines. A live line fits the terminal. Threads may show different work at
    the same time. A command that writes data to the same terminal calls `pause` before.

    Args:
        noun: the counted thing, such as `document`.
    """

    def __init__(self, noun: str = "document") -> None:
        self._noun = noun
        self._is_live = _is_terminal() and not _form.is_json and not _form.is_quiet
        self._turn = threading.Lock()
        self._works: dict[str, _Work] = {}
        self._shown = time.monotonic()
        self._over: threading.Event | None = None  # ends the ticks

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Remove the live lines, before other text is written to the terminal; the next call of `show` adds them."""
        with self._turn:
            if self._over is not None:
                self._over.set()
                self._over = None
            with _writing, _work_first():
                _stop_live()

    def show(
        self, work: str, done: int, total: int | None = None, *, before: int = 0, share: float | None = None
    ) -> None:
        """Show the state of work; the first call starts the work.

        Args:
            work: name of the work.
            done: number of things that are done.
            total: number of things in all, if it is known.
            before: number of things that earlier parts of the work have done.
            share: share of the work that is done, if it is known; with `total`, the share of the present thing.
        """
        with self._turn:
            self._begin_ticks()
            state = self._works.setdefault(work, _Work(time.monotonic()))
            state.done, state.total, state.before, state.share = done, total, before, share
            elapsed = time.monotonic() - self._shown
            if elapsed < _LIVE_SECONDS:
                return
            draws = self._is_live and _can_draw()
            if not draws and elapsed < _PLAIN_SECONDS:
                return
            self._shown = time.monotonic()
            if draws:
                self._refresh()
            elif done:
                self._print(work, state)

    def done(self, work: str, done: int) -> None:
        """Report that the work is finished, and the number of things that it has processed."""
        with self._turn:
            state = self._works.get(work)
            self._print(work, _Work(state.begun if state else time.monotonic(), done))
            self._forget(work)

    def stop(self, work: str) -> None:
        """Stop showing work that has ended without a result."""
        with self._turn:
            self._forget(work)

    def _begin_ticks(self) -> None:
        """Show the passing time on the live lines, because one step of the work may take long."""
        if self._is_live and self._over is None:
            self._over = threading.Event()
            threading.Thread(target=self._tick, args=(self._over,), name="progress", daemon=True).start()

    def _tick(self, over: threading.Event) -> None:
        while not over.wait(_TICK_SECONDS):
            with self._turn:
                if self._works and not over.is_set():
                    self._refresh()

    def _forget(self, work: str) -> None:
        self._works.pop(work, None)
        if _form.live:
            self._refresh()

    def _refresh(self) -> None:
        from rich.live import Live
        from rich.text import Text

        width = shutil.get_terminal_size().columns
        lines = [self._line(visible_line(work), state, width) for work, state in self._works.items()]
        with _writing, _work_first():
            if not _can_draw():
                _stop_live()
                return
            console = _stderr()
            console.width = width  # otherwise the value of COLUMNS at the first use stays
            if _form.live is None:
                # Data may go to a file, and rich would redirect them to the terminal.
                _form.live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
                _form.live.start()
            _form.live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    def _print(self, work: str, state: _Work) -> None:
        counts: dict[str, Any] = {plural(self._noun): state.before + state.done}
        if state.total is not None:
            counts["total"] = state.before + state.total
        line = self._line(work, state, None)
        if _is_terminal() and cells(line) > (width := shutil.get_terminal_size().columns):
            line = f"{work}\n{self._line('', state, width)}"
        note(line, what=work, **counts, seconds=round(state.elapsed, 3))

    def _line(self, work: str, state: _Work, width: int | None) -> str:
        """Return the line of some work; the beginning of a name that is too long for the terminal is left out."""
        amount, rate, clock = state.texts(self._noun)
        texts: tuple[str, ...] = (amount, f"{rate:>12}", f"{clock:>7}")
        room = _NAME_WIDTH
        while width is not None:
            room = width - sum(len(text) + _GAP for text in texts) - 1
            if room >= min(len(work), _LEAST_NAME) or len(texts) == 1:
                break
            texts = texts[:1] if len(texts) == 2 else (texts[0].lstrip(), texts[2].lstrip())
            # a narrow terminal shows no rate, and a very narrow terminal no time
        room = max(room, 1)
        if width is not None and len(work) > room:
            work = f"…{work[len(work) - room + 1 :]}"
        return f"{work:<{min(room, _NAME_WIDTH)}} {(' ' * _GAP).join(texts)}".rstrip()
