"""CREATE REPLICA and DROP REPLICA: durable on return, while queries and subscriptions continue."""

from __future__ import annotations

import asyncio

from derive.compute.protocol.transport import place_of
from derive.errors import SqlError, UsageError
from derive.sql.catalog.replica_place import LOCAL, ReplicaPlace, is_replica_name
from derive.sql.execution.state import State
from derive.sql.maintenance.instances import ComputeInstances
from derive.sql.outcome import Notice, Result
from derive.sql.parser.statement import CreateReplica, DropReplica
from derive.sql.transactions.uninterruptible import settled
from derive.suggest import suggest


async def change_replicas(state: State, statement: CreateReplica | DropReplica) -> Result:
    """Execute a statement that adds or removes a replica.

    Raises:
        SqlError: the statement is refused; nothing has happened.
    """
    what = "CREATE REPLICA" if isinstance(statement, CreateReplica) else "DROP REPLICA"
    if state.is_explicit:
        raise SqlError("25001", f"{what} cannot run inside a transaction block")
    state.transaction.check_writable()
    if not state.user.changes_replicas:  # an instance receives stored rows and the server's credentials
        hint = "Users who may are marked in the password file, as in bob [replicas]:password."
        raise SqlError("42501", f"permission denied for {what}", hint=hint)
    coordinator = state.coordinator
    if not coordinator.computing.can_start:
        raise SqlError("0A000", f"{what} is for a server", hint="send it to flowctl sql serve")
    coordinator.own()
    async with coordinator.definitions:
        if isinstance(statement, CreateReplica):
            notices = await _create(state, statement)
        else:
            notices = await _drop(state, statement)
    return Result(lambda _: what, notices=notices)


async def _create(state: State, statement: CreateReplica) -> tuple[Notice, ...]:
    coordinator, name, offset = state.coordinator, statement.name, statement.offset
    computing = coordinator.computing
    if name in computing.places:
        message = f'replica "{name}" already exists'
        if statement.if_not_exists:
            return (Notice("NOTICE", "42710", f"{message}, skipping"),)
        raise SqlError("42710", message, offset=offset)
    if not is_replica_name(name):
        hint = f"Up to 63 letters, digits, - and _, the first no digit; {LOCAL} is the one in the server's process."
        raise SqlError("42602", f'"{name}" is no name for a replica', offset=offset, hint=hint)
    if statement.address is not None:
        _check_address(computing, statement.address)
    place = ReplicaPlace(name, statement.address or "")
    coordinator.catalog.add_replica(place)
    await settled(asyncio.to_thread(computing.add, place))
    coordinator.store.changes.wake()
    return ()


def _check_address(computing: ComputeInstances, address: str) -> None:
    try:
        place_of(address, "ADDRESS", computing.security)
    except UsageError as error:
        raise SqlError("22023", error.message, hint=error.hint) from error
    if (place := computing.at(address)) is not None:
        raise SqlError("42710", f'{address} is the address of replica "{place.name}"')


async def _drop(state: State, statement: DropReplica) -> tuple[Notice, ...]:
    coordinator, name = state.coordinator, statement.name
    computing = coordinator.computing
    if name not in computing.places:
        if statement.if_exists:
            return (Notice("NOTICE", "00000", f'replica "{name}" does not exist, skipping'),)
        raise SqlError(
            "42704", f'replica "{name}" does not exist', offset=statement.offset, hint=_meant(computing, name)
        )
    place = computing.places[name]
    await settled(asyncio.to_thread(computing.remove, name))
    try:  # only now, so that a killed server keeps the replica, and a dropped replica leaves nothing behind
        coordinator.catalog.drop_replica(name)
    except BaseException:
        computing.add(place)
        raise
    finally:
        coordinator.store.changes.wake()
    if not computing.is_of_options(place):
        return ()
    message = f'replica "{name}" is one of the server\'s options, and is back once it is started with them again'
    return (Notice("NOTICE", "00000", message),)


def _meant(computing: ComputeInstances, name: str) -> str | None:
    if name == LOCAL:
        return "It goes as soon as another replica has caught up with it."
    nearest = suggest(name, computing.places)
    return f'Did you mean "{nearest}"?' if nearest else None
