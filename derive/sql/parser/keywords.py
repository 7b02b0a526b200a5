"""Which words may be names, and of what: as in PostgreSQL."""

from __future__ import annotations

RESERVED = frozenset(
    """all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create
    current_catalog current_date current_role current_time current_timestamp current_user default deferrable desc
    distinct do else end except false fetch for foreign from grant group having in initially intersect into lateral
    leading limit localtime localtimestamp not null offset on only or order placing primary references returning
    select session_user some symmetric table then to trailing true union unique user using variadic when where
    window with""".split()  # noqa: SIM905 (a list would be a page)
)
"""Words that are names only in quotes, or behind AS."""

FUNCTIONS_ONLY = frozenset(
    """authorization binary collation concurrently cross current_schema freeze full ilike inner is isnull join left
    like natural notnull outer overlaps right similar tablesample verbose""".split()  # noqa: SIM905 (a list would be a page)
)
"""Words that name functions and types without quotes, but no columns or relations."""

COLUMNS_ONLY = frozenset(
    """between bigint bit boolean char character coalesce dec decimal exists extract float greatest grouping inout int
    integer interval least national nchar none normalize nullif numeric out overlay position precision real row
    setof smallint substring time timestamp treat trim values varchar""".split()  # noqa: SIM905 (a list would be a page)
)
"""Words that name columns and relations without quotes, but no functions."""

NEEDS_AS = frozenset(
    """array as char character create day except fetch filter for from grant group having hour intersect into isnull
    limit minute month notnull offset on order over overlaps precision returning second to union varying where
    window with within without year""".split()  # noqa: SIM905 (a list would be a page)
)
"""Words that name a column of a result only behind AS."""
