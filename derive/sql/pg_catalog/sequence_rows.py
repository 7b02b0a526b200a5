"""Rows of PostgreSQL's catalogs about sequences, identity columns and defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from derive.algebra.types import Type
from derive.functions.scalar.text import quoted_name
from derive.functions.types.pg_type import OID_OF
from derive.sql.catalog.items import hashed
from derive.sql.catalog.snapshot import FIRST_OID
from derive.sql.parser.sequences import Identity
from derive.sql.pg_catalog.objects import CatalogRow, ObjectKind, ObjectRelation, sequences_of_default
from derive.sql.planner.interfaces import NamedColumn
from derive.sql.planner.sequences import numbering_of

_RELATIONS, _DEFAULTS = 1259, 2604
_BITS = {Type.SMALLINT: 16, Type.INTEGER: 32, Type.BIGINT: 64}


def _type(relation: ObjectRelation) -> Type:
    return Type.BIGINT if relation.owner is None else relation.owner.column.type


def _numbers(relation: ObjectRelation, names: Mapping[str, str]) -> CatalogRow:
    """Return numbers of a sequence, by the names of columns."""
    return {column: int(str(relation.numbers[name])) for name, column in names.items()}


def sequences_of(relation: ObjectRelation) -> Iterator[CatalogRow]:
    """Yield the row of a sequence in `pg_sequence`."""
    if relation.kind is ObjectKind.SEQUENCE:
        names = {"start": "seqstart", "increment": "seqincrement", "most": "seqmax", "least": "seqmin"}
        row: CatalogRow = {"seqrelid": FIRST_OID + relation.id, "seqtypid": OID_OF[_type(relation)], "seqcache": 1}
        yield row | _numbers(relation, names)


def sequence_views(owner: str, relation: ObjectRelation) -> Iterator[CatalogRow]:
    """Yield the row of a sequence in `pg_sequences`, with its oid in place of its last number."""
    names = {"start": "start_value", "increment": "increment_by", "most": "max_value", "least": "min_value"}
    named: CatalogRow = {"schemaname": relation.schema, "sequencename": relation.name, "sequenceowner": owner}
    others: CatalogRow = {"data_type": OID_OF[_type(relation)], "cycle": False, "cache_size": 1}
    yield named | others | {"last_value": FIRST_OID + relation.id} | _numbers(relation, names)


def information_of_sequences(database: str, relation: ObjectRelation) -> Iterator[CatalogRow]:
    """Yield the row of a sequence in `information_schema.sequences`, which has no sequences of identities."""
    if relation.owner is not None and relation.owner.column.identity is not Identity.SERIAL:
        return
    kind = _type(relation)
    names = {"start": "start_value", "increment": "increment", "most": "maximum_value", "least": "minimum_value"}
    yield {
        "sequence_catalog": database,
        "sequence_schema": relation.schema,
        "sequence_name": relation.name,
        "data_type": kind.value,
        "numeric_precision": _BITS[kind],
        "numeric_precision_radix": 2,
        "numeric_scale": 0,
        "cycle_option": "NO",
        **{column: str(value) for column, value in _numbers(relation, names).items()},
    }


def dependencies_of(relation: ObjectRelation, sequences: Mapping[tuple[str, str], int]) -> Iterator[CatalogRow]:
    """Yield the dependencies of a sequence on its column, and of defaults on sequences: a dump has sequences first.

    Args:
        relation: the relation.
        sequences: identifiers of all sequences by schema and name.
    """
    if relation.owner is not None:
        own: CatalogRow = {"classid": _RELATIONS, "objid": FIRST_OID + relation.id, "refclassid": _RELATIONS}
        own |= {"refobjid": FIRST_OID + relation.owner.table, "refobjsubid": relation.owner.number}
        yield own | {"deptype": "a" if relation.owner.column.identity is Identity.SERIAL else "i"}
    for column in relation.columns:
        if column.identity is Identity.SERIAL:
            names = [(relation.schema, numbering_of(relation.name, column).name)]
        else:
            names = sequences_of_default(column.default)
        for schema, name in names:
            if (used := sequences.get((schema or relation.schema, name))) is not None:
                default: CatalogRow = {"classid": _DEFAULTS, "refclassid": _RELATIONS, "deptype": "n"}
                default["objid"] = FIRST_OID + hashed(relation.id, "default", column.name)
                yield default | {"refobjid": FIRST_OID + used}


def has_default(column: NamedColumn) -> bool:
    """Return whether a column has a default, or an expression that generates it."""
    return column.default is not None or column.generated is not None or column.identity is Identity.SERIAL


def default_text_of(relation: ObjectRelation, column: NamedColumn, path: Sequence[str]) -> str | None:
    """Return the expression of a default or of a generated column; None for neither.

    Args:
        relation: the table.
        column: the column.
        path: schemas of names without a schema.
    """
    if column.identity is Identity.SERIAL:
        place = "" if relation.schema in path else f"{quoted_name(relation.schema)}."
        name = f"{place}{quoted_name(numbering_of(relation.name, column).name)}".replace("'", "''")
        return f"nextval('{name}'::regclass)"
    return column.default if column.generated is None else f"({column.generated})"


def identity_letter(column: NamedColumn) -> str:
    """Return `attidentity`."""
    return "" if column.identity in {None, Identity.SERIAL} else column.identity.value


def identity_columns(column: NamedColumn) -> CatalogRow:
    """Return the columns about identity in `information_schema.columns`."""
    if column.identity in {None, Identity.SERIAL}:
        return {"is_identity": "NO"}
    own = numbering_of("", column)
    return {
        "is_identity": "YES",
        "identity_generation": "ALWAYS" if column.identity is Identity.ALWAYS else "BY DEFAULT",
        "identity_start": str(own.start),
        "identity_increment": str(own.increment),
        "identity_minimum": str(own.least),
        "identity_maximum": str(own.most),
    }
