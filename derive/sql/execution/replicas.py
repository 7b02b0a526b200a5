"""CREATE REPLICA and DROP REPLICA: the instances that maintain views; they change at once."""

from __future__ import annotations

import asyncio

from derive.compute.protocol.transport import place_of
from derive.errors import SqlError, UsageError, suggest
from derive.event_loop import settled
from derive.sql.catalog.items import LOCAL, ReplicaPlace, is_replica_name
from derive.sql.coordinator import Coordinator
from derive.sql.execution.state import State
from derive.sql.maintenance.instances import ComputeInstances
from derive.sql.parser.statement import CreateReplica, DropReplica
from derive.sql.results import Notice, Result


async def change_replicas(state: State, statement: CreateReplica | DropReplica) -> Result:
    """Execute a statement that adds or removes a replica.

    Raises:
        SqlError: the statement is refused, without any effect.
    """
    what = "CREATE REPLICA" if isinstance(statement, CreateReplica) else "DROP REPLICA"
    if state.is_explicit:
        raise SqlError("25001", f"{what} cannot run inside a transaction block")
    state.transaction.check_writable()
    if not state.user.changes_replicas:  # an instance receives stored rows and the server's credentials
        hint = "Mark the user in the password file, as in bob [replicas]:password."
        raise SqlError("42501", f"permission denied for {what}", hint=hint)
    coordinator = state.coordinator
    if not coordinator.computing.can_start:
        raise SqlError("0A000", f"{what} needs a server", hint="Send the statement to flowctl sql serve.")
    coordinator.own()
    async with coordinator.definitions:
        if isinstance(statement, CreateReplica):
            notices = await _create(coordinator, statement)
        else:
            notices = await _drop(coordinator, statement)
    return Result(lambda _: what, notices=notices)


async def _create(coordinator: Coordinator, statement: CreateReplica) -> tuple[Notice, ...]:
    name, offset = statement.name, statement.offset
    computing = coordinator.computing
    if name in computing.places:
        message = f'replica "{name}" already exists'
        if statement.if_not_exists:
            return (Notice("NOTICE", "42710", f"{message}, skipping"),)
        raise SqlError("42710", message, offset=offset)
    if not is_replica_name(name):
        hint = (
            f"A name has up to 63 letters, digits, - and _, and begins with no digit; {LOCAL} is reserved for the"
            f" server."
        )
        raise SqlError("42602", f'"{name}" cannot be the name of a replica', offset=offset, hint=hint)
    if statement.address is not None:
        _check_address(computing, statement.address)
    place = ReplicaPlace(name, statement.address or "")
    coordinator.store.sql_catalog.add_replica(place.name, place.address)
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


async def _drop(coordinator: Coordinator, statement: DropReplica) -> tuple[Notice, ...]:
    name = statement.name
    computing = coordinator.computing
    if name not in computing.places:
        if statement.if_exists:
            return (Notice("NOTICE", "00000", f'replica "{name}" does not exist, skipping'),)
        raise SqlError(
            "42704", f'replica "{name}" does not exist', offset=statement.offset, hint=_meant(computing, name)
        )
    place = computing.places[name]
    await settled(asyncio.to_thread(computing.remove, name))
    try:  # only now, so that a killed server keeps the replica, and a dropped replica leaves no files
        coordinator.store.sql_catalog.drop_replica(name)
    except BaseException:
        computing.add(place)
        raise
    finally:
        coordinator.store.changes.wake()
    if not computing.is_of_options(place):
        return ()
    message = (
        f'replica "{name}" is named by the options of the server: a server that starts with these options creates'
        f" the replica again"
    )
    return (Notice("NOTICE", "00000", message),)


def _meant(computing: ComputeInstances, name: str) -> str | None:
    if name == LOCAL:
        return f"The replica {LOCAL} ends as soon as another replica has caught up."
    nearest = suggest(name, computing.places)
    return f'Did you mean "{nearest}"?' if nearest else None
