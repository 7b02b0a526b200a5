"""The command line of a peer: run a derivation once, or several times in the same process for its warm rate."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

Derive: TypeAlias = Callable[..., tuple[float, int]]
"""Runs a derivation, given a task, its input and an empty folder; returns seconds and the number of documents."""


def rounds_of(derive: Derive, tasks: Iterable[str], switches: Iterable[str] = ()) -> None:
    """Run the derivation of the command line, and print seconds and documents of the fastest round.

    Args:
        derive: runs a derivation.
        tasks: names of the derivations.
        switches: names of options that are keyword arguments of `derive`, and true if they are given.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=tuple(tasks))
    parser.add_argument("lines", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    for switch in switches:
        parser.add_argument(f"--{switch}", action="store_true")
    options = parser.parse_args()
    given = {switch: True for switch in switches if getattr(options, switch)}
    done = []
    for number in range(options.rounds):
        folder = options.folder / str(number)
        folder.mkdir()
        done.append(derive(options.task, options.lines, folder, **given))
    print(*min(done))
