"""`CREATE REPLICA` and `DROP REPLICA`."""

from __future__ import annotations

from derive.errors import SqlError
from derive.sql.parser.definition import CreateReplica, DropReplica
from derive.sql.parser.token_reader import TokenReader

_CLUSTER = "default"


def parse_create_replica(reader: TokenReader) -> CreateReplica:
    """Read what follows `CREATE REPLICA`."""
    if_not_exists = reader.accept_words("if", "not", "exists")
    name, offset = _name(reader)
    address: str | None = None
    if reader.accept_symbol("("):
        reader.expect_word("address")
        reader.accept_symbol("=")
        address = reader.string()
        reader.expect_symbol(")")
    return CreateReplica(name, offset, address, if_not_exists)


def parse_drop_replica(reader: TokenReader) -> DropReplica:
    """Read what follows `DROP REPLICA`."""
    if_exists = reader.accept_words("if", "exists")
    return DropReplica(*_name(reader), if_exists)


def _name(reader: TokenReader) -> tuple[str, int]:
    """The name of a replica, maybe behind that of the cluster, of which there is one."""
    offset = reader.offset
    name = reader.any_name() if reader.is_word(_CLUSTER) else reader.name()
    if name != _CLUSTER and not reader.is_symbol("."):
        return name, offset
    reader.expect_symbol(".")
    if name != _CLUSTER:
        hint = f"There is one cluster, {_CLUSTER}."
        raise SqlError("42704", f'cluster "{name}" does not exist', offset=offset, hint=hint)
    return reader.located_name()
