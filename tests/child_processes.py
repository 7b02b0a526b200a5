"""Child processes of a process, read from /proc."""

from contextlib import suppress
from pathlib import Path


def children_of(process: int) -> dict[int, list[str]]:
    """Return the command lines of the living children of a process, by process id.

    The parent is read from each process: the lists of children by thread lose a child for a moment when the thread that
    started it ends. A process that ends during the reading is left out.
    """
    children: dict[int, list[str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == process and state != "Z":
                children[int(folder.name)] = (folder / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
    return children
