"""A statement that a client has prepared, and how its rows are on the wire in the formats that the client asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from derive.errors import SqlError
from derive.recently_used import RecentlyUsed
from derive.sql.outcome import Prepared, ResultColumn
from derive.sql.pgwire import messages
from derive.sql.pgwire.requests import formats_for
from derive.sql.pgwire.values import Encoder, encoder_of

_MOST_SHAPES = 16
_MOST_COLUMNS = 1664
"""As PostgreSQL has it; a message could say 32,767."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows on the wire.

    Attributes:
        formats: of each column.
        encoders: which make bytes of its data.
        description: the message that describes them.
    """

    formats: tuple[int, ...]
    encoders: tuple[Encoder, ...]
    description: bytes


def shape_of(columns: Sequence[ResultColumn] | None, formats: Sequence[int]) -> Shape:
    """Rows of some columns; none for None.

    Raises:
        SqlError: there are not as many formats, or there is none such, or too many columns.
    """
    if columns is None:
        return Shape((), (), messages.NO_DATA)
    if len(columns) > _MOST_COLUMNS:
        what = f"target lists can have at most {_MOST_COLUMNS} entries"
        raise SqlError("54011", what, hint="select fewer columns at once, or make a jsonb of them")
    forms = formats_for(formats, len(columns), "result columns")
    encoders = tuple(encoder_of(column, form) for column, form in zip(columns, forms, strict=True))
    return Shape(forms, encoders, messages.row_description(columns, forms))


class PreparedStatement:
    """What a session has understood, and what was made for it before.

    Attributes:
        prepared: as the session gave it.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self._shapes: RecentlyUsed[tuple[int, ...], Shape] = RecentlyUsed(_MOST_SHAPES)

    def shape(self, formats: tuple[int, ...]) -> Shape:
        """Its rows, in formats as `Bind` has them.

        Raises:
            SqlError: as of `shape_of`.
        """
        return self._shapes.get(formats) or self._shapes.put(formats, shape_of(self.prepared.columns, formats))
