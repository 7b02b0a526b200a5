"""The model of a data folder: relations are identifiers with an owner, and a name only finds one."""

from __future__ import annotations

from dataclasses import dataclass, field

from derive.storage.metadata.owner import Owner

Rows = dict[int, int]
"""Values by key."""

PLAIN, SOURCE, SUBJECT = "c/x", "c/source", "a"
NAMES = (SUBJECT, "b", "@1/a", "a_tmp")
"""Names of SQL; tasks of the catalog read the first."""
INDEXED = "w"
"""Name of a view whose rows an instance has, and Storage does not."""


def sums(rows: Rows) -> dict[int, tuple[int, int]]:
    """Return the number of rows and the sum of values of each group, as the derivations compute them."""
    groups: dict[int, tuple[int, int]] = {}
    for key, value in rows.items():
        number, total = groups.get(key % 3, (0, 0))
        groups[key % 3] = number + 1, total + value
    return groups


def tenfold(rows: Rows) -> Rows:
    """Return the rows of a view over a table with the given rows."""
    return {key: 10 * value for key, value in rows.items()}


@dataclass(eq=False)
class Relation:
    """One history of rows.

    Attributes:
        id: identifier in Storage; of documents, a number of the model.
        owner: the only kind of writer.
        base: the table that a view reads; None for other relations.
        versions: rows as of each commit, by the number of the commit, in order.
        is_dropped: whether the relation has ended; its name may still find it.
        has_extra: whether the table has one more column.
        rewrites: how many times it has lost that column, so that earlier times have other columns.
    """

    id: int
    owner: Owner
    base: Relation | None = None
    versions: list[tuple[int, Rows]] = field(default_factory=list)
    is_dropped: bool = False
    has_extra: bool = False
    rewrites: int = 0

    @property
    def rows(self) -> Rows:
        """Return the present rows."""
        return self.versions[-1][1] if self.versions else {}

    def at(self, commit: int) -> Rows | None:
        """Return the rows as of a commit; None for a time before the relation."""
        known = [rows for number, rows in self.versions if number <= commit]
        return known[-1] if known else None


@dataclass
class Reader:
    """A task of the catalog that reads the table with the name `SUBJECT`.

    Attributes:
        follows: whether it continues with another relation of the name.
        relation: the relation that it has read; None before its first step.
        rows: the rows that its results follow from.
        is_stopped: whether its run has met another relation.
    """

    follows: bool
    relation: Relation | None = None
    rows: Rows = field(default_factory=dict)
    is_stopped: bool = False

    def step(self, now: Relation | None) -> None:
        """Read up to the present."""
        if self.relation is None or not self.relation.id:  # of a declared name there was nothing to read
            self.relation = now
        if self.follows:
            if now is not None and now.versions and (now is self.relation or not now.is_dropped):
                self.relation, self.rows = now, now.rows
        elif now is not self.relation:
            self.is_stopped = True
        elif not self.is_stopped and now is not None:
            self.rows = now.rows


@dataclass
class Model:
    """The folder as it has to be.

    Attributes:
        names: relations by name; a dropped one keeps its name until another relation gets it.
        plain: the collection `PLAIN`.
        source: the collection that `PLAIN` is derived from.
        readers: tasks by name.
        ids: all identifiers that were ever given.
        commits: number of commits so far.
        last: last value that was written, which is never written again.
        is_deriving: whether the catalog derives `PLAIN`.
    """

    names: dict[str, Relation] = field(default_factory=dict)
    plain: Relation = field(default_factory=lambda: Relation(-1, Owner.NOBODY))
    source: Rows = field(default_factory=dict)
    readers: dict[str, Reader] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)
    commits: int = 0
    last: int = 0
    is_deriving: bool = False

    def __post_init__(self) -> None:
        follows = {"r/stops": False, "r/follows": True, "m/stops": False, "m/follows": True}
        self.readers = {name: Reader(follow) for name, follow in follows.items()}

    def live(self, *owners: Owner) -> list[str]:
        """Return the names of relations of SQL, in order; of some owners only, if any are given."""
        return sorted(
            name
            for name, relation in self.names.items()
            if relation.id and not relation.is_dropped and (not owners or relation.owner in owners)
        )

    def tables(self) -> list[str]:
        """Return the names of tables."""
        return self.live(Owner.TABLE)

    def free(self) -> list[str]:
        """Return the names that SQL may give to a relation."""
        return [name for name in NAMES if name not in self.live()]

    def views_of(self, relation: Relation) -> list[str]:
        """Return the names of the views over a table."""
        return [name for name in self.live() if self.names[name].base is relation]

    def next_value(self) -> int:
        """Return a value that was never written."""
        self.last += 1
        return self.last

    def create(self, name: str, owner: Owner, base: Relation | None = None) -> Relation:
        """Bind a new relation to a name; the real identifier is not known yet."""
        relation = Relation(-1, owner, base)
        placeholder = self.names.get(name)
        if placeholder is not None and not placeholder.id:  # the catalog has declared the name
            relation = placeholder
            relation.id, relation.owner, relation.base = -1, owner, base
        self.commits += 1
        relation.versions.append((self.commits, {} if base is None else tenfold(base.rows)))
        self.names[name] = relation
        return relation

    def write(self, relation: Relation, rows: Rows) -> None:
        """Replace the rows of a table or collection in one commit, and those of the views over the table."""
        self.commits += 1
        relation.versions.append((self.commits, rows))
        for name in self.views_of(relation):
            self.names[name].versions.append((self.commits, tenfold(rows)))

    def drop(self, name: str) -> None:
        """Drop a relation of SQL and the views over it."""
        relation = self.names[name]
        for view in [*self.views_of(relation), name]:
            self.names[view].is_dropped = True
        self.commits += 1

    def rename(self, name: str, new_name: str) -> None:
        """Give a relation of SQL another name, which is free."""
        self.names[new_name] = self.names.pop(name)

    def swap(self, one: str, two: str) -> None:
        """Let two relations of SQL change their names."""
        self.names[one], self.names[two] = self.names[two], self.names[one]

    def declare(self) -> None:
        """Open a run: the catalog declares a name that is free in Storage."""
        if SUBJECT not in self.names:
            self.names[SUBJECT] = Relation(0, Owner.TABLE)
        for reader in self.readers.values():
            reader.is_stopped = False

    def step(self) -> None:
        """Let all tasks read up to the present."""
        if self.is_deriving and self.plain.owner in {Owner.NOBODY, Owner.TASK} and self.plain.rows != self.source:
            self.plain.owner = Owner.TASK
            self.write(self.plain, dict(self.source))
        for reader in self.readers.values():
            reader.step(self.names.get(SUBJECT))

    def results(self) -> dict[str, object]:
        """Return the results of all tasks, and whether each has stopped.

        A reader of a derived collection waits while the collection belongs to another writer.
        """
        results: dict[str, object] = {PLAIN: self.plain.rows}
        if not (self.is_deriving and self.plain.owner is Owner.INGEST):
            results["r/documents"] = sums(self.plain.rows)
        for name, reader in self.readers.items():
            results[name] = sums(reader.rows) if name.startswith("r/") else reader.rows
            results[f"{name} is stopped"] = reader.is_stopped
        return results

    def stored(self) -> list[str]:
        """Return the names of relations of SQL that Storage has rows of."""
        return [name for name in self.live() if name != INDEXED]
