"""A connector that the conformance tests drive: `subject_<name>.py` beside this makes one.

Such a module has a function `make(folder, request)`, which returns a `Subject` over an empty endpoint in that folder;
`request` is pytest's, for those who need a fixture (`request.getfixturevalue("postgres")`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raw_client import Document, Key

from connectors.kit import MaterializeConnector


@dataclass(frozen=True)
class Subject:
    """A connector, and what the tests need to know about it.

    Attributes:
        connector: is served as it would be by `flowctl connector serve`.
        config: an endpoint's configuration, of an endpoint that is there and empty.
        resource: a binding's configuration, by the name of a table and whether it has delta updates.
        rows: documents in a table by key, as somebody sees them who knows nothing of the connector. With delta updates:
            all that was stored, by key, the last one if there are several.
        loads: whether it can do without delta updates.
        deltas: whether it can do with them.
        transactional: whether what is stored and the checkpoint are committed together, and sessions are fenced.
        deletes: whether it deletes rows.
        applies: whether there is anything to make ready in an endpoint.
        holds_nul: whether a text may have U+0000.
        wrong: configurations that it must refuse without looking at an endpoint.
    """

    connector: MaterializeConnector
    config: Any
    resource: Callable[[str, bool], Any]
    rows: Callable[[str], dict[Key, Document]]
    loads: bool = True
    deltas: bool = True
    transactional: bool = True
    deletes: bool = True
    applies: bool = True
    holds_nul: bool = True
    wrong: tuple[Any, ...] = field(default=({"no such": "property"},))
