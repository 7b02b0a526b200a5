"""A model of the protocol by which a shard's state travels, and a search of all its states.

Drivers take over from one another, and an earlier driver may go on without knowing it. Each runs transactions with
several attempts on machines with caches. An attempt stores its changes as an object, perhaps with a snapshot. A driver
commits the chain of objects under its epoch, and deletes objects that no chain names. The answer to a commit may be
lost, and the commit may take effect later. Machines lose their caches, and workers die.

Objects are stored atomically and never change, and the metadata database is serializable: nothing else is assumed. The
content of a state is its history: the attempts whose changes it has, in order, or `TORN` if a file changed while an
attempt read it. `Flaw` names what can be left out of the protocol; the search finds a violation for each flaw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, TypeAlias, TypeVar

Name: TypeAlias = tuple[str, int, int, int]
"""Kind of an object (`delta` or `snapshot`), epoch, transaction and attempt."""

Order: TypeAlias = tuple[int, int, int]
"""Epoch, transaction and number of an attempt."""

History: TypeAlias = tuple[tuple[int, ...], ...]
"""For each transaction of a state, the order of the attempt, and the place of the transaction."""

Chain: TypeAlias = tuple[Name, ...]
TORN: History = ((-1,),)


class Flaw(Enum):
    """A rule that is left out."""

    NAMES_BY_TRANSACTION = auto()  # an object has the name of its transaction, and not of its attempt
    COMMIT_WITHOUT_EPOCH = auto()
    COLLECT_ANY_EPOCH = auto()
    LOST_ANSWER_IS_FAILURE = auto()
    LOST_ANSWER_IS_READ = auto()  # without a new epoch, before the commit can take effect
    CACHE_BY_LENGTH = auto()  # a cache is known by the length of its chain, and not by the names
    NO_NEWEST_ATTEMPT = auto()  # a cache does not record the newest attempt


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much happens."""

    transactions: int
    attempts: int
    machines: int
    drivers: int


class Committed(NamedTuple):
    epoch: int
    chain: Chain
    history: History


class Driver(NamedTuple):
    epoch: int
    phase: str  # ready, running, sent or fenced
    transaction: int
    chain: Chain
    place: int  # number of transactions before
    doomed: Chain  # objects that it is about to delete


class Attempt(NamedTuple):
    name: Name
    driver: int
    machine: int
    phase: str  # begun, open, stored or dead
    history: History
    chain: Chain
    snapshot: Name | None
    order: Order
    place: int


class Cache(NamedTuple):
    newest: Order
    history: History
    chain: Chain
    logs: tuple[tuple[Chain, History], ...]  # of attempts that ran here, by the chain after each


class Commit(NamedTuple):
    epoch: int
    chain: Chain
    item: tuple[int, ...]
    driver: int
    transaction: int


Stored: TypeAlias = tuple[tuple[Name, tuple[History | None, History]], ...]
"""Objects: the history to which each may be applied (None for a snapshot), and the history after it."""


class State(NamedTuple):
    committed: Committed
    stored: Stored
    drivers: tuple[Driver | None, ...]
    attempts: tuple[Attempt, ...]
    caches: tuple[Cache | None, ...]
    sent: tuple[Commit, ...]


Step: TypeAlias = tuple[str, State]


class ViolationError(Exception):
    """A state that the protocol excludes."""


def resolve(chain: Chain, stored: Stored) -> History:
    objects, history = dict(stored), History()
    for name in chain:
        if name not in objects:
            raise ViolationError(f"{name} of a committed chain is missing")
        base, after = objects[name]
        if base not in (None, history):
            raise ViolationError(f"{name} was written upon {base}, and is applied to {history}")
        history = after
    return history


def check(state: State) -> None:
    """Raise an error unless the committed chain has the committed transactions, each once, and none is torn."""
    _, chain, history = state.committed
    if resolve(chain, state.stored) != history:
        raise ViolationError(f"the chain has {resolve(chain, state.stored)}, but {history} was committed")
    if any(item[0] < 0 for item in history):
        raise ViolationError("a torn state was committed")
    if [item[-1] for item in history] != list(range(len(history))):
        raise ViolationError(f"the transactions are {history}")


class Model:
    """The steps of the protocol."""

    def __init__(self, bounds: Bounds, flaw: Flaw | None = None) -> None:
        self.bounds, self.flaw = bounds, flaw

    def first(self) -> State:
        return State(Committed(0, (), ()), (), (None,) * self.bounds.drivers, (), (None,) * self.bounds.machines, ())

    def steps(self, state: State) -> Iterator[Step]:
        for number, driver in enumerate(state.drivers):
            if driver is not None:
                yield from self.of_driver(state, number, driver)
            elif number == 0 or state.drivers[number - 1] is not None:
                yield "acquire", self.acquired(state, number, 0)
        for commit in state.sent:
            yield self.of_commit(state, commit)
        for number, attempt in enumerate(state.attempts):
            yield from self.of_attempt(state, number, attempt)
        for machine, cache in enumerate(state.caches):
            if cache is not None:
                attempts = tuple(
                    one._replace(phase="dead") if one.machine == machine and one.phase in ("begun", "open") else one
                    for one in state.attempts
                )
                caches = replaced(state.caches, machine, None)
                yield "lose machine", state._replace(caches=caches, attempts=attempts)

    def acquired(self, state: State, number: int, transaction: int) -> State:
        """Return the state after a driver has taken a new epoch, and read the chain, in one transaction."""
        epoch, chain, history = state.committed
        known = state.drivers[number]
        driver = Driver(epoch + 1, "ready", transaction, chain, len(history), known.doomed if known else ())
        committed = state.committed._replace(epoch=epoch + 1)
        return state._replace(committed=committed, drivers=replaced(state.drivers, number, driver))

    def of_driver(self, state: State, number: int, driver: Driver) -> Iterator[Step]:
        def to(driver: Driver, state: State = state) -> State:
            return state._replace(drivers=replaced(state.drivers, number, driver))

        following = driver._replace(phase="ready", transaction=driver.transaction + 1)
        most = self.bounds.transactions
        if driver.phase == "ready" and driver.transaction < most and driver.place < most:
            yield "plan", to(driver._replace(phase="running"))
        if driver.phase == "running":
            yield from self.of_running(state, number, driver)
            yield "abandon", to(following)
        if driver.phase == "sent":
            yield "lose answer", self.without_answer(state, number, driver, following)
        if driver.phase == "ready" and not driver.doomed:
            doomed = tuple(name for name, _ in state.stored if name not in driver.chain and self.is_own(name, driver))
            if doomed:
                yield "list", to(driver._replace(doomed=doomed))
        if driver.doomed and driver.phase != "sent":
            first, *rest = driver.doomed
            stored = tuple(entry for entry in state.stored if entry[0] != first)
            yield "delete", to(driver._replace(doomed=tuple(rest)), state._replace(stored=stored))

    def of_running(self, state: State, number: int, driver: Driver) -> Iterator[Step]:
        """Begin an attempt, or commit one."""
        own = [one for one in state.attempts if one.driver == number and one.order[1] == driver.transaction]
        if len(own) < self.bounds.attempts:
            for machine in range(self.bounds.machines):
                begun = self.begun(number, driver, machine, len(own))
                yield "begin", state._replace(attempts=(*state.attempts, begun))
        for one in own:
            if one.phase == "stored":
                chain = (driver.chain if one.snapshot is None else (one.snapshot,)) + (one.name,)
                commit = Commit(driver.epoch, chain, (*one.order, driver.place), number, driver.transaction)
                drivers = replaced(state.drivers, number, driver._replace(phase="sent"))
                yield "send", state._replace(drivers=drivers, sent=(*state.sent, commit))

    def without_answer(self, state: State, number: int, driver: Driver, following: Driver) -> State:
        """Return the state after a driver has lost the answer to a commit, which may still take effect."""
        _, chain, history = state.committed
        if self.flaw is Flaw.LOST_ANSWER_IS_FAILURE:
            return state._replace(drivers=replaced(state.drivers, number, following))
        if self.flaw is Flaw.LOST_ANSWER_IS_READ:
            known = following._replace(chain=chain, place=len(history))
            return state._replace(drivers=replaced(state.drivers, number, known))
        return self.acquired(state, number, driver.transaction + 1)  # with a new epoch, the commit has no effect later

    def is_own(self, name: Name, driver: Driver) -> bool:
        return self.flaw is Flaw.COLLECT_ANY_EPOCH or name[1] <= driver.epoch

    def begun(self, number: int, driver: Driver, machine: int, attempt: int) -> Attempt:
        order = (driver.epoch, driver.transaction, attempt)
        name: Name = ("delta", *order)
        if self.flaw is Flaw.NAMES_BY_TRANSACTION:
            name = ("delta", 0, driver.transaction, 0)
        return Attempt(name, number, machine, "begun", (), driver.chain, None, order, driver.place)

    def of_commit(self, state: State, commit: Commit) -> Step:
        """Let a commit take effect, or be refused."""
        epoch, _, history = state.committed
        driver = state.drivers[commit.driver]
        assert driver is not None
        rest = tuple(other for other in state.sent if other != commit)
        waits = driver[:3] == (commit.epoch, "sent", commit.transaction)
        if epoch != commit.epoch and self.flaw is not Flaw.COMMIT_WITHOUT_EPOCH:
            after = driver._replace(phase="fenced") if waits else driver
            return "refuse", state._replace(drivers=replaced(state.drivers, commit.driver, after), sent=rest)
        if waits:
            number, place = commit.transaction + 1, len(history) + 1
            driver = Driver(commit.epoch, "ready", number, commit.chain, place, driver.doomed)
        committed = Committed(epoch, commit.chain, (*history, commit.item))
        drivers = replaced(state.drivers, commit.driver, driver)
        return "commit", state._replace(committed=committed, drivers=drivers, sent=rest)

    def of_attempt(self, state: State, number: int, attempt: Attempt) -> Iterator[Step]:
        if attempt.phase == "begun":
            yield self.opened(state, number, attempt)
        if attempt.phase == "open":
            yield "store", self.with_object(state, number, attempt)
            if attempt.chain and attempt.history != TORN:
                snapshot: Name = ("snapshot", *attempt.name[1:])
                stored = put(state.stored, snapshot, (None, attempt.history))
                of_snapshot = attempt._replace(snapshot=snapshot)
                yield "store both", self.with_object(state._replace(stored=stored), number, of_snapshot)
        if attempt.phase in ("begun", "open"):
            yield "kill", with_attempt(state, number, attempt._replace(phase="dead"))

    def opened(self, state: State, number: int, attempt: Attempt) -> Step:
        """Open a shard from the cache of a machine, or from objects."""
        cache = state.caches[attempt.machine]
        if cache is not None and cache.newest > attempt.order and self.flaw is not Flaw.NO_NEWEST_ATTEMPT:
            return "outdated", with_attempt(state, number, attempt._replace(phase="dead"))
        known = [] if cache is None else [(cache.chain, cache.history), *cache.logs]
        same = [history for chain, history in known if self.is_same(chain, attempt.chain)]
        try:
            history = same[-1] if same else resolve(attempt.chain, state.stored)
        except ViolationError:  # of a fenced driver, whose chain is no longer there
            return "cannot read", with_attempt(state, number, attempt._replace(phase="dead"))
        logs = cache.logs if cache is not None and cache.chain == attempt.chain else ()
        attempts = state.attempts
        if cache is not None and cache.history != history:  # the log is folded into the file that others have open
            attempts = tuple(
                one._replace(history=TORN) if one.machine == attempt.machine and one.phase == "open" else one
                for one in attempts
            )
        caches = replaced(state.caches, attempt.machine, Cache(attempt.order, history, attempt.chain, logs))
        own = attempt._replace(phase="open", history=history)
        return "open", with_attempt(state._replace(attempts=attempts, caches=caches), number, own)

    def is_same(self, cached: Chain, chain: Chain) -> bool:
        return cached == chain or (self.flaw is Flaw.CACHE_BY_LENGTH and len(cached) == len(chain))

    def with_object(self, state: State, number: int, attempt: Attempt) -> State:
        """Return the state after an attempt has stored its changes; its log stays beside the cached file."""
        after = (*attempt.history, (*attempt.order, attempt.place))
        stored = put(state.stored, attempt.name, (attempt.history, after))
        caches, cache = state.caches, state.caches[attempt.machine]
        if cache is not None:
            logs = (*cache.logs, ((*attempt.chain, attempt.name), after))
            caches = replaced(caches, attempt.machine, cache._replace(logs=logs))
        state = state._replace(stored=stored, caches=caches)
        return with_attempt(state, number, attempt._replace(phase="stored"))


def put(stored: Stored, name: Name, content: tuple[History | None, History]) -> Stored:
    return tuple(sorted({**dict(stored), name: content}.items(), key=lambda entry: entry[0]))


Value = TypeVar("Value")


def replaced(values: tuple[Value, ...], number: int, value: Value) -> tuple[Value, ...]:
    return (*values[:number], value, *values[number + 1 :])


def with_attempt(state: State, number: int, attempt: Attempt) -> State:
    return state._replace(attempts=replaced(state.attempts, number, attempt))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a search.

    Attributes:
        states: number of states.
        is_complete: whether these are all states.
        violation: the violation; empty for none.
        path: the steps that lead to it.
    """

    states: int
    is_complete: bool
    violation: str = ""
    path: tuple[str, ...] = ()


def explore(model: Model, most: int = 1_000_000) -> Outcome:
    """Search all states, those after few steps first, up to a number of states."""
    first = model.first()
    parents: dict[State, tuple[State, str] | None] = {first: None}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        try:
            check(state)
        except ViolationError as exc:
            path, at = [], parents[state]
            while at is not None:
                path.append(at[1])
                at = parents[at[0]]
            return Outcome(len(parents), False, str(exc), tuple(reversed(path)))
        for label, following in model.steps(state):
            if following not in parents:
                parents[following] = (state, label)
                queue.append(following)
        if len(parents) > most:
            return Outcome(len(parents), False)
    return Outcome(len(parents), True)
