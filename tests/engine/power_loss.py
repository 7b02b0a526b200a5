"""A disk that forgets what was not synced, for tests of what a loss of power leaves behind.

A `Recorder` notes in a log, while a process works in a folder, what POSIX promises to keep: the content of a file as it
was when the file was last synced, and the entries of a folder as they were when the folder was. Python's syncs pass by
`os.fsync`, SQLite's by a VFS. When the process is dead, a `Disk` makes the folder that is there after the power came
back: with nothing else, or with a random part of what was not synced, blocks of files and entries of folders alike.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import apsw

BLOCK = 512
"""Bytes of a file that reach the disk together."""

_PAGE = 4096
"""Bytes of a file that a log has together, if any of them was changed since the last sync."""

Entries = dict[str, tuple[int, bool]]
"""A folder's entries: inode, and whether it is a folder."""

_JOURNAL = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL


class Recorder:
    """Notes what is durable in a folder, in a process of its own.

    Args:
        root: the folder; all that is in it now is durable.
        log: where notes go; outside of the folder.
        lost_at: the power goes at this sync, before it has done anything; 0 for none.

    Attributes:
        syncs: how many there were.
    """

    def __init__(self, root: Path, log: Path, lost_at: int = 0) -> None:
        self._root = root
        self._log = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.syncs = 0
        self._lost_at = lost_at
        self._pinned: dict[int, int] = {}
        self._noted: dict[int, bytes] = {}
        self._fsync = os.fsync
        for folder, _, files in os.walk(root):
            self._note_folder(folder)
            for name in files:
                self._note_file(f"{folder}/{name}")

    def install(self) -> None:
        """Be told of every sync from now on."""
        os.fsync = os.fdatasync = self._synced  # type: ignore[assignment]  # we sync descriptors only
        self._vfs = [_Vfs(self, "unix"), _Vfs(self, "unix-none")]

    def note(self, what: Any) -> None:
        """Keep something that the process has reached, among what is durable by then."""
        self._write(("reached", what))

    def before_sync(self) -> None:
        """Be about to sync."""
        self.syncs += 1
        if self.syncs == self._lost_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def synced(self, path: str) -> None:
        """A file or a folder was synced."""
        if Path(path).is_relative_to(self._root):
            (self._note_folder if os.path.isdir(path) else self._note_file)(path)

    def _synced(self, descriptor: int) -> None:
        self.before_sync()
        self._fsync(descriptor)
        self.synced(os.readlink(f"/proc/self/fd/{descriptor}"))

    def _note_folder(self, folder: str) -> None:
        entries: Entries = {}
        for entry in os.scandir(folder):
            entries[entry.name] = self._pin(entry.path), entry.is_dir(follow_symlinks=False)
        self._write(("folder", self._pin(folder), entries))

    def _note_file(self, path: str) -> None:
        inode, content = self._pin(path), Path(path).read_bytes()
        before = self._noted.get(inode, b"")
        self._noted[inode] = content
        pages = ((begin, content[begin : begin + _PAGE]) for begin in range(0, len(content), _PAGE))
        edited = [(begin, page) for begin, page in pages if page != before[begin : begin + _PAGE]]
        self._write(("file", inode, len(content), edited))

    def _pin(self, path: str) -> int:
        """The inode of a path, which no other file can be given from now on."""
        inode = os.stat(path).st_ino
        if inode not in self._pinned:
            self._pinned[inode] = os.open(path, os.O_PATH)
        return inode

    def _write(self, record: tuple[Any, ...]) -> None:
        content = pickle.dumps(record)
        assert os.write(self._log, len(content).to_bytes(8, "little") + content) == len(content) + 8


class _Vfs(apsw.VFS):
    """One of SQLite's own, which tells of its syncs, in its place.

    Args:
        recorder: is told.
        name: of the one.
    """

    def __init__(self, recorder: Recorder, name: str) -> None:
        # SQLite looks for the one whose name files are opened by, and finds the latest: the other needs another name.
        self._own = f"{name}-itself"
        self._itself = apsw.VFS(self._own, name)
        super().__init__(name, self._own, makedefault=name == "unix")
        self._recorder = recorder

    def xOpen(self, name: Any, flags: list[int]) -> _File:  # noqa: N802 (apsw's name)
        return _File(self._recorder, self._own, name, flags)

    def xDelete(self, name: str, syncdir: bool) -> None:  # noqa: N802
        if syncdir:
            self._recorder.before_sync()
        super().xDelete(name, syncdir)
        if syncdir:
            self._recorder.synced(os.path.dirname(name))


class _File(apsw.VFSFile):
    def __init__(self, recorder: Recorder, vfs: str, name: Any, flags: list[int]) -> None:
        super().__init__(vfs, name, flags)
        self._recorder = recorder
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name
        # With the first sync of a journal that may be new, SQLite syncs its folder.
        self._is_entered = not (flags[0] & _JOURNAL and flags[0] & apsw.SQLITE_OPEN_CREATE)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._path:
            self._recorder.before_sync()
        super().xSync(flags)
        if self._path:
            self._recorder.synced(self._path)
            if not self._is_entered:
                self._recorder.synced(os.path.dirname(self._path))
                self._is_entered = True


class Disk:
    """What is in a folder once its process is dead: durable, and not.

    Args:
        root: the folder, as the process left it.
        log: the recorder's.

    Attributes:
        reached: what the process noted.
    """

    def __init__(self, root: Path, log: Path) -> None:
        self.reached: list[Any] = []
        self._top = root.stat().st_ino
        self._folders: dict[int, Entries] = {}
        self._files: dict[int, bytes] = {}
        for kind, *record in _records(log):
            if kind == "reached":
                self.reached += record
            elif kind == "folder":
                self._folders[record[0]] = record[1]
            else:
                inode, size, edited = record
                content = bytearray(self._files.get(inode, b"")[:size].ljust(size, b"\0"))
                for begin, page in edited:
                    content[begin : begin + len(page)] = page
                self._files[inode] = bytes(content)
        self._live_folders: dict[int, Entries] = {}
        self._live_files: dict[int, bytes] = {}
        for folder, names, files in os.walk(root):
            inodes = {name: os.stat(f"{folder}/{name}").st_ino for name in (*names, *files)}
            self._live_folders[os.stat(folder).st_ino] = {name: (inodes[name], name in names) for name in inodes}
            self._live_files |= {inodes[name]: Path(f"{folder}/{name}").read_bytes() for name in files}

    def restore(self, target: Path, dice: random.Random | None = None) -> None:
        """Make the folder that is there when the power is back.

        Args:
            target: what to make it as.
            dice: throws for everything that was not synced; None if nothing of it has survived.
        """
        self._restore(self._top, target, dice, {})

    def _restore(self, folder: int, target: Path, dice: random.Random | None, made: dict[int, Path]) -> None:
        target.mkdir()
        durable = self._folders.get(folder, {})
        for name, (inode, is_folder) in _some(durable, self._live_folders.get(folder, {}), dice):
            if is_folder:
                self._restore(inode, target / name, dice, made)
            elif inode in made:
                os.link(made[inode], target / name)
            else:
                made[inode] = target / name
                made[inode].write_bytes(self._content(inode, dice))

    def _content(self, inode: int, dice: random.Random | None) -> bytes:
        durable = self._files.get(inode, b"")
        live = self._live_files.get(inode, durable)
        if dice is None or live == durable:
            return durable
        size = dice.choice([len(durable), len(live)])
        chance = dice.choice([0, 0.5, 1])
        blocks = [
            (live if dice.random() < chance else durable)[begin : begin + BLOCK].ljust(BLOCK, b"\0")
            for begin in range(0, size, BLOCK)
        ]
        return b"".join(blocks)[:size]


def _some(durable: Entries, live: Entries, dice: random.Random | None) -> Iterator[tuple[str, tuple[int, bool]]]:
    """The entries of a folder that survive."""
    sides: list[Mapping[str, tuple[int, bool]]] = [durable] if dice is None else [durable, live]
    for name in sorted({name for side in sides for name in side}):
        entry = (dice.choice(sides) if dice else durable).get(name)
        if entry is not None:
            yield name, entry


def _records(log: Path) -> Iterator[tuple[Any, ...]]:
    with log.open("rb") as file:
        while size := file.read(8):
            yield pickle.loads(file.read(int.from_bytes(size, "little")))
