"""Branches of SQL: arms of CASE and outcomes of WHERE, and a copy of a statement that notes which ones are reached.

The copy gives the same values. An arm `THEN v` becomes `THEN CASE WHEN flow_reached(3) THEN NULL ELSE v END`, where
`flow_reached` notes the branch 3, and returns 0. A call around `v` itself would lose the subtype of JSON, and the type
by which SQLite chooses the affinity of a subquery's columns.

WHERE is measured in a SELECT without FROM, as in `SELECT $id WHERE $amount > 100`. In other statements, a condition
with a call could not use an index, so the order of rows could change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from derive.lambda_sql.statements import split_block, written_tokens
from derive.protocol.derive import Branch
from derive.protocol.specs import DerivationSpec, TransformSpec

REACHED = "flow_reached"
"""The function that notes its argument, the number of a branch, and returns 0."""

_BEFORE_NAMES = frozenset(
    [*"(,.=<>+-*/%|&~", "AS", "AND", "OR", "NOT", "CASE", "WHEN", "THEN", "ELSE", "SELECT", "WHERE", "BY", "IN", "IS"]
)
"""Tokens after which END is a name, because an expression or a name follows."""

_MEASURED = frozenset({"SELECT", "WITH", "VALUES", "INSERT", "REPLACE", "UPDATE", "DELETE"})
"""First words of measured statements: others store their expressions in the schema."""

_AFTER_WHERE = frozenset(
    ["GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "UNION", "INTERSECT", "EXCEPT", "RETURNING", "ON", ";"]
)
"""Words that end a condition, besides the bracket that closes its SELECT."""


@dataclass(frozen=True, slots=True)
class MeasuredBranch:
    """A branch of a block of SQL.

    Attributes:
        begin: offset of its keyword in the block.
        keyword: WHEN, ELSE or WHERE.
        what: description, such as `WHERE is never true`.
        edits: offsets in the block, with the text that is inserted there; `{}` in it stands for the branch's number.
    """

    begin: int
    keyword: str
    what: str
    edits: tuple[tuple[int, str], ...]


@dataclass(slots=True)
class _Open:
    """An open bracket, CASE or statement.

    Attributes:
        kind: `(`, or CASE.
        keyword: place of the last WHEN or ELSE of a CASE, and of the WHERE of a bracket's SELECT; -1 for none.
        begin: end of the token before the value of an arm, or before a condition; -1 outside of these.
        is_select: whether the bracket has a SELECT that has no FROM until now.
    """

    kind: str
    keyword: int = -1
    begin: int = -1
    is_select: bool = False


@dataclass(slots=True)
class _Scan:
    """Finds the branches of one statement.

    Attributes:
        offset: offset of the statement in its block.
        tokens: offset in the statement, and text, of each token.
    """

    offset: int
    tokens: Sequence[tuple[int, str]]
    _open: list[_Open] = field(default_factory=lambda: [_Open("(")])
    _measured: list[MeasuredBranch] = field(default_factory=list)

    def branches(self) -> list[MeasuredBranch]:
        """Return the branches; none if brackets and CASEs do not match."""
        words = [text.upper() for _, text in self.tokens]
        if not words or words[0] not in _MEASURED:
            return []
        for place, word in enumerate(words):
            if not self._read(place, word, words[place - 1] if place else ""):
                return []
        self._end_where(len(words))
        return self._measured if len(self._open) == 1 else []

    def _read(self, place: int, word: str, before: str) -> bool:
        """Read a token; return False if it closes nothing that is open."""
        inner = self._open[-1]
        if word == "END" and before in _BEFORE_NAMES:
            return True
        if inner.kind == "CASE" and word in ("WHEN", "ELSE", "END"):
            self._end_arm(place)
            inner.keyword = place
        if word in ("(", "CASE"):
            self._open.append(_Open(word))
        elif word in ("THEN", "ELSE") and inner.kind == "CASE":
            inner.begin = self._end_of(place)
        elif word in ("END", ")"):
            if inner.kind == "(":
                self._end_where(place)
            self._open.pop()
            return bool(self._open) and inner.kind == ("(" if word == ")" else "CASE")
        elif inner.kind == "(":
            self._read_clause(place, word, before)
        return True

    def _read_clause(self, place: int, word: str, before: str) -> None:
        inner = self._open[-1]
        if word in _AFTER_WHERE:
            self._end_where(place)
        if word == "SELECT":
            inner.is_select = True
        elif word == "FROM" and before != "DISTINCT":
            inner.is_select = False
        elif word == "WHERE" and inner.is_select:
            inner.keyword, inner.begin = place, self._end_of(place)

    def _end_arm(self, place: int) -> None:
        inner = self._open[-1]
        if inner.begin < 0:
            return
        word = self.tokens[inner.keyword][1].upper()
        edits = ((inner.begin, f" CASE WHEN {REACHED}({{}}) THEN NULL ELSE "), (self._end_of(place - 1), " END "))
        what = f"{word} of CASE is never taken"
        self._measured.append(MeasuredBranch(self._begin_of(inner.keyword), word, what, edits))
        inner.begin = -1

    def _end_where(self, place: int) -> None:
        inner = self._open[-1]
        if inner.begin < 0:
            return
        keyword, end = self._begin_of(inner.keyword), self._end_of(place - 1)
        passed = ((inner.begin, " CASE WHEN "), (end, f" THEN NOT {REACHED}({{}})"))
        filtered = ((end, f" ELSE {REACHED}({{}}) END "),)
        self._measured += [
            MeasuredBranch(keyword, "WHERE", "WHERE is never true", passed),
            MeasuredBranch(keyword, "WHERE", "WHERE is never false", filtered),
        ]
        inner.begin, inner.is_select = -1, False

    def _begin_of(self, place: int) -> int:
        return self.offset + self.tokens[place][0]

    def _end_of(self, place: int) -> int:
        begin, text = self.tokens[place]
        return self.offset + begin + len(text)


def find_branches(text: str) -> list[MeasuredBranch]:
    """Return the branches of a block, in the order of their keywords.

    >>> [(branch.begin, branch.what) for branch in find_branches("SELECT CASE WHEN $a THEN 1 ELSE 2 END AS b;")]
    [(12, 'WHEN of CASE is never taken'), (27, 'ELSE of CASE is never taken')]
    """
    branches = [
        branch for offset, part in split_block(text) for branch in _Scan(offset, list(written_tokens(part))).branches()
    ]
    return sorted(branches, key=lambda branch: branch.begin)


def instrument(text: str, offset: int, branches: Sequence[tuple[int, MeasuredBranch]]) -> str:
    """Return a copy of a statement that calls `flow_reached` with the numbers of its branches.

    >>> instrument("SELECT 1 WHERE $a", 0, list(enumerate(find_branches("SELECT 1 WHERE $a"))))
    'SELECT 1 WHERE CASE WHEN  $a THEN NOT flow_reached(0) ELSE flow_reached(1) END '

    Args:
        text: the statement.
        offset: its offset in its block.
        branches: its branches, with their numbers.
    """
    edits = [(place, inserted.format(number)) for number, branch in branches for place, inserted in branch.edits]
    written, begin = [], 0
    for place, inserted in sorted(edits, key=lambda edit: edit[0]):
        written += [text[begin : place - offset], inserted]
        begin = place - offset
    return "".join([*written, text[begin:]])


class BranchNumbers:
    """The branches of a derivation's lambdas, numbered through all transforms.

    Args:
        spec: the derivation.
    """

    def __init__(self, spec: DerivationSpec) -> None:
        self._of: dict[int, list[tuple[int, MeasuredBranch]]] = {}
        number = 0
        for transform in spec.transforms:
            branches = find_branches(transform.script.text) if transform.script else []
            self._of[transform.index] = list(enumerate(branches, number))
            number += len(branches)

    def within(self, transform: TransformSpec, begin: int, end: int) -> list[tuple[int, MeasuredBranch]]:
        """Return the branches between two offsets of a transform's lambda, with their numbers."""
        return [item for item in self._of[transform.index] if begin <= item[1].begin < end]

    @staticmethod
    def placed(transform: TransformSpec, numbered: Sequence[tuple[int, MeasuredBranch]]) -> Iterator[Branch]:
        """Yield branches of a transform with their positions."""
        assert transform.script is not None
        for number, branch in numbered:
            position = transform.script.locate(branch.begin, len(branch.keyword))
            yield Branch(number, transform.index, position, branch.what)
