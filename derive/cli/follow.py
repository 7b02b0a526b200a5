"""`flowctl ingest --follow`: the loop around a follower of growing files, and its messages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.inputs import format_of, is_listed, no_file
from derive.plural import counted

if TYPE_CHECKING:
    from derive.cli.console import Progress
    from derive.protocol.specs import CollectionSpec
    from derive.storage.following import Follower, FollowStep
    from derive.storage.inputs.growing_file import LineFormat
    from derive.storage.metadata.commit_signal import FileListener
    from derive.storage.store import Store

_LOOK_SECONDS = 0.5
"""Greatest interval between two looks at all files: other systems may write without a notice of the kernel."""

_BLIND_SECONDS = 0.2
"""Interval between two looks if the kernel cannot watch the folders."""

_BREATH_SECONDS = 0.1
"""Interval after a commit, so that many small writes are one commit."""

_MOST_PAUSE = 0.3
"""Greatest pause after a look, in seconds; a change in it is seen after the pause."""

_MOST_SHARE = 4
"""Ratio of the pause after a look to the duration of the look."""

_SHOWN_ROOTS = 3
"""Number of followed paths that a note names."""

_MOST_NAMES = 100_000
"""Number of names whose formats are kept in memory."""

_CONTINUES = "the next 'flowctl ingest --follow' continues after the last ingested line"


def line_formats(
    roots: Sequence[str], form: str | None, delimiter: str | None, most_bytes: int
) -> Callable[[str], LineFormat | None]:
    """Return a function that returns the format of a followed file by its path; None for a file to leave out.

    The function raises a `UsageError` for a file that cannot be followed.
    """
    from derive.storage.inputs.growing_file import LineFormat

    named = {os.path.abspath(root) for root in roots}

    @lru_cache(_MOST_NAMES)
    def form_of(name: str) -> LineFormat | None:
        from derive.errors import UsageError

        if os.path.abspath(name) not in named and not is_listed(Path(name)):
            return None
        chosen = format_of(name, form, delimiter)
        if chosen.form not in {None, "jsonl", "csv"} or name.endswith((".gz", ".zst")):
            hint = "--format jsonl reads a .json file as JSON Lines" if name.endswith(".json") else None
            raise UsageError(f"{name} cannot be followed: only JSON Lines and CSV without compression grow", hint=hint)
        return LineFormat(chosen.form == "csv", chosen.delimiter, most_bytes)

    return form_of


def require_followable(roots: Sequence[str], form_of: Callable[[str], LineFormat | None], *, until_idle: bool) -> None:
    """Check the paths of files and folders.

    Raises:
        UsageError: a path is neither file nor folder, has another format, or is missing and cannot be awaited.
    """
    from derive.cli.console import note
    from derive.errors import UsageError

    if not roots or "-" in roots:
        raise UsageError("--follow takes files and folders", hint="standard input is ingested without --follow")
    for root in roots:
        if Path(root).is_dir():
            continue
        if Path(root).exists() and not Path(root).is_file():
            raise UsageError(f"{root} cannot be followed: it is neither a file nor a folder")
        form_of(root)
        if not Path(root).exists():
            if until_idle or not Path(root).absolute().parent.is_dir():
                raise no_file(root)
            note(f"there is no file {root} yet", level="warn")


def follow(
    store: Store,
    spec: CollectionSpec,
    roots: Sequence[str],
    form_of: Callable[[str], LineFormat | None],
    *,
    until_idle: bool,
    output: str | None,
) -> None:
    """Ingest the lines of growing files until Ctrl-C, or until no complete line is left."""
    from derive.cli.console import Progress, note
    from derive.cli.foreground import stopping
    from derive.storage.following import Follower
    from derive.storage.ingest import Ingestion

    follower = Follower(store, spec, Ingestion(store, spec), roots, form_of)
    with closing(follower), Progress() as progress:
        loop = _Loop(follower, spec.name, roots, progress, output)
        if not until_idle:
            shown = ", ".join(roots[:_SHOWN_ROOTS]) + (", …" if len(roots) > _SHOWN_ROOTS else "")
            note(f"following {shown} into '{spec.name}'; {stopping()}", collection=spec.name, files=list(roots))
        try:
            loop.run(until_idle=until_idle)
        except KeyboardInterrupt:
            loop.finish()
            note(f"stopped; {_CONTINUES}")
            raise click.exceptions.Exit(130 if until_idle else 0) from None
        loop.finish()
    for name, size in sorted(follower.partial.items()):
        note(f"{name}: the last line has no end yet, and waits for it ({counted(size, 'byte')})", level="warn")
    if follower.failures:
        raise click.exceptions.Exit(1)


class _Loop:
    """Steps of a follower, and reports of them.

    Args:
        follower: the follower.
        collection: name of the collection.
        roots: paths of files and folders.
        progress: shows the number of documents.
        output: `json` to print an object for each part; None to print nothing.
    """

    def __init__(
        self, follower: Follower, collection: str, roots: Sequence[str], progress: Progress, output: str | None
    ) -> None:
        self._follower, self._collection, self._progress, self._output = follower, collection, progress, output
        self._label = roots[0] if len(roots) == 1 else f"{len(roots)} paths"
        self._documents = 0
        self._most_left: int | None = 0  # greatest number of bytes left; None after the first idle step
        self._watch = _Watch()

    def run(self, *, until_idle: bool) -> None:
        """Step until no complete line is left, or without end."""
        self._progress.show(self._label, 0)
        while True:
            self._watch.forget()
            begun = time.monotonic()
            step = self._follower.step()
            self._report(step)
            if step.is_idle and until_idle:
                return
            pause = _MOST_SHARE * (time.monotonic() - begun)
            if step.is_idle:
                time.sleep(min(pause, _MOST_PAUSE))
                self._watch.wait(self._follower.folders)
            elif not until_idle:
                time.sleep(min(pause, _BREATH_SECONDS))

    def finish(self) -> None:
        """Report the total."""
        self._progress.done(self._label, self._documents)

    def _report(self, step: FollowStep) -> None:
        import orjson

        from derive.cli.console import note, print_error

        for text in step.notes:
            note(text, level="warn")
        for error in step.errors:
            print_error(error)
        for part in step.parts:
            self._documents += part.documents
            if self._output == "json":
                loaded = {
                    "collection": self._collection,
                    "file": part.name,
                    "documents": part.documents,
                    "begin": part.begin,
                    "end": part.end,
                }
                self._progress.pause()
                click.echo(orjson.dumps(loaded).decode())
        if step.is_idle:
            self._most_left = None
        if step.parts:
            self._progress.show(self._label, self._documents, share=self._share(step))

    def _share(self, step: FollowStep) -> float | None:
        """Return the share of the lines that are ingested; None after the first lines, because files grow for ever."""
        if self._most_left is None:
            return None
        read = sum(part.end - part.begin for part in step.parts)
        self._most_left = max(self._most_left, step.left + read)
        return 1 - step.left / self._most_left if self._most_left else None


class _Watch:
    """A watch of the folders of followed files; it is renewed when other folders are followed."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._listener: FileListener | None = None

    def forget(self) -> None:
        """Discard the changes so far."""
        if self._listener is not None:
            self._listener.forget()

    def wait(self, folders: set[str]) -> None:
        """Wait for a change in a folder after the last `forget`, for a short time."""
        from derive.storage.metadata.commit_signal import WRITTEN, FileListener

        if folders != self._folders:
            self._folders = folders
            if self._listener is not None:
                self._listener.close()
            try:
                self._listener = FileListener([Path(folder) for folder in folders], WRITTEN)
            except OSError:
                self._listener = None
            return  # files may have changed before the watch
        if self._listener is None:
            time.sleep(_BLIND_SECONDS)
        else:
            self._listener.listen(_LOOK_SECONDS)
