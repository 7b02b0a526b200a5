"""Materializations: the transactor that stores the reduced documents of collections in an endpoint.

The endpoint commits rows together with a checkpoint, and then the data folder records the commit. After a crash between
the two, the checkpoint of the endpoint shows the commit; so every document is stored exactly once.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from connectors.kit.requests import Applied
from derive.backoff import Backoff
from derive.document.clock import format_rfc3339
from derive.engine.edits import reset_command
from derive.engine.executor import Executor
from derive.engine.stored_bindings import (
    find_stored_edits,
    prints_of,
    remembered_edits,
    settled_prints,
    stale_rows,
    stored_contents,
    stored_fields,
)
from derive.engine.transactor import Opened, Prepared, Transaction
from derive.engine.unique_keys import UniqueKeys
from derive.errors import CatalogError, EndpointError, FencedError, FlowError, LostError, SessionFencedError, TaskError
from derive.failpoint import reach
from derive.materialize.binding import StoredBinding
from derive.materialize.fields import REFUSED
from derive.materialize.plan import StorePlan
from derive.materialize.preparation import PreparedMaterialization, prepare
from derive.materialize.restarts import (
    ResetMarker,
    complete_refills,
    read_refills,
    refill_limit,
    require_known_facts,
)
from derive.materialize.worker import close_streams, connectors, guarded
from derive.protocol.collection import InputSpec
from derive.protocol.definition_text import definition_of_materialization
from derive.protocol.materialization import FIRST, AddressEndpoint, LocalEndpoint, MaterializationSpec
from derive.shard.progress import Message, progress_folder, raise_first
from derive.shard.state import publish_epoch, remove_shards, task_folder
from derive.storage.capability.table import TaskCapability
from derive.storage.metadata.descriptions import Edited, Kept, Refilling, ShardData, TaskCommit, TaskState
from derive.storage.roles import Runnable
from derive.storage.task_log import TaskLog
from derive.time import BEGINNING, tick_begin
from derive.time.extent import Limits, Load, Size, size_of, slice_borders
from derive.time.positions import Place, needs, offset_of

_RETRY_SECONDS = 10.0
"""Pause after a transient error of shadows, in seconds."""

_REOPEN_BACKOFF = Backoff(0.05, 1.0)
"""Pauses, in seconds, before sessions that were fenced at the endpoint are opened again."""

_MOST_REOPENINGS = 6
"""Number of times that one transaction opens fenced sessions again, before it fails with a transient error."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """An endpoint that is ready.

    Attributes:
        prepared: the applied materialization.
        contents: for each binding (by state key) with a past or running refill, the identity of its rows.
        limits: for each binding (by state key) that is being refilled, the adjusted timestamp up to which it must be
            stored before it replaces its rows.
        foreign: state keys of bindings whose recorded positions belong to other rows than the rows of the endpoint.
        shadows: state keys of bindings that fill a table beside the table of a live binding.
    """

    prepared: PreparedMaterialization
    contents: Mapping[str, str]
    limits: Mapping[str, int]
    foreign: tuple[str, ...] = ()
    shadows: frozenset[str] = frozenset()


class Materialization:
    """The transactor of one materialization.

    Args:
        store: the data folder.
        executor: executes transactions.
        spec: the materialization.
        shards: number of shards if it has never run.
        shadow: digest of the definition of the shadows of its bindings; empty for none.

    Attributes:
        spec: the materialization.
    """

    def __init__(
        self, store: Runnable, executor: Executor, spec: MaterializationSpec, shards: int, shadow: str = ""
    ) -> None:
        self._store = store
        self._executor = executor
        self._shards, self._shadow = shards, shadow
        self._ready: _Ready | None = None
        self._keys: dict[str, UniqueKeys] = {}
        self._log = TaskLog(store.root, spec.name)
        self._definition = definition_of_materialization(spec.live)
        self._retry_at: float | None = None
        self._fenced: dict[int, str] = {}
        self._restart = ResetMarker()
        self._kept: dict[int, ShardData] = {}
        self._unstored: set[int] = set()  # shards whose data the metadata has yet to store
        self.spec = spec

    @property
    def has_to_execute(self) -> bool:
        """Return whether to ask the endpoint even without documents.

        The endpoint may have lost rows, or a refill may be complete.
        """
        return self._ready is None or bool(self._ready.limits)

    @property
    def refills(self) -> Mapping[str, int]:
        """Return, for each binding that is being refilled, the adjusted timestamp at which its refill is complete."""
        return self._ready.limits if self._ready else read_refills(self._store, self.spec.name)

    def complete(self, positions: Mapping[str, int]) -> Collection[str]:
        """Return the state keys of the refills that can replace their rows at the given positions."""
        limits = {key: limit for key, limit in self.refills.items() if key in positions}  # without removed bindings
        return complete_refills(limits, positions, self._restart) if limits else ()

    @property
    def suspended(self) -> Collection[str]:
        """Return the state keys of shadows that have failed, so that only the live bindings advance.

        After a transient error, the shadows are tried again some seconds later.
        """
        if self._retry_at is None or time.monotonic() >= self._retry_at:
            return ()
        return self.spec.shadows

    def open(self, *, if_free: bool = False) -> Opened:
        """Fence earlier runs of the task in the data folder.

        The endpoint fences them when the first stream is opened.
        """
        store, spec = self._store, self.spec
        self._ready = None
        self._keys, self._fenced = {}, {}
        require_known_facts(store, spec.name)
        self._require_reachable()
        capability, state = store.acquire_task(spec.name, self._shards, if_free=if_free, shadow=self._shadow)
        publish_epoch(store.root, spec.name, capability.epoch)
        record = store.adopt_materialization(spec.name)  # a later reset changes it, and fences this run
        self._restart, self._kept, self._unstored = ResetMarker.from_text(record.restart), dict(record.kept), set()
        remove_shards(store.root, spec.name, state.shards, capability.epoch)
        shutil.rmtree(progress_folder(store.root, spec.name), ignore_errors=True)
        places = {item.state_key: Place(item.source, offset_of(item, spec.tick)) for item in spec.inputs}
        return Opened(
            capability,
            state,
            places,
            fingerprints=settled_prints(spec, state.fingerprints),
            edits=remembered_edits(spec, state),
            unaccepted=find_stored_edits(spec, state),
            reset=reset_command(store, spec.name),
            is_per_input=True,
        )

    def _require_reachable(self) -> None:
        """Raise an error if the materialization has stored its rows on another machine, such as in a file there.

        Raises:
            TaskError: this machine would store all rows again, into another file.
        """
        store, spec = self._store, self.spec
        if isinstance(store.location, Path) or isinstance(spec.endpoint, AddressEndpoint):
            return
        state = store.task(spec.name)
        if state is None or not state.positions or task_folder(store.root, spec.name).exists():
            return
        if connectors().connect(spec.endpoint).schemas().is_local:
            raise TaskError(
                f"'{spec.name}' has stored its rows on another machine: its endpoint is a file or folder there",
                position=spec.endpoint.position,
                hint=f"run it there: flowctl run --task {spec.name}; or store all rows again on this machine:"
                f" {reset_command(store, spec.name)}",
            )

    def prepare(self, waiting: Size, shards: int, limits: Limits) -> Limits:
        """Prepare the executor.

        If machines may have folders of their own, only this process knows whether the run still has the task.
        """
        is_bound = not isinstance(self._store.location, Path)
        return self._executor.prepare(Load(self.spec.name, waiting, shards, is_bound), limits)

    def execute(self, transaction: Transaction, progress: Callable[[int], None]) -> Prepared:
        """Store the transaction's documents on workers; on return, the endpoint has committed the documents.

        Raises:
            FlowError: the endpoint cannot be prepared, or has failed. The next attempt skips documents that the
                endpoint has committed.
        """
        read = {self.spec.inputs[read.index].state_key for read in transaction.reads}
        of_shadows = bool(read) and self.spec.shadows.issuperset(read)
        try:
            ready = self._ready or self._make_ready(transaction)
            if ready.foreign:
                return self._step_back(dict.fromkeys(ready.foreign, BEGINNING), {})
            self._require_unique(transaction, ready.prepared)
            messages = self._store_rows(transaction, ready, progress)
            if not any(message.behind for message in messages):
                self._complete_refills(transaction, ready)
        except FlowError as error:
            self._store_data(transaction.capability)
            self._ready = None  # the next attempt validates the endpoint again, which may have changed
            if of_shadows and not isinstance(error, FencedError | LostError):
                return self._suspend(error, transaction, read)
            raise
        if of_shadows and self._retry_at is not None:
            self._retry_at = None
            self._store.shadows.note_error(self.spec.name, None)
        stepped_back: dict[str, int] = {}
        for message in messages:
            for key, position in message.behind.items():
                stepped_back[key] = min(position, stepped_back.get(key, position))
        tokens = {number: token for message in messages for number, token in message.shards.items()}
        if stepped_back:
            return self._step_back(stepped_back, tokens)
        return Prepared(
            documents_in=sum(message.documents_in for message in messages),
            tokens=tokens,
            stored=sum(message.documents_out for message in messages),
            cleared=tuple(sorted({key for message in messages for key in message.cleared})),
        )

    def _store_rows(
        self, transaction: Transaction, ready: _Ready, progress: Callable[[int], None]
    ) -> Sequence[Message]:
        """Execute a transaction on workers; open sessions again that a late session of a former run has fenced.

        Raises:
            FlowError: the transaction failed, or sessions were fenced again and again.
        """
        check = partial(self._store.task_capabilities.require, transaction.capability)
        for failures in count(1):
            with guarded(transaction.token, check):
                messages = self._executor.execute(self._plan(transaction, ready), progress)
            for message in messages:
                self._kept |= message.kept
                self._unstored |= message.kept.keys()
            errors = [FlowError.from_json(message.error) for message in messages if message.error]
            fenced = [error for error in errors if isinstance(error, SessionFencedError)]
            self._fenced |= {error.shard: error.token for error in fenced if error.token is not None}
            if not fenced or len(fenced) < len(errors) or failures > _MOST_REOPENINGS:
                break
            self._log.write("warn", f"{fenced[0].message}; this run still has the task, and opens its session again")
            time.sleep(_REOPEN_BACKOFF.pause(failures))
        raise_first(messages)
        self._fenced = {}
        return messages

    def _store_data(self, capability: TaskCapability) -> None:
        """Store the data of shards after a transaction that failed in part; after an error, the next commit does."""
        if self._unstored:
            with suppress(FlowError):
                self._store.note_task(capability, Kept({number: self._kept[number] for number in self._unstored}))
                self._unstored = set()

    def _suspend(self, error: FlowError, transaction: Transaction, keys: Collection[str]) -> Prepared:
        """Record the error of a transaction that reads shadows only, and continue with the live bindings."""
        self._retry_at = time.monotonic() + _RETRY_SECONDS if error.heals else math.inf
        self._store.shadows.note_error(self.spec.name, error)
        self._log.write("error", f"the shadow has stopped, and the live rows continue: {error}")
        positions = transaction.checkpoint.positions
        return Prepared(stepped_back={key: positions.get(key, BEGINNING) for key in keys})

    def _step_back(self, positions: dict[str, int], tokens: Mapping[int, str]) -> Prepared:
        """Rewind bindings (by state key) to the positions of the endpoint.

        Raises:
            TaskError: the history from a position on was compacted.
        """
        self._require_history(positions)
        return Prepared(tokens=tokens, stepped_back=positions)

    def _require_unique(self, transaction: Transaction, prepared: PreparedMaterialization) -> None:
        """Require that a table has one row per key if the endpoint stores one row per key.

        Raises:
            TaskError: a table has two rows with the same key.
        """
        for read in transaction.reads:
            item, binding = self.spec.inputs[read.index], prepared.bindings[read.index]
            place = transaction.checkpoint.places.get(item.state_key)
            if binding.delta_updates or place is None:
                continue
            keys = self._keys.get(item.state_key)
            if keys is None:
                tables = [self._store.tables.of_relation(relation) for relation in place.relations]
                table = next(filter(None, tables), None)
                if table is None:
                    continue
                keys = self._keys[item.state_key] = UniqueKeys(self._store, self.spec.name, item, table, place.relation)
            keys.require(read)

    def _make_ready(self, transaction: Transaction) -> _Ready:
        """Validate and apply the bindings: once in a run, and again after an error or a refill."""
        checkpoint, state = transaction.checkpoint, self._store.task(self.spec.name)
        before = state.fingerprints if state else {}
        connector = connectors().connect(self.spec.endpoint)
        try:
            prepared = prepare(self.spec, connector, stored_fields(before), self._restart)
        except CatalogError as error:
            raise _mendable(error) from error
        begun = [item.state_key for item in self.spec.inputs if checkpoint.position(item) > BEGINNING]
        applied = prepared.apply(connector, begun=begun)
        if applied.description:
            self._log.write("info", applied.description)
        reach("refill.applied")
        inputs = self.spec.inputs
        if not before:
            self._require_own(prepared, applied)
        contents = {inputs[index].state_key: identity for index, identity in enumerate(applied.contents) if identity}
        noted = stored_contents(before)
        foreign = tuple(key for key in begun if contents.get(key, noted.get(key, "")) != noted.get(key, ""))
        if foreign:
            return _Ready(prepared, contents, {}, foreign)
        prints = prints_of(prepared, before, contents)
        if state is not None:
            stale = stale_rows(prepared, state, self._restart)
            parts = {edit.part for edit in state.edits}
            new = [replace(edit, at=transaction.end) for edit in stale if edit.part not in parts]
            if new or prints != before:
                self._store.note_task(transaction.capability, Edited(prints, (*state.edits, *new)))
        refilling = [inputs[index] for index in sorted(applied.refilling)]
        shadows = self.spec.shadows & {item.state_key for item in refilling}
        limits = {item.state_key: self._limit(item, state) for item in refilling if item.state_key not in shadows}
        self._require_live(limits)
        self._ready = _Ready(prepared, contents, limits, shadows=shadows)
        self._report_refills(transaction.capability, self._ready.limits)
        return self._ready

    def _require_live(self, refilling: Collection[str]) -> None:
        """Require that only shadows are refilled (by state key) while there are shadows.

        Raises:
            TaskError: a binding starts over.
        """
        if self.spec.shadows and refilling:
            raise TaskError(
                f"{', '.join(refilling)} of '{self.spec.name}' starts over while a shadow of it is filled",
                position=self.spec.position,
                hint="drop the shadow: flowctl shadow drop",
            )

    def _require_own(self, prepared: PreparedMaterialization, applied: Applied) -> None:
        """Require, for a materialization without progress, that the endpoint has no rows of another data folder.

        Raises:
            TaskError: the endpoint has rows that another data folder has refilled.
        """
        if any(prepared.message.bindings[index].generation == FIRST for index in applied.refilling):
            raise TaskError(
                (
                    "the endpoint has rows that another data folder materialized as"
                    f" '{self.spec.name}'; nothing was stored"
                ),
                position=self.spec.endpoint.position,
                hint="rename this materialization, or its resources; or, if the other data folder is gone, start over:"
                f" {reset_command(self._store, self.spec.name)}",
            )

    def _limit(self, item: InputSpec, state: TaskState | None) -> int:
        """Return the adjusted timestamp up to which a binding must be stored before its refill is complete."""
        known, tick = self._store.collection(item.source), self.spec.tick
        sealed = min(known.sound, self._store.timeline.present()) if known else BEGINNING
        return refill_limit(item, self._restart, state, tick_begin(sealed, tick)) + offset_of(item, tick)

    def _report_refills(self, capability: TaskCapability, limits: Mapping[str, int]) -> None:
        """Log new refills, and record the running refills for other processes."""
        stored = read_refills(self._store, self.spec.name)
        for key, limit in sorted(limits.items() - stored.items()):
            at = format_rfc3339(max(limit, BEGINNING))
            self._log.write(
                "info",
                f"refill of '{key}' started: rows are written to a second table until {at},"
                " and then replace the present rows",
            )
        if limits != stored:
            self._store.note_task(capability, Refilling(limits))

    def _complete_refills(self, transaction: Transaction, ready: _Ready) -> None:
        """Replace the rows of bindings whose refills are complete; all shards must have committed."""
        positions = {item.state_key: transaction.checkpoint.position(item) for item in self.spec.inputs}
        positions |= {self.spec.inputs[read.index].state_key: transaction.end for read in transaction.reads}
        completed = self.complete(positions)
        if not completed:
            return
        close_streams(self.spec.name)
        reach("refill.completing")
        identities = [ready.contents[key] for key in completed]
        ready.prepared.apply(connectors().connect(self.spec.endpoint), completed=identities)
        reach("refill.completed")
        self._ready = None  # after the replacement, rows are stored into the tables themselves
        for key in completed:
            self._log.write("info", f"refill of '{key}' finished: its rows have replaced the old rows")
        left = {key: limit for key, limit in ready.limits.items() if key not in completed}
        self._store.note_task(transaction.capability, Refilling(left))

    def _require_history(self, positions: dict[str, int]) -> None:
        """Require that the rows that an endpoint has lost can be read again.

        Raises:
            TaskError: the history of the rows was compacted.
        """
        spec = self.spec
        desired = needs(spec.inputs, spec.tick, positions)
        for item in spec.inputs:
            if item.state_key not in positions:
                continue
            known = self._store.collection(item.source)
            since = known.since if known else BEGINNING
            if BEGINNING < desired[item.state_key] < since and desired[item.state_key] != item.not_before:
                raise TaskError(
                    f"the endpoint of '{spec.name}' has lost the rows of '{item.name}' from after"
                    f" {format_rfc3339(desired[item.state_key])}, and the history of '{item.source}' before"
                    f" {format_rfc3339(since)} is compacted",
                    position=item.position,
                    hint=f"delete the remaining rows of the endpoint, and start over: flowctl reset --task {spec.name}",
                )
        when = ", ".join(
            f"'{key}' from {format_rfc3339(at) if at > BEGINNING else 'the beginning'}"
            for key, at in sorted(positions.items())
        )
        self._log.write("info", f"the endpoint is behind the task, so rows are stored from its position on: {when}")

    def _plan(self, transaction: Transaction, ready: _Ready) -> StorePlan:
        """Return the plan of a transaction, for workers."""
        checkpoint, reads, limits = transaction.checkpoint, transaction.reads, transaction.limits
        prepared = ready.prepared
        slices: tuple[int, ...] = ()
        if checkpoint.shards > 1:
            slices = slice_borders(reads, transaction.end, self.spec.tick, BEGINNING, checkpoint.shards, limits)
        return StorePlan(
            spec=_for_workers(self.spec),
            root=self._store.root,
            location=self._store.location,
            token=transaction.token,
            epoch=transaction.capability.epoch,
            transaction=transaction.number,
            shards=checkpoint.shards,
            tokens=checkpoint.tokens,
            positions={item.state_key: checkpoint.position(item) for item in self.spec.inputs},
            end=transaction.end,
            reads=reads,
            bindings=self._bindings(ready),
            message=prepared.message.SerializeToString(),
            version=prepared.version,
            secrets=prepared.secrets,
            slices=slices,
            is_small=limits.is_small(size_of(reads)),
            restart=self._restart,
            kept=dict(self._kept),
            fenced=dict(self._fenced),
        )

    def _bindings(self, ready: _Ready) -> tuple[StoredBinding, ...]:
        return tuple(
            StoredBinding(
                name=binding.spec.name,
                state_key=binding.spec.input.state_key,
                offset=offset_of(binding.spec.input, self.spec.tick),
                collection=binding.spec.collection,
                keys=binding.fields.keys,
                values=binding.fields.values,
                is_delta=binding.delta_updates,
                contents=ready.contents.get(binding.spec.input.state_key, ""),
                is_refilling=binding.spec.input.state_key in ready.limits.keys() | ready.shadows,
            )
            for binding in ready.prepared.bindings
        )

    def commit(self, transaction: Transaction, prepared: Prepared, commit: TaskCommit) -> TaskCapability:
        """Record the progress of the endpoint."""
        kept = {number: self._kept[number] for number in self._unstored}
        commit = replace(commit, applied=self._definition, kept=kept)
        capability = self._store.commit_task(transaction.capability, commit)
        self._unstored = set()
        return capability

    def cancel(self) -> None:
        """Cancel the executor's work, and end the running streams."""
        self._executor.cancel()
        close_streams(self.spec.name)


def _for_workers(spec: MaterializationSpec) -> MaterializationSpec:
    """Return the materialization with its secrets resolved, so that workers need no environment variables or files."""
    if isinstance(spec.endpoint, LocalEndpoint):
        return replace(spec, endpoint=replace(spec.endpoint, env=spec.endpoint.env.revealed()))
    return spec


def _mendable(error: CatalogError) -> FlowError:
    """Return a catalog error; a transient error if the endpoint refuses fields, which may be corrected there."""
    if any(issue.code != REFUSED for issue in error.issues):
        return error
    first = error.issues[0]
    return EndpointError("; ".join(issue.message for issue in error.issues), position=first.position, hint=first.hint)
