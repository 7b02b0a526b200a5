"""How the descriptors that a process may have are shared out among clients, who logs in, and the work for clients."""

from __future__ import annotations

import resource

from derive.sql.pgwire.server import MOST_WAITING

_RESERVED = 384
"""Descriptors for work: files of collections, of databases and of indexes that threads have open at one moment."""

_MOST_DESCRIPTORS = 65_536


def raised_limit() -> int:
    """Have the process be allowed as many descriptors as may be, and return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def shares(most_connections: int, descriptors: int) -> tuple[int, int]:
    """Share descriptors out: work has `_RESERVED` of them, or half of few.

    >>> shares(400, 1024), shares(400, 256), shares(5000, 65536)
    ((400, 100), (96, 32), (5000, 100))

    Args:
        most_connections: how many clients are wanted.
        descriptors: how many there are.

    Returns:
        How many clients there may be, and how many connections that have not logged in.
    """
    room = descriptors - min(_RESERVED, descriptors // 2)
    waiting = max(1, min(MOST_WAITING, room // 4))
    return max(1, min(most_connections, room - waiting)), waiting
