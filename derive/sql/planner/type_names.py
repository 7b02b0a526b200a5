"""Types by their names in SQL."""

from __future__ import annotations

from derive.algebra.types import ModifiedType, Type, TypeModifier
from derive.errors import SqlError
from derive.functions.types.type_info import INFOS
from derive.sql.parser.ast import TypeName
from derive.suggest import suggest

_TYPES = {
    "bool": Type.BOOLEAN,
    "int2": Type.SMALLINT,
    "int4": Type.INTEGER,
    "int8": Type.BIGINT,
    "float4": Type.DOUBLE,
    "float8": Type.DOUBLE,
    "numeric": Type.NUMERIC,
    "text": Type.TEXT,
    "varchar": Type.TEXT,
    "bpchar": Type.TEXT,
    "name": Type.TEXT,
    "bytea": Type.BYTEA,
    "json": Type.JSONB,
    "jsonb": Type.JSONB,
    "date": Type.DATE,
    "timestamp": Type.TIMESTAMP,
    "timestamptz": Type.TIMESTAMPTZ,
    "interval": Type.INTERVAL,
    "mz_timestamp": Type.MZ_TIMESTAMP,
    **dict.fromkeys(["char", "cstring", "pg_node_tree", "aclitem", "sql_identifier", "character_data"], Type.TEXT),
    **dict.fromkeys(["cardinal_number"], Type.INTEGER),
    "xid": Type.OID,
    **dict.fromkeys(["regprocedure", "regoper", "regoperator"], Type.REGPROC),
    "int2vector": Type.SMALLINT_ARRAY,
    "oidvector": Type.OID_ARRAY,
    **{info.name: kind for kind, info in INFOS.items()},
}
_TYPES |= {f"_{name}": kind.array for name, kind in _TYPES.items() if kind.array and name not in {"json", "float4"}}
_MODIFIED_TYPES = {"numeric": ModifiedType.NUMERIC, "varchar": ModifiedType.VARCHAR, "bpchar": ModifiedType.BPCHAR}
_WITH_MODIFIERS = frozenset({"varchar", "bpchar", "numeric", "timestamp", "timestamptz", "interval"})
_UNSUPPORTED = frozenset(
    ["timetz", "xml", "money", "bit", "varbit", "macaddr8", "point", "line", "lseg", "box", "path", "polygon", "circle"]
)
_UNSUPPORTED |= {"tsvector", "tsquery"}


def type_of(name: TypeName) -> Type:
    """Return the type of a name, without its modifiers.

    Raises:
        SqlError: 42704, there is no such type; 0A000, the type is not supported; 42601, the type takes no modifiers.
    """
    kind = _TYPES.get(name.name)
    if kind is None:
        if name.name in _UNSUPPORTED:
            instead = "Take text, which holds whatever its values are written as."
            raise SqlError("0A000", f"type {name.name} is not supported", offset=name.offset, hint=instead)
        nearest = suggest(name.name, _TYPES)
        hint = f"Did you mean {nearest}?" if nearest else None
        raise SqlError("42704", f'type "{name.name}" does not exist', offset=name.offset, hint=hint)
    if name.modifiers and kind is Type.TIME:
        raise SqlError("0A000", "precisions of time are not supported", offset=name.offset, hint="Omit the precision.")
    if name.modifiers and name.name not in _WITH_MODIFIERS:
        message = f'type modifier is not allowed for type "{name.name}"'
        raise SqlError("42601", message, offset=name.offset)
    _check_modifiers(name)
    if name.is_array and kind.array is None:
        raise SqlError("0A000", f"arrays of {kind.value} are not supported", offset=name.offset, hint="Use jsonb.")
    return kind.array or kind if name.is_array else kind


def modifier_of_type(name: TypeName) -> TypeModifier | None:
    """Return the modifier of a type; None without a supported one."""
    modified = _MODIFIED_TYPES.get(name.name)
    if modified is None or not name.modifiers or name.is_array:
        return None
    return TypeModifier(modified, *name.modifiers[: 2 if modified is ModifiedType.NUMERIC else 1])


def _check_modifiers(name: TypeName) -> None:
    if name.name == "numeric" and name.modifiers and not 1 <= name.modifiers[0] <= 1000:
        message = f"NUMERIC precision {name.modifiers[0]} must be between 1 and 1000"
        raise SqlError("22023", message, offset=name.offset)
    if name.name == "numeric" and len(name.modifiers) > 1 and not -1000 <= name.modifiers[1] <= 1000:
        message = f"NUMERIC scale {name.modifiers[1]} must be between -1000 and 1000"
        raise SqlError("22023", message, offset=name.offset)
    if name.name in {"varchar", "bpchar"} and name.modifiers and name.modifiers[0] < 1:
        shown = "varchar" if name.name == "varchar" else "char"
        raise SqlError("22023", f"length for type {shown} must be at least 1", offset=name.offset)
