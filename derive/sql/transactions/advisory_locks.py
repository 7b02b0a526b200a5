"""Advisory locks: locks of sessions on numbers, whose meaning the client defines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from derive.errors import SqlError

Key: TypeAlias = tuple[int, ...]
"""One number or two numbers; the two kinds of keys never conflict."""


@dataclass(slots=True)
class _Hold:
    """A lock of an owner on a key; `count` is the number of unlocks that release it."""

    owner: object
    is_shared: bool
    is_of_transaction: bool
    count: int = 1

    def is_like(self, other: _Hold) -> bool:
        """Return whether two holds are the same lock, acquired several times."""
        kinds = (self.is_shared, self.is_of_transaction) == (other.is_shared, other.is_of_transaction)
        return kinds and self.owner is other.owner

    def waits_for(self, other: _Hold) -> bool:
        """Return whether this lock conflicts with a lock of another owner."""
        return self.owner is not other.owner and not (self.is_shared and other.is_shared)


@dataclass(slots=True, eq=False)
class _Request:
    """A waiting lock request."""

    hold: _Hold
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AdvisoryLocks:
    """Locks of all sessions of a process, in one event loop, granted in the order of requests."""

    def __init__(self) -> None:
        self._held: dict[Key, list[_Hold]] = {}
        self._requests: dict[Key, list[_Request]] = {}

    def try_lock(self, owner: object, key: Key, *, is_shared: bool, is_of_transaction: bool) -> bool:
        """Acquire a lock without waiting; return whether it was acquired."""
        hold = _Hold(owner, is_shared, is_of_transaction)
        if self._is_hindered(key, hold):
            return False
        self._give(key, hold)
        return True

    async def lock(self, owner: object, key: Key, *, is_shared: bool, is_of_transaction: bool) -> None:
        """Acquire a lock; wait for conflicting locks and for earlier requests.

        Raises:
            SqlError: the request would deadlock (40P01).
        """
        hold = _Hold(owner, is_shared, is_of_transaction)
        requests = self._requests.setdefault(key, [])
        has_some = any(other.owner is owner for other in self._held.get(key, []))
        request = _Request(hold)
        requests.insert(0 if has_some else len(requests), request)
        self._grant(key)
        try:
            if not request.granted.done() and owner in self._waited_for(owner, set()):
                raise SqlError("40P01", "deadlock detected", hint="Take the locks in the same order in all sessions.")
            await request.granted
        except BaseException:
            if request in requests:
                requests.remove(request)
                self._grant(key)
            else:
                self.unlock(owner, key, is_shared=is_shared, is_of_transaction=is_of_transaction)
            raise

    def unlock(self, owner: object, key: Key, *, is_shared: bool, is_of_transaction: bool = False) -> bool:
        """Release a lock once; return whether it was held."""
        desired = _Hold(owner, is_shared, is_of_transaction)
        for hold in self._held.get(key, []):
            if hold.is_like(desired):
                hold.count -= 1
                if not hold.count:
                    self._held[key].remove(hold)
                    self._grant(key)
                return True
        return False

    def release(self, owner: object, *, is_of_transaction: bool) -> None:
        """Release all transaction locks of an owner, or all session locks."""
        for key, holds in list(self._held.items()):
            kept = [hold for hold in holds if hold.owner is not owner or hold.is_of_transaction != is_of_transaction]
            if len(kept) < len(holds):
                self._held[key] = kept
                self._grant(key)

    def _give(self, key: Key, hold: _Hold) -> None:
        for other in self._held.setdefault(key, []):
            if other.is_like(hold):
                other.count += 1
                return
        self._held[key].append(hold)

    def _grant(self, key: Key) -> None:
        """Grant a key to the waiting requests, in their order, up to the first request that conflicts with a lock."""
        requests = self._requests.get(key, [])
        while requests and not self._is_hindered(key, requests[0].hold):
            request = requests.pop(0)
            self._give(key, request.hold)
            request.granted.set_result(None)
        for kept in (self._held, self._requests):
            if not kept.get(key, True):
                del kept[key]

    def _is_hindered(self, key: Key, desired: _Hold) -> bool:
        return any(desired.waits_for(hold) for hold in self._held.get(key, []))

    def _waited_for(self, owner: object, passed: set[int]) -> Iterator[object]:
        """Return the owners for which an owner waits, directly or through other owners."""
        for key, requests in list(self._requests.items()):
            place = next((at for at, request in enumerate(requests) if request.hold.owner is owner), None)
            if place is None:
                continue
            desired = requests[place].hold
            before = [hold for hold in self._held.get(key, []) if desired.waits_for(hold)]
            for hold in (*before, *(request.hold for request in requests[:place])):
                yield hold.owner
                if id(hold.owner) not in passed:
                    passed.add(id(hold.owner))
                    yield from self._waited_for(hold.owner, passed)
