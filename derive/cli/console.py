"""The terminal: data on standard output, all other text on standard error.

This is the only module that imports rich. Importing rich takes longer than most commands run, so text without colours
or columns is written without rich.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import orjson

from derive.cli.excerpt import describe_error, render_error
from derive.cli.table import columns_of, fit, lines_of
from derive.cli.visible import visible
from derive.document.clock import format_rfc3339
from derive.errors import FlowError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_LIVE_SECONDS, _PLAIN_SECONDS = 0.2, 10.0

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
    is_live = False
    """True while live lines are on the terminal; other text then goes above them."""


_form = _Form()


@cache
def _stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def _is_terminal() -> bool:
    return sys.stderr.isatty() or bool(os.environ.get("FORCE_COLOR"))


def _print(line: str, style: str = "") -> None:
    """Write a line to standard error, in a style if standard error is a terminal."""
    line = visible(line)
    if _form.is_live or (style and _is_terminal()):
        from rich.text import Text

        _stderr().print(Text(line, style=style))
    else:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def use_json() -> None:
    """Write everything to standard error as one JSON object per line from now on."""
    _form.is_json = True


def print_error(error: FlowError) -> None:
    """Print an error on standard error."""
    if _form.is_json:
        for description in describe_error(error):
            _print_entry("error", **description)
        return
    for line in render_error(error).split("\n"):
        style = "bold red" if line.startswith("error") else "dim" if line.startswith("  -->") else ""
        _print(line, style)


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
    told = _repeated.get(key)
    if told is None or now - told.last > _FORGET_SECONDS or _form.is_json:
        _repeated[key] = _Repeated(now, now, now + _REPEAT_SECONDS)
        if lead is not None:
            note(lead, level="warn", **fields)
        print_error(error)
        return
    told.last = now
    told.count += 1
    if now >= told.due:
        told.due = now + min(2 * (now - told.first), _REPEAT_MOST)
        about = "".join(f"{value}: " for value in fields.values())
        note(
            f"{about}{error.message} (again, {told.count:,} times in {now - told.first:,.0f} s)", level="warn", **fields
        )


def note(text: str, *, level: str = "info", **fields: Any) -> None:
    """Write a note to standard error.

    Args:
        text: the note, for people.
        level: `debug`, `info` or `warn`.
        fields: more about the note, for programs: only JSON shows them.
    """
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

    A table on a terminal leaves out columns that do not fit, and a note on standard error names them. Otherwise a table
    has all columns.

    Args:
        columns: properties of the rows, in order.
        rows: JSON values.
        output: `table` or `json`; None for a table on a terminal and JSON otherwise.
        spare: the columns that a narrow terminal can do without, the most dispensable one first.
        wide: show all columns, however wide the terminal is.
    """
    if (output or ("table" if sys.stdout.isatty() else "json")) == "json":
        for row in rows:
            sys.stdout.write(orjson.dumps(dict(row)).decode() + "\n")
        return
    from rich.cells import cell_len

    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal and not wide else None
    shown, hidden = fit(columns_of(columns, rows, cell_len), width, spare)
    header, *lines = lines_of(shown, cell_len)
    if is_terminal and "NO_COLOR" not in os.environ:
        header = f"\x1b[1m{header}\x1b[0m"
    sys.stdout.write("".join(f"{line}\n" for line in (header, *lines)))
    if hidden:
        sys.stdout.flush()
        note(f"--wide also shows {', '.join(hidden)}")


class Progress:
    """Progress of long work on standard error: live lines on a terminal, otherwise a plain line from time to time.

    Threads may show different work at the same time.

    Args:
        unit: name of the things counted.
    """

    def __init__(self, unit: str = "documents") -> None:
        self._unit = unit
        self._is_live = _is_terminal() and not _form.is_json
        self._live: Live | None = None
        self._turn = threading.Lock()
        self._begun: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._shown = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            _form.is_live = False

    def show(self, work: str, documents: int) -> None:
        """Show that the work has processed this many documents; the first call starts the work."""
        with self._turn:
            self._begun.setdefault(work, time.monotonic())
            self._counts[work] = documents
            if time.monotonic() - self._shown < (_LIVE_SECONDS if self._is_live else _PLAIN_SECONDS):
                return
            self._shown = time.monotonic()
            if self._is_live:
                self._refresh()
            elif documents:
                self._show(work)

    def done(self, work: str, documents: int) -> None:
        """Report that the work is finished, with this many documents."""
        with self._turn:
            self._counts[work] = documents
            self._show(work)
            self._forget(work)

    def stop(self, work: str) -> None:
        """Stop showing work that has ended without a result."""
        with self._turn:
            self._forget(work)

    def _forget(self, work: str) -> None:
        self._begun.pop(work, None)
        if self._live:
            self._refresh()

    def _refresh(self) -> None:
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(console=_stderr(), auto_refresh=False, transient=True)
            self._live.start()
            _form.is_live = True
        self._live.update(Text(visible("\n".join(map(self._line, self._begun)))), refresh=True)

    def _show(self, work: str) -> None:
        counted: dict[str, Any] = {self._unit: self._counts[work]}
        note(self._line(work), what=work, **counted, seconds=round(self._elapsed(work), 3))

    def _elapsed(self, work: str) -> float:
        return time.monotonic() - self._begun.get(work, time.monotonic())

    def _line(self, work: str) -> str:
        elapsed = self._elapsed(work)
        count = self._counts[work]
        rate = f"{count / elapsed:,.0f}/s" if elapsed > 0.05 else ""
        minutes, seconds = divmod(elapsed, 60)
        return f"{work:<34} {count:>12,} {self._unit}  {rate:>12}  {int(minutes):02d}:{seconds:04.1f}"
