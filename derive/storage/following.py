"""Following of growing files: each complete line of files and folders becomes a document once.

A file is known by its inode, and by a checksum of the content before its position. So a file continues under another
name, a truncated file begins again, and a reused inode is another file. A file that was copied or saved again at its
path has another inode and the same beginning: it continues, unless the former file still exists.

A rotated file stays open until it is deleted and read, so its last lines are ingested. After a restart, a file that was
rotated within its folder is found by its inode.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from derive.errors import DocumentError, FlowError, UsageError
from derive.protocol.specs import CollectionSpec
from derive.storage.ingest import Ingestion, LoadedPart
from derive.storage.inputs.growing_file import PIECE_BYTES, FilePart, LineFormat, is_at, next_part, opened
from derive.storage.metadata.followed import FilePosition, MovedPositionError
from derive.storage.store import Store

_COMMIT_BYTES = 4 * PIECE_BYTES
"""Number of bytes after which a commit takes no further file."""

_MOST_OPEN = 128
"""Number of files that stay open after they were read."""

_Inode: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file as it was listed.

    Attributes:
        name: its path, for messages.
        path: the absolute path that its position has.
        status: its state when it was listed.
    """

    name: str
    path: str
    status: os.stat_result

    @property
    def state(self) -> tuple[int, int]:
        """Return the size and the modification time."""
        return self.status.st_size, self.status.st_mtime_ns


_Listed: TypeAlias = dict[_Inode, _Entry]


@dataclass(slots=True)
class _File:
    """A file that is followed.

    Attributes:
        name: its last known path.
        form: its format.
        stored: its stored position; None for a file without one.
        position: the position at which the next part begins.
        seen: size and modification time at the last look after which nothing is left to ingest; None before it.
        failure: reason why its next lines cannot be ingested; empty for none.
    """

    name: str
    form: LineFormat
    stored: FilePosition | None
    position: FilePosition
    seen: tuple[int, int] | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class FollowedPart:
    """Documents that a step has ingested from one file.

    Attributes:
        name: path of the file.
        documents: number of documents.
        begin: offset of the first line, bytes.
        end: offset after the last line, bytes.
    """

    name: str
    documents: int
    begin: int
    end: int


@dataclass(slots=True)
class FollowStep:
    """The result of one step.

    Attributes:
        parts: the documents that were ingested.
        errors: new reasons why lines of files cannot be ingested.
        notes: facts about files that a reader of the log needs.
        left: size of the lines that are still to be ingested, bytes; about, because files grow.
        is_idle: whether no complete line is left.
    """

    parts: list[FollowedPart] = field(default_factory=list)
    errors: list[FlowError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: int = 0
    is_idle: bool = True


class Follower:
    """Ingests the lines of growing files into one collection.

    Args:
        store: the data folder.
        spec: the collection.
        ingestion: ingestion into the collection.
        roots: paths of files and folders; a file may be missing at first.
        form_of: function that returns the format of a file by its path; None for a file to leave out. Raises a
            `UsageError` for a file whose format cannot be followed.
    """

    def __init__(
        self,
        store: Store,
        spec: CollectionSpec,
        ingestion: Ingestion,
        roots: Sequence[str],
        form_of: Callable[[str], LineFormat | None],
    ) -> None:
        self._store, self._spec, self._ingestion = store, spec, ingestion
        self._roots, self._form_of = tuple(roots), form_of
        self._data = os.path.realpath(store.root)
        self._files: dict[_Inode, _File] = {}
        self._open: OrderedDict[_Inode, int] = OrderedDict()
        self._reported: dict[str, str] = {}
        self._left_out: set[str] = set()
        self._stored: dict[_Inode, FilePosition] = {}
        self.folders: set[str] = set()
        self._read_positions()
        self._is_first = True

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])

    @property
    def failures(self) -> list[str]:
        """Return the paths of files with lines that cannot be ingested, and of unreadable files."""
        return sorted({*(file.name for file in self._files.values() if file.failure), *self._reported})

    @property
    def partial(self) -> dict[str, int]:
        """Return the number of bytes after the last complete line, by the paths of files that have any."""
        return {
            file.name: file.seen[0] - file.position.offset
            for file in self._files.values()
            if file.seen is not None and file.seen[0] > file.position.offset and not file.failure
        }

    def step(self) -> FollowStep:
        """Ingest the next complete lines of all files, about 16 MiB, in one commit.

        Raises:
            OwnedError: another writer has become the owner of the collection.
            FencedError: the collection was truncated or dropped meanwhile.
        """
        step = FollowStep()
        listed = self._list(step)
        reads: list[tuple[_File, FilePart, _Entry]] = []
        size = 0
        files = self._files
        unread = [item for item in listed.items() if item[0] not in files or files[item[0]].seen != item[1].state]
        step.left = sum(self._left(*item) for item in unread)
        for inode, entry in sorted(unread, key=lambda item: (item[0] not in files, item[1].name)):
            part = self._next(inode, entry, listed, step)
            if part is not None:
                reads.append((self._files[inode], part, entry))
                size += part.after(None).offset - part.begin.offset
            if size >= _COMMIT_BYTES:
                break
        if reads:
            step.is_idle = False
            step.left = max(0, step.left - size)
            self._ingest(reads, step)
        self._forget_deleted(listed)
        return step

    def _ingest(self, reads: list[tuple[_File, FilePart, _Entry]], step: FollowStep) -> None:
        try:
            results = self._ingestion.load_parts([part for _, part, _ in reads])
        except MovedPositionError as exc:
            step.notes.append(f"{exc.message}; reading on from there")
            self._read_positions()
            return
        for (file, part, entry), result in zip(reads, results, strict=True):
            self._move(file, part, result, entry, step)

    def _move(self, file: _File, part: FilePart, result: LoadedPart, entry: _Entry, step: FollowStep) -> None:
        if result.after is not None:
            self._stored[result.after.device, result.after.inode] = result.after
            file.stored = file.position = result.after
            step.parts.append(FollowedPart(file.name, result.documents, part.begin.offset, result.after.offset))
        if result.error is not None:
            self._fail(file, result.error, entry, step)
        else:
            file.failure = ""

    def _fail(self, file: _File, error: DocumentError, entry: _Entry, step: FollowStep) -> None:
        """Leave the rest of a file until the file changes."""
        file.seen = entry.state
        if file.failure != error.message:
            step.errors.append(error)
        file.failure = error.message

    def _next(self, inode: _Inode, entry: _Entry, listed: _Listed, step: FollowStep) -> FilePart | None:
        """Return the next complete lines of a file; None for a file without any."""
        file = self._files.get(inode)
        try:
            descriptor = self._descriptor(inode, entry.name)
            if file is None:
                file = self._begin(inode, entry, descriptor, listed)
                if file is None:
                    os.close(self._open.pop(inode))
                    return None
                self._files[inode] = file
            file.name, file.position = entry.name, replace(file.position, path=entry.path)
            part = self._part(file, descriptor, step)
        except OSError as exc:
            self._report(entry.name, exc, step)
            return None
        except DocumentError as exc:
            if file is not None:
                self._fail(file, exc, entry, step)
            return None
        self._reported.pop(entry.name, None)
        if part is None:
            file.seen, file.failure = entry.state, ""
        return part

    def _part(self, file: _File, descriptor: int, step: FollowStep) -> FilePart | None:
        """Return the next complete lines of an open file; a truncated or rewritten file begins again."""
        part = next_part(descriptor, file.name, file.form, self._spec, (file.stored, file.position))
        if not is_at(descriptor, file.position):
            step.notes.append(f"{file.name} was truncated or rewritten, and is read from its beginning")
            file.position = FilePosition(file.position.path, file.position.device, file.position.inode)
            part = next_part(descriptor, file.name, file.form, self._spec, (file.stored, file.position))
        return part

    def _begin(self, inode: _Inode, entry: _Entry, descriptor: int, listed: _Listed) -> _File | None:
        """Return a file with the position at which its reading continues; None for a file to leave out."""
        form = self._form_or_none(entry.path)
        stored = self._stored.get(inode)
        if form is not None and stored is not None and is_at(descriptor, stored):
            return _File(entry.name, form, stored, stored)
        if form is None or self._form_or_none(entry.name) is None:
            return None  # a reused inode
        former = self._former(entry.path, listed) if stored is None else None
        if former is not None and is_at(descriptor, former):
            return _File(entry.name, form, former, replace(former, device=inode[0], inode=inode[1]))
        return _File(entry.name, form, stored, FilePosition(entry.path, *inode))

    def _former(self, path: str, listed: _Listed) -> FilePosition | None:
        """Return the latest position of another file at a path, if that file no longer exists."""
        positions = [position for position in self._stored.values() if position.path == path and position.offset]
        former = max(positions, key=lambda position: position.at, default=None)
        if former is None:
            return None
        inode = former.device, former.inode
        is_gone = inode not in listed or listed[inode].status.st_nlink == 0
        return former if is_gone else None

    def _form_or_none(self, name: str) -> LineFormat | None:
        try:
            return self._form_of(name)
        except UsageError:
            return None

    def _list(self, step: FollowStep) -> _Listed:
        """Return all files by their inodes, also open files that no longer have their path."""
        listed: _Listed = {}
        self.folders = set()
        for root in self._roots:
            for entry in self._within(root, step) if os.path.isdir(root) else self._alone(root, step):
                if stat.S_ISREG(entry.status.st_mode):
                    listed.setdefault(_inode(entry.status), entry)
        for inode, descriptor in self._open.items():
            if inode not in listed and inode in self._files:
                file = self._files[inode]
                listed[inode] = _Entry(file.name, file.position.path, os.fstat(descriptor))
        self._is_first = False
        return listed

    def _alone(self, root: str, step: FollowStep) -> Iterator[_Entry]:
        """Yield a file; at first also the files of its folder that had its path before."""
        path = os.path.abspath(root)
        folders = {os.path.dirname(path), os.path.dirname(os.path.realpath(root))}
        self.folders |= folders
        status = self._status(root, step)
        if status is not None:
            yield _Entry(root, path, status)
        if self._is_first:
            inodes = {inode for inode, position in self._stored.items() if position.path == path}
            for folder in sorted(folders) if inodes else ():
                for name, other in self._contents(folder, step):
                    inode = _inode(other)
                    if inode in inodes and self._continues(inode, name):
                        yield _Entry(name, path, other)

    def _within(self, folder: str, step: FollowStep) -> Iterator[_Entry]:
        """Yield the files of a folder and its folders."""
        self.folders.add(folder)
        absolute = os.path.abspath(folder)
        for name, status in self._contents(folder, step):
            if stat.S_ISDIR(status.st_mode):
                if not os.path.islink(name) and os.path.realpath(name) != self._data:
                    yield from self._within(name, step)
                continue
            inode = _inode(status)
            position = self._position(inode)
            if self._is_followed(name, step, quiet=position is not None):
                yield _Entry(name, os.path.join(absolute, os.path.basename(name)), status)
            elif position is not None and self._continues(inode, name):
                yield _Entry(name, position.path, status)

    def _left(self, inode: _Inode, entry: _Entry) -> int:
        """Return the number of bytes of a file after its position."""
        position = self._position(inode)
        return max(0, entry.status.st_size - (position.offset if position is not None else 0))

    def _position(self, inode: _Inode) -> FilePosition | None:
        return self._files[inode].position if inode in self._files else self._stored.get(inode)

    def _continues(self, inode: _Inode, name: str) -> bool:
        """Return true if a file under another name has the content before the position of its inode."""
        position = self._position(inode)
        try:
            is_same = position is not None and is_at(self._descriptor(inode, name), position)
        except OSError:
            return False
        if not is_same and inode not in self._files:
            os.close(self._open.pop(inode))
        return is_same

    def _contents(self, folder: str, step: FollowStep) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the entries of a folder that are not hidden, sorted by their names."""
        try:
            names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
        except OSError as exc:
            self._report(folder, exc, step)
            return
        self._reported.pop(folder, None)
        for name in names:
            path = os.path.join(folder, name)
            status = self._status(path, step)
            if status is not None:
                yield path, status

    def _is_followed(self, name: str, step: FollowStep, *, quiet: bool) -> bool:
        try:
            return self._form_of(name) is not None
        except UsageError as exc:
            if not quiet and name not in self._left_out:
                self._left_out.add(name)
                step.notes.append(f"{exc.message}{f' ({exc.hint})' if exc.hint else ''}")
            return False

    def _status(self, name: str, step: FollowStep) -> os.stat_result | None:
        try:
            return os.stat(name)
        except FileNotFoundError:
            return None  # deleted meanwhile, or a link without a target
        except OSError as exc:
            self._report(name, exc, step)
            return None

    def _report(self, name: str, exc: OSError, step: FollowStep) -> None:
        """Report once that a file or folder cannot be read."""
        if isinstance(exc, FileNotFoundError):
            return
        reason = exc.strerror or str(exc)
        if self._reported.get(name) != reason:
            step.errors.append(UsageError(f"cannot read {name}: {reason}"))
        self._reported[name] = reason

    def _descriptor(self, inode: _Inode, name: str) -> int:
        """Return the descriptor of a file, which stays open for the next parts."""
        if inode not in self._open:
            descriptor = opened(name)
            if _inode(os.fstat(descriptor)) != inode:  # replaced since the folder was listed
                os.close(descriptor)
                raise FileNotFoundError(name)
            self._open[inode] = descriptor
        self._open.move_to_end(inode)
        while len(self._open) > _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return self._open[inode]

    def _forget_deleted(self, listed: _Listed) -> None:
        """Forget files that are deleted and read to their end; their positions stay stored."""
        for inode, file in list(self._files.items()):
            entry = listed.get(inode)
            if entry is None or (entry.status.st_nlink == 0 and file.seen == entry.state):
                del self._files[inode]
                if inode in self._open:
                    os.close(self._open.pop(inode))

    def _read_positions(self) -> None:
        """Read the stored positions, at which all files continue."""
        self._stored = {
            (position.device, position.inode): position for _, position in self._store.positions(self._spec.name)
        }
        for inode, file in self._files.items():
            file.stored = self._stored.get(inode)
            file.position = file.stored or FilePosition(file.position.path, *inode)
            file.seen = None


def _inode(status: os.stat_result) -> _Inode:
    """Return the numbers of a file on its device, as signed numbers of 64 bits."""
    return (status.st_dev + (1 << 63)) % (1 << 64) - (1 << 63), (status.st_ino + (1 << 63)) % (1 << 64) - (1 << 63)
