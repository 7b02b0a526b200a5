"""Sessions run lambdas over batches as if each document came alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlite_derivation import FIELDS, batch, database, derivation, field, from_columns, publish, run, say_nothing

from connectors.derive_sqlite import SqliteConnector
from connectors.derive_sqlite.row import compile_row
from connectors.derive_sqlite.session import SqliteSession
from derive.errors import LambdaError
from derive.lambda_sql.guard import Guard
from derive.lambda_sql.parameter import compile_getter, find_projection
from derive.lambda_sql.statements import Statement, read_block
from derive.position import Position
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec, Document

TRANSFERS = [
    {"id": 1, "sender": "alice", "amount": 5},
    {"id": 2, "sender": "bob", "amount": 20.5},
    {"id": 3, "sender": "alice", "amount": 30},
]


def test_row_is_caused_by_its_document() -> None:
    assert run(derivation("SELECT $id, $amount WHERE $amount > 10"), TRANSFERS) == [
        (1, {"id": 2, "amount": 20.5}),
        (2, {"id": 3, "amount": 30}),
    ]


def test_many_rows_have_one_cause() -> None:
    sql = "SELECT value AS x FROM json_each('[1,2]') ORDER BY value"
    assert run(derivation(sql), TRANSFERS[:2]) == [(0, {"x": 1}), (0, {"x": 2}), (1, {"x": 1}), (1, {"x": 2})]


def test_state_is_seen_by_the_next_document() -> None:
    spec = derivation(
        "INSERT INTO seen VALUES ($sender) ON CONFLICT DO NOTHING RETURNING $id",
        migrations=["CREATE TABLE seen (sender TEXT PRIMARY KEY)"],
    )
    assert run(spec, TRANSFERS) == [(0, {"id": 1}), (1, {"id": 2})]


def test_statements_of_a_block_run_in_order_for_each_document() -> None:
    spec = derivation(
        "INSERT INTO t VALUES ($id); SELECT (SELECT group_concat(id) FROM t) AS ids; DELETE FROM t WHERE id < $id",
        migrations=["CREATE TABLE t (id)"],
    )
    assert [each for _, each in run(spec, TRANSFERS)] == [{"ids": "1"}, {"ids": "1,2"}, {"ids": "2,3"}]


def test_rows_of_several_statements_keep_their_shapes() -> None:
    spec = derivation("SELECT $id; SELECT $sender AS who")
    assert run(spec, TRANSFERS[:2]) == [(0, {"id": 1}), (0, {"who": "alice"}), (1, {"id": 2}), (1, {"who": "bob"})]


def test_transforms_run_in_the_order_of_documents() -> None:
    spec = derivation(
        "INSERT INTO t VALUES ($id)", "SELECT count(*) AS n FROM t", "-- nothing", migrations=["CREATE TABLE t (id)"]
    )
    documents = [{"id": place, "sender": "s", "amount": 0} for place in range(7)]
    assert run(spec, documents, [1, 0, 0, 1, 1, 2, 0]) == [(0, {"n": 0}), (3, {"n": 2}), (4, {"n": 2})]


def test_an_empty_batch_publishes_nothing() -> None:
    assert run(derivation("SELECT 1"), []) == []


def test_flow_fields_have_the_document_and_its_timestamp() -> None:
    document = {"id": 1, "sender": "ä", "amount": 0.5}
    assert publish("SELECT $flow_document, $flow_published_at", document) == [
        {"flow_document": document, "flow_published_at": "2023-11-14T21:13:20.123456Z"}
    ]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ('WITH x AS (SELECT $id, 1  +  1) SELECT "$id" AS a, "1  +  1" AS b FROM x', {"a": 1, "b": 2}),
        ("CREATE TABLE IF NOT EXISTS t AS SELECT $id; SELECT sql LIKE '%$id%' AS a FROM sqlite_schema WHERE name = 't'",
         {"a": 1}),
        ("SELECT /* $amount */ $id  ,  $sender -- what it is", {"id": 1, "sender": "alice"}),
    ],
)  # fmt: skip
def test_columns_without_alias_are_named_by_their_text(sql: str, expected: Document) -> None:
    assert run(derivation(sql), TRANSFERS[:1]) == [(0, expected)]


def test_batches_share_a_session_and_keep_the_transaction_open() -> None:
    db = database()
    session = SqliteConnector().open(
        derivation(
            "INSERT INTO t VALUES ($id) RETURNING (SELECT count(*) FROM t) AS n", migrations=["CREATE TABLE t (id)"]
        ),
        db,
        say_nothing,
    )
    assert [list(session.invoke(batch([each]))) for each in TRANSFERS] == [[(0, {"n": n})] for n in (1, 2, 3)]
    session.prepare_commit()
    session.close()
    assert db.in_transaction
    db.execute("COMMIT")
    assert db.execute("SELECT count(*) FROM t").get == 3


NO_OBJECT = "a column whose name begins with 'json' must hold an object, which is the document; the value is"
MIGRATION = ["CREATE TABLE t (id UNIQUE); CREATE TABLE u (id UNIQUE); INSERT INTO u VALUES (2);"]


@pytest.mark.parametrize(
    ("sql", "reason", "line"),
    [
        ("\nINSERT INTO u VALUES ($id)", "UNIQUE constraint failed: u.id", 2),
        ("INSERT INTO t VALUES ($id);\n\n-- here\nINSERT INTO u VALUES ($id)", "UNIQUE constraint failed: u.id", 4),
        ("SELECT $id;\nSELECT 1;\nINSERT INTO u VALUES ($id)", "UNIQUE constraint failed: u.id", 3),
        (  # which of the two, nobody can tell any more
            "INSERT INTO u VALUES ($id + 10);\nINSERT INTO u VALUES (iif($id = 2, 12, $id + 20))",
            "UNIQUE constraint failed: u.id",
            1,
        ),
        ("INSERT INTO t VALUES ($id);\nSELECT iif($id = 2, '[]', '{}') AS json", f"{NO_OBJECT} '[]'", 2),
        (
            "SELECT iif($id = 2, replace(hex(zeroblob(125)), '0', '[') || replace(hex(zeroblob(125)), '0', ']'), 1) AS x",
            "the lambda published a value that cannot be a document: it is nested more than 250 levels deep",
            1,
        ),
        ("SELECT iif($id = 2, NULL, '{}') AS json", f"{NO_OBJECT} NULL", 1),
        ("SELECT 1;\nSELECT json_extract(iif($id = 2, 'no', '{}'), '$.a') AS x", "malformed JSON", 2),
    ],
)
def test_a_failure_names_transform_reason_document_and_statement(sql: str, reason: str, line: int) -> None:
    with pytest.raises(LambdaError) as caught:
        run(derivation(sql, migrations=MIGRATION), TRANSFERS)
    document = '{"id":2,"sender":"bob","amount":20.5}'
    assert caught.value.message == f"the lambda of transform 'from0' failed: {reason}; the document was {document}"
    assert caught.value.position == Position("lambda.sql", line, 1)


@pytest.mark.parametrize("sql", ["SELECT $sender, $id", "SELECT $sender; SELECT $id"])
def test_an_integer_beyond_64_bits_is_named(sql: str) -> None:
    documents = [TRANSFERS[0], {"id": 9223372036854775808, "sender": "x", "amount": 1}]
    with pytest.raises(LambdaError, match=r"\$id is 9223372036854775808, which is beyond SQLite's 64-bit integers"):
        run(derivation(sql), documents)


def test_a_long_document_is_cut_in_the_message() -> None:
    with pytest.raises(LambdaError) as caught:
        run(derivation("SELECT json_extract($sender, '$')"), [{"id": 1, "sender": "x" * 5000, "amount": 1}])
    assert len(caught.value.message) < 1200
    assert caught.value.message.endswith("x…")


def test_rows_before_a_failure_are_published_first() -> None:
    session = SqliteConnector().open(derivation("SELECT json_extract($sender, '$') AS x"), database(), say_nothing)
    rows = session.invoke(batch([{"id": 1, "sender": "[1]", "amount": 1}, {"id": 2, "sender": "no", "amount": 1}]))
    assert next(rows) == (0, {"x": [1]})
    with pytest.raises(LambdaError):
        next(rows)
    session.close()


def test_statements_do_not_run_after_a_rollback() -> None:
    # State that an earlier version made: `flowctl check` refuses such a trigger.
    db = apsw.Connection(":memory:")
    db.execute(
        "CREATE TABLE t (id); CREATE TABLE u (id);"
        "CREATE TRIGGER g BEFORE INSERT ON u WHEN new.id = 2 BEGIN SELECT RAISE(ROLLBACK, 'two'); END; BEGIN"
    ).fetchall()
    spec = derivation("INSERT INTO t VALUES ($id);\nINSERT INTO u VALUES ($id)")
    session = SqliteConnector().open(spec, db, say_nothing)
    with pytest.raises(LambdaError, match="failed: two; the document was") as caught:
        list(session.invoke(batch(TRANSFERS)))
    session.close()
    assert caught.value.position == Position("lambda.sql", 1, 1)
    assert not db.in_transaction
    assert db.execute("SELECT count(*) FROM t").get == 0


def test_full_disk_error_is_passed_to_the_runtime() -> None:
    db = apsw.Connection(":memory:")
    db.execute("PRAGMA max_page_count = 4; BEGIN").fetchall()
    spec = derivation("INSERT INTO t VALUES ($sender)", migrations=["CREATE TABLE t (a)"])
    session = SqliteConnector().open(spec, db, say_nothing)
    with pytest.raises(apsw.FullError):
        list(session.invoke(batch([{"id": 1, "sender": "x" * 20_000, "amount": 1}])))
    session.close()


# The law: a batch is what its documents are one at a time, each statement executed by itself.

LAW_FIELDS = (
    *FIELDS,
    field("flag", "boolean"),
    field("note", "string", "null", default=("none",)),
    field("tags", "array"),
    field("tags/0", "string", pointer="/tags/0"),
    field("code", "string", format="integer"),
)
LAW_MIGRATION = ["CREATE TABLE t (id INTEGER, sender TEXT, amount, PRIMARY KEY (id, sender)) WITHOUT ROWID"]
STATEMENTS = [
    "SELECT $id, $amount, $sender;",
    "SELECT $id WHERE $amount > 3;",
    "SELECT $flag, $note, $tags, $tags$0, $code, $flow_published_at;",
    "SELECT json($flow_document);",
    "INSERT OR REPLACE INTO t VALUES ($id, $sender, $amount);",
    "INSERT INTO t VALUES ($id, $sender, $amount) ON CONFLICT DO NOTHING RETURNING $id, $amount AS first;",
    "DELETE FROM t WHERE sender = $sender AND id < $id;",
    "SELECT count(*) AS n, sum(amount) AS total FROM t;",
    "SELECT sender, id FROM t WHERE amount >= $amount;",
    "UPDATE t SET amount = amount + 1 WHERE id = $id RETURNING amount, $flag;",
    "-- nothing\n;",
]
DOCUMENTS = st.fixed_dictionaries(
    {"id": st.integers(0, 4), "sender": st.sampled_from(["a", "b", "{}"]), "amount": st.integers(0, 9) | st.just(2.5)},
    optional={
        "flag": st.booleans(),
        "note": st.none() | st.text(max_size=3),
        "tags": st.lists(st.sampled_from(["x", "[1]"]), max_size=2),
        "code": st.integers().map(str),
    },
)


def one_at_a_time(spec: DerivationSpec, documents: ReadBatch) -> Iterator[tuple[int, Document]]:
    """The oracle: splits, binds and executes anew for every document."""
    db = database()
    db.execute(LAW_MIGRATION[0])
    for place, document in enumerate(documents.documents):
        transform = spec.transforms[documents.transforms[place]]
        assert transform.script is not None
        guard = Guard(db)
        with guard:
            statements = list(read_block(guard, transform.script, "it"))
        for statement in statements:
            assert isinstance(statement, Statement)
            found: dict[str, Any] = {name: find_projection(name, LAW_FIELDS) for name in statement.parameters}
            values = [compile_getter(found[name])(document, documents.published[place]) for name in found]
            rows = db.execute(statement.text, values).fetchall()
            for row in rows:
                yield place, compile_row(statement.columns, {f"${name}": each for name, each in found.items()})(row)


@given(
    st.lists(st.lists(st.sampled_from(STATEMENTS), max_size=4).map("\n".join), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), DOCUMENTS), max_size=12),
    st.data(),
)
def test_batch_equals_its_documents_one_by_one(
    blocks: list[str], reads: list[tuple[int, Document]], data: st.DataObject
) -> None:
    spec = derivation(*blocks, fields=LAW_FIELDS, migrations=LAW_MIGRATION)
    whole = batch([document for _, document in reads], [which % len(blocks) for which, _ in reads])
    cut = data.draw(st.integers(0, len(reads)))
    expected = list(one_at_a_time(spec, whole))
    for invoke in (one_by_one, by_column):
        session = SqliteConnector().open(spec, database(), say_nothing)
        found = []
        for begin, end in ((0, cut), (cut, len(reads))):
            part = ReadBatch(
                whole.transforms[begin:end],
                whole.clocks[begin:end],
                whole.published[begin:end],
                whole.documents[begin:end],
            )
            found += [(begin + place, document) for place, document in invoke(session, part)]
        session.close()
        assert repr(found) == repr(expected)


def one_by_one(session: SqliteSession, read: ReadBatch) -> Iterator[tuple[int, Document]]:
    return session.invoke(read)


def by_column(session: SqliteSession, read: ReadBatch) -> Iterator[tuple[int, Document]]:
    """What is published as columns where that can be."""
    pairs = from_columns(session.invoke_columns(read))
    return session.invoke(read) if pairs is None else pairs


def test_rows_of_one_layout_are_returned_as_columns() -> None:
    flag = field("flag", "boolean")
    for blocks, is_columns in [
        (["SELECT $id, $amount"], True),
        (["SELECT $id", "DELETE FROM t WHERE id = $id"], True),
        (["SELECT $id", "SELECT $id WHERE $amount > 1"], True),
        (["SELECT $id", "SELECT $amount"], False),  # other properties
        (["SELECT $flag", "SELECT 1 AS flag"], False),  # 1 is a boolean in one of them only
        (["SELECT $id; SELECT $id"], False),  # two statements
        (["SELECT json($flow_document) AS json"], False),  # the document itself
        (["DELETE FROM t"], False),  # nothing
    ]:
        spec = derivation(*blocks, fields=(*FIELDS, flag), migrations=LAW_MIGRATION)
        session = SqliteConnector().open(spec, database(), say_nothing)
        assert (session.invoke_columns(batch(TRANSFERS)) is not None) == is_columns, blocks
        session.close()


def test_many_rows_are_returned_in_parts() -> None:
    sql = "SELECT $id, value FROM json_each('[' || substr(replace(hex(zeroblob(4000)), '00', ',0'), 2) || ']')"
    session = SqliteConnector().open(derivation(sql), database(), say_nothing)
    parts = session.invoke_columns(batch(TRANSFERS[:2] * 2))
    assert parts is not None
    assert [(len(part.causes), part.causes[0], part.causes[-1]) for part in parts] == [(9_984, 0, 2), (6_016, 2, 3)]
    session.close()


def test_invalid_documents_are_reported_before_later_failures() -> None:
    deep = "replace(hex(zeroblob(125)), '0', '[') || replace(hex(zeroblob(125)), '0', ']')"
    sql = f"SELECT CASE $id WHEN 2 THEN {deep} WHEN 3 THEN json_extract('no', '$') END AS x"
    with pytest.raises(LambdaError, match='nested more than 250 levels deep; the document was {"id":2'):
        run(derivation(sql), TRANSFERS)


def test_documents_of_alternating_transforms_are_run_in_their_order() -> None:
    spec = derivation("SELECT $id, 'a' AS by", "SELECT $id, 'b' AS by WHERE $amount < 30")
    assert run(spec, TRANSFERS * 2, [0, 1, 0, 1, 0, 1]) == [
        (0, {"id": 1, "by": "a"}),
        (1, {"id": 2, "by": "b"}),
        (2, {"id": 3, "by": "a"}),
        (3, {"id": 1, "by": "b"}),
        (4, {"id": 2, "by": "a"}),
    ]


def test_failure_among_alternating_transforms_names_its_transform() -> None:
    spec = derivation("SELECT $id", "SELECT $id WHERE json_extract($sender, '$') = 1")
    with pytest.raises(LambdaError, match="transform 'from1' failed: malformed JSON; the document was {\"id\":2"):
        run(spec, TRANSFERS, [0, 1, 0])
