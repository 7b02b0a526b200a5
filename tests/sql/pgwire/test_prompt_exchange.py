"""Look-ups that are answered at once are answered as all others, byte for byte, and see what was written before."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest
from byte_client import ByteClient, message, state_of
from patience import PATIENCE_SECONDS
from recorded_server import SLOW, RecordedServer, RecordedSession, recorded_server

PROMPT = "flow"
SYNC, FLUSH = message(b"S"), message(b"H")
DESCRIBE, EXECUTE = message(b"D", b"P\0"), message(b"E", b"\0\0\0\0\0")
INT8, TEXT = 20, 25


def parse(text: str, name: str = "s", oids: Sequence[int] = ()) -> bytes:
    body = name.encode() + b"\0" + text.encode() + b"\0" + struct.pack(f"!H{len(oids)}I", len(oids), *oids)
    return message(b"P", body)


def bind(
    *arguments: bytes | None,
    name: str = "s",
    portal: str = "",
    formats: Sequence[int] = (),
    result_formats: Sequence[int] = (),
) -> bytes:
    values = b"".join(struct.pack("!i", -1) if one is None else struct.pack("!i", len(one)) + one for one in arguments)
    head = portal.encode() + b"\0" + name.encode() + b"\0" + struct.pack(f"!H{len(formats)}h", len(formats), *formats)
    tail = struct.pack(f"!H{len(result_formats)}h", len(result_formats), *result_formats)
    return message(b"B", head + struct.pack("!H", len(arguments)) + values + tail)


class Pair:
    """The same client twice: look-ups of the one may be answered at once, those of the other never are.

    Attributes:
        prompt: the one.
        slow: the other one.
        session: of the one.
    """

    def __init__(self, server: RecordedServer) -> None:
        self.prompt, self.slow = (
            ByteClient(server.port, startup_body=f"user\0{user}\0database\0flow\0\0".encode())
            for user in (PROMPT, SLOW)
        )
        self.session: RecordedSession = server.sessions[PROMPT]

    def close(self) -> None:
        self.prompt.close()
        self.slow.close()

    def answers(self, *sent: bytes) -> list[tuple[bytes, bytes]]:
        """The answer up to `ReadyForQuery`, which is the same for both."""
        self.prompt.send(b"".join(sent))
        prompt = self.prompt.until(b"Z")
        self.slow.send(b"".join(sent))
        assert self.slow.until(b"Z") == prompt
        return prompt

    def kinds(self, *sent: bytes) -> str:
        return b"".join(kind for kind, _ in self.answers(*sent)).decode()

    def is_prompt(self, *sent: bytes) -> bool:
        """Whether something is answered at once, and not by `execute`."""
        before = self.session.prompt, self.session.executed
        self.answers(*sent)
        after = self.session.prompt, self.session.executed
        assert (after[0] - before[0]) + (after[1] - before[1]) <= 1
        return after[0] > before[0]

    def settle(self, *sent: bytes, is_prompt: bool = True) -> None:
        """Wait until something is answered at once, as it is once what it reads is known; or is not any more."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.is_prompt(*sent) is not is_prompt:
            assert time.monotonic() < deadline


ROWS = (
    "(1, 'Ann', 1.5, true, 2.50, '2024-01-02 03:04:05+00', '{\"a\": 1}'),"
    "(2, NULL, NULL, NULL, NULL, NULL, NULL), (3, 'Ünal', -2e300, false, 0.001, '1999-12-31 23:59:59+00', '[]'),"
    "(4, '', 'NaN', true, -7, '2024-02-29 00:00:00+00', 'null'), (4, 'again', 0.1, false, 1e10, NULL, '\"x\"')"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedServer]:
    with recorded_server(tmp_path_factory.mktemp("data")) as running:
        with connected(running) as client:
            client.execute(
                "CREATE TABLE t (id bigint, name text, x double precision, b boolean, n numeric, at timestamptz, j jsonb)"
            )
            client.execute(f"INSERT INTO t VALUES {ROWS}")
            client.execute("CREATE INDEX t_by_id ON t (id)")
        yield running
    assert running.defects == []


@pytest.fixture
def pair(server: RecordedServer) -> Iterator[Pair]:
    clients = Pair(server)
    yield clients
    clients.close()


@contextmanager
def connected(server: RecordedServer) -> Iterator[psycopg.Connection]:
    address = f"host=127.0.0.1 port={server.port} user=writer dbname=flow"
    with psycopg.connect(address, autocommit=True) as client:
        yield client


def long(number: int) -> bytes:
    return struct.pack("!q", number)


def look_up(number: int, **options: Sequence[int]) -> bytes:
    return bind(long(number), formats=(1,), **options) + DESCRIBE + EXECUTE + SYNC  # type: ignore[arg-type]


def prepared(pair: Pair, text: str = "SELECT * FROM t WHERE id = $1", oids: Sequence[int] = (INT8,)) -> Pair:
    assert pair.kinds(parse(text, oids=oids), SYNC) == "1Z"
    return pair


def test_fast_path_returns_all_types_in_both_formats(pair: Pair) -> None:
    prepared(pair).settle(look_up(1))
    for number in range(6):
        for formats in ((), (0,), (1,), (1, 0, 1, 0, 1, 0, 1)):
            pair.settle(look_up(number, result_formats=formats))
    assert pair.answers(look_up(0))[-2] == (b"C", b"SELECT 0\0")
    assert pair.answers(look_up(4))[-2] == (b"C", b"SELECT 2\0")


def test_fast_path_describes_rows_only_on_request(pair: Pair) -> None:
    prepared(pair).settle(look_up(1))
    assert pair.kinds(look_up(1)) == "2TDCZ"
    pair.settle(bind(long(1), formats=(1,)), EXECUTE, SYNC)
    assert pair.kinds(bind(long(1), formats=(1,)), EXECUTE, SYNC) == "2DCZ"


def test_fast_path_takes_text_null_and_several_arguments(pair: Pair) -> None:
    prepared(pair).settle(look_up(1))
    pair.settle(bind(b"1"), EXECUTE, SYNC)
    pair.settle(bind(b" 2 "), EXECUTE, SYNC)
    pair.settle(bind(None), EXECUTE, SYNC)
    assert pair.kinds(parse("SELECT name FROM t WHERE id = 3", "none"), SYNC) == "1Z"
    pair.settle(bind(name="none"), EXECUTE, SYNC)
    assert pair.kinds(parse("SELECT x FROM t WHERE id = $1 AND name = $2", "two", (INT8, TEXT)), SYNC) == "1Z"
    for name in (b"Ann", b"nobody", b"", None):
        pair.settle(bind(long(1), name, name="two", formats=(1, 0)), EXECUTE, SYNC)
    assert pair.kinds(parse("SELECT name FROM t WHERE id = $1"), SYNC) == "EZ"  # there is one of this name


def test_fast_path_takes_unnamed_statements(pair: Pair) -> None:
    assert pair.kinds(parse("SELECT name FROM t WHERE id = $1", "", (INT8,)), SYNC) == "1Z"
    pair.settle(bind(long(1), name="", formats=(1,)), EXECUTE, SYNC)
    assert pair.kinds(parse("SELECT id, x FROM t WHERE id = $1", "", (INT8,)), SYNC) == "1Z"
    pair.settle(bind(long(1), name="", formats=(1,)), DESCRIBE, EXECUTE, SYNC)
    assert pair.answers(bind(long(1), name="", formats=(1,)), EXECUTE, SYNC)[1][1].endswith(b"\x011\0\0\0\x031.5")


def test_fast_path_takes_texts_with_their_numbers(pair: Pair) -> None:
    def query(text: str) -> bytes:
        return message(b"Q", text.encode() + b"\0")

    pair.settle(query("SELECT * FROM t WHERE id = 1"))
    assert pair.kinds(query("SELECT * FROM t WHERE id = 7")) == "TCZ"
    assert pair.kinds(query("BEGIN")) == "CZ"
    assert not pair.is_prompt(query("SELECT name FROM t WHERE id = 1"))
    assert pair.kinds(query("ROLLBACK")) == "CZ"
    assert not pair.is_prompt(query("SELECT name FROM t WHERE id = 'x'"))


def test_fast_path_follows_a_redefined_statement_name(pair: Pair) -> None:
    prepared(pair, "SELECT name FROM t WHERE id = $1").settle(look_up(1))
    assert pair.kinds(message(b"C", b"Ss\0"), SYNC) == "3Z"
    assert pair.kinds(look_up(1)) == "EZ"
    prepared(pair, "SELECT x FROM t WHERE id = $1")
    pair.settle(look_up(1))
    assert pair.answers(look_up(1))[2] == (b"D", b"\0\1\0\0\0\x031.5")


@pytest.mark.parametrize(
    ("sent", "state"),
    [
        (bind(long(1), formats=(1,), name="unknown") + EXECUTE + SYNC, "26000"),
        (bind() + EXECUTE + SYNC, "08P01"),  # too few
        (bind(long(1), long(2), formats=(1,)) + EXECUTE + SYNC, "08P01"),  # too many
        (bind(b"\0\1", formats=(1,)) + EXECUTE + SYNC, "22P03"),  # too short
        (bind(b"one") + EXECUTE + SYNC, "22P02"),
        (bind(b"\xff") + EXECUTE + SYNC, "22021"),
        (bind(long(1), formats=(2,)) + EXECUTE + SYNC, "22023"),
        (bind(long(1), formats=(1,), result_formats=(0, 1)) + EXECUTE + SYNC, "08P01"),
        (bind(long(1), formats=(1,), result_formats=(3,)) + EXECUTE + SYNC, "22023"),
        (message(b"B", b"\0s\0\0\1\0\1\0\1\0\0\0\x09" + long(1) + b"\0\0") + EXECUTE + SYNC, "08P01"),  # one byte less
        (message(b"B", b"\0s\0\0\1\0\1\0\1\0\0\0\x07" + long(1) + b"\0\0") + EXECUTE + SYNC, "08P01"),  # one more
        (message(b"B", b"\0s\0\0\1\0\1\0\1\xff\xff\xff\xfe\0\0") + EXECUTE + SYNC, "08P01"),
        (message(b"B", b"\0s") + EXECUTE + SYNC, "08P01"),
    ],
)
def test_fast_path_raises_the_usual_errors(pair: Pair, sent: bytes, state: str) -> None:
    prepared(pair).settle(look_up(1))
    for _ in range(2):
        before = pair.session.prompt
        assert [state_of(body) for kind, body in pair.answers(sent) if kind == b"E"] == [state]
        assert pair.session.prompt == before
        pair.settle(look_up(1))


def test_fast_path_returns_row_errors(pair: Pair) -> None:
    prepared(pair, "SELECT 10 / id - 10 / (id - 2) FROM t WHERE id = $1").settle(look_up(1))
    assert [state_of(body) for kind, body in pair.answers(look_up(2)) if kind == b"E"] == ["22012"]
    assert pair.kinds(bind(long(2), formats=(1,)), EXECUTE, bind(long(1), formats=(1,)), EXECUTE, SYNC) == "2EZ"
    pair.settle(look_up(3))


def test_fast_path_declines_other_exchanges(pair: Pair) -> None:
    prepared(pair).settle(look_up(1))
    one = bind(long(1), formats=(1,))
    before = pair.session.prompt
    assert pair.kinds(one, message(b"E", b"\0\0\0\0\1"), SYNC) == "2DsZ"
    assert pair.kinds(one, EXECUTE, one, EXECUTE, SYNC) == "2DC2DCZ"
    assert pair.kinds(bind(long(1), formats=(1,), portal="p"), message(b"E", b"p\0\0\0\0\0"), SYNC) == "2DCZ"
    assert pair.kinds(one, DESCRIBE, SYNC) == "2TZ"
    assert pair.kinds(one, EXECUTE, FLUSH, SYNC) == "2DCZ"
    assert pair.kinds(parse("SELECT 1", "other"), one, EXECUTE, SYNC) == "12DCZ"
    assert pair.session.prompt == before
    pair.settle(look_up(1))


def test_several_exchanges_at_once_are_answered_in_order(pair: Pair) -> None:
    prepared(pair).settle(look_up(1))
    answers = [pair.answers(look_up(number)) for number in (1, 2, 4)]
    assert [len(answer) for answer in answers] == [5, 5, 6]
    pair.prompt.send(b"".join(look_up(number) for number in (1, 2, 4)))
    assert [pair.prompt.until(b"Z") for _ in range(3)] == answers


def test_fast_path_takes_bytes_one_by_one(pair: Pair) -> None:
    prepared(pair).settle(look_up(1))
    whole = pair.answers(look_up(3))
    client = pair.prompt
    for begin in range(0, len(look_up(3)), 7):
        client.send(look_up(3)[begin : begin + 7])
    assert client.until(b"Z") == whole
    pair.settle(look_up(1))


def test_fast_path_sends_unflushed_messages_first(pair: Pair) -> None:
    prepared(pair).settle(look_up(1))
    client, session = pair.prompt, pair.session
    deadline = time.monotonic() + PATIENCE_SECONDS
    for number in itertools.count():  # until the answer to what is not flushed waits as the look-up comes
        before = session.prompt
        client.send(message(b"C", b"Ss%d\0" % number))
        pair.slow.send(SYNC)
        pair.slow.until(b"Z")  # the event loop has had its turn
        client.send(look_up(1))
        assert [kind for kind, _ in client.until(b"Z")] == [b"3", b"2", b"T", b"D", b"C", b"Z"]
        if session.prompt > before:
            break
        assert time.monotonic() < deadline


def test_fast_path_is_not_used_in_transactions(pair: Pair) -> None:
    prepared(pair).settle(look_up(1))
    before = pair.session.prompt
    assert pair.kinds(message(b"Q", b"BEGIN\0")) == "CZ"
    assert pair.answers(look_up(1))[-1] == (b"Z", b"T")
    assert pair.answers(bind(b"one"), EXECUTE, SYNC)[-1] == (b"Z", b"E")
    assert [state_of(body) for kind, body in pair.answers(look_up(1)) if kind == b"E"] == ["25P02"]
    assert pair.kinds(message(b"Q", b"ROLLBACK\0")) == "CZ"
    assert pair.kinds(message(b"Q", b"SET transaction_isolation = serializable\0")) == "CZ"
    assert pair.kinds(look_up(1)) == "2TDCZ"
    assert pair.session.prompt == before
    assert pair.kinds(message(b"Q", b"RESET transaction_isolation\0")) == "CZ"
    pair.settle(look_up(1))


def test_fast_path_queries_can_be_cancelled(pair: Pair) -> None:
    pairs = " CROSS JOIN ".join(f"t AS t{number}" for number in range(12))
    prepared(pair, f"SELECT count(*) FROM {pairs} WHERE t0.id >= $1")
    assert pair.kinds(message(b"Q", b"SET statement_timeout = 300\0")) == "CZ"
    assert [state_of(body) for kind, body in pair.answers(look_up(0)) if kind == b"E"] == ["57014"]
    assert pair.session.prompt == 0
    assert pair.kinds(parse("SELECT name FROM t WHERE id = $1", "short", (INT8,)), SYNC) == "1Z"
    pair.settle(bind(long(1), formats=(1,), name="short"), EXECUTE, SYNC)  # a limit is no reason to wait for


def test_fast_path_reads_as_of_a_time(pair: Pair) -> None:
    prepared(pair, "SELECT name FROM t WHERE id = $1 AS OF AT LEAST 0").answers(look_up(1))
    assert pair.kinds(look_up(1)) == "2TDCZ"
    assert pair.session.prompt == 0


STATEMENTS = (
    ("SELECT $1 + 9223372036854775807, name FROM t WHERE id = $1", INT8),
    ("SELECT count(*), sum(n), avg(x), array_agg(name) FROM t WHERE id = $1", INT8),
    ("SELECT n, n::text, n * n, n / 3, x::numeric, j->'a', at::date FROM t WHERE id = $1 ORDER BY 1", INT8),
    ("SELECT name::char(6), n::numeric(10,4), x::real, id::int FROM t WHERE id = $1 ORDER BY name", INT8),
    ("SELECT name::int FROM t WHERE id = $1", INT8),
    ("SELECT repeat(name, 200000000) FROM t WHERE id = $1", INT8),
    ("SELECT row_number() OVER (ORDER BY name), name FROM t WHERE id = $1 ORDER BY name LIMIT 1", INT8),
    ("SELECT id FROM t WHERE id = ANY($1) ORDER BY id", 1016),
    ("SELECT id FROM t WHERE name LIKE $1 ORDER BY id", TEXT),
    ("SELECT id FROM t WHERE name ~ $1 ORDER BY id", TEXT),
    ("SELECT id FROM t WHERE n = $1 ORDER BY id", 1700),
    ("SELECT id FROM t WHERE x = $1 ORDER BY id", 701),
    ("SELECT id FROM t WHERE at = $1 ORDER BY id", 1184),
    ("SELECT id FROM t WHERE j = $1 ORDER BY id", 3802),
    ("SELECT id FROM t WHERE b = $1 ORDER BY id", 16),
    ("SELECT $1::interval, name FROM t WHERE id = 1", 1186),
    ("SELECT $1, name FROM t WHERE id = 1", 1042),
    ("SELECT $1, name FROM t WHERE id = 1", 21),
)
"""Each with the type of its parameter."""
ARGUMENTS = (
    *(None, b"", b"1", b"2", b"4", b" 3 ", b"abc", b"\xff", b"a\0b", b"9223372036854775808", b"NaN", b"{4,NULL}", b"{"),
    *(b"true", b"[]", b"null", b"Ann", b"%", b"(", b"2024-01-02 03:04:05+00", b"1 day", b"0.0010", b"x" * 3_000),
    *(long(1), long(4), long(2**63 - 1), b"\0\0\0\1", b"\0\1", struct.pack("!d", 1.5), struct.pack("!d", float("nan"))),
)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("text", "oid"), STATEMENTS)
def test_fast_path_takes_statements_and_arguments_of_many_types(pair: Pair, text: str, oid: int) -> None:
    """Answers and errors are the same, whether the argument is one of the type or not."""
    prepared(pair, text, (oid,))
    for argument, form, result_form in itertools.product(ARGUMENTS, (0, 1), (0, 1)):
        sent = bind(argument, formats=(form,), result_formats=(result_form,)) + DESCRIBE + EXECUTE + SYNC
        assert pair.answers(sent)[-1] == (b"Z", b"I")


def test_regular_expressions_do_not_block_other_clients(pair: Pair) -> None:
    """A long one takes seconds; once it is understood, it is looked up like everything else."""
    prepared(pair, "SELECT id FROM t WHERE id = 1 AND name ~ $1", (TEXT,)).settle(bind(b"understood"), EXECUTE, SYNC)
    for expression in (b"[A-Z]nn", b"y" * 10_000):
        before = pair.session.prompt
        pair.prompt.send(bind(expression) + EXECUTE + SYNC)
        pair.prompt.until(b"Z")
        assert pair.session.prompt == before
        pair.settle(bind(expression), EXECUTE, SYNC)


def test_fast_path_declines_queries_that_call_now(pair: Pair) -> None:
    """`now()` is one moment of a transaction, and not one of each row."""
    prepared(pair, "SELECT now() = now(), count(DISTINCT now()) FROM t WHERE id = $1 GROUP BY 1")
    assert pair.answers(look_up(4))[2] == (b"D", b"\0\2\0\0\0\1t\0\0\0\x011")
    assert pair.session.prompt == 0


def test_pg_stat_activity_shows_the_last_point_lookup(server: RecordedServer, pair: Pair) -> None:
    text = "SELECT name, 'seen by others' FROM t WHERE id = $1"
    prepared(pair, text).settle(look_up(1))
    assert pair.kinds(message(b"Q", b"SELECT 1\0")) == "TDCZ"
    pair.settle(look_up(1))
    with connected(server) as other:
        seen = other.execute("SELECT count(*) FROM pg_stat_activity WHERE query = %s", (text,)).fetchone()
    assert seen == (2,)


def test_point_lookups_see_earlier_writes(server: RecordedServer, pair: Pair) -> None:
    """Point lookups see acknowledged writes of every connection, and return to the fast path soon after."""
    with connected(server) as writer:
        writer.execute("CREATE TABLE w (id bigint, name text)")
        writer.execute("CREATE INDEX w_by_id ON w (id)")
        prepared(pair, "SELECT count(*), max(name) FROM w WHERE id = $1")
        for number in range(30):
            writer.execute("INSERT INTO w VALUES (7, %s)", (f"name {number:02}",))
            row = next(body for kind, body in pair.answers(look_up(7)) if kind == b"D")
            assert row.endswith(f"name {number:02}".encode())
            pair.settle(look_up(7))
        writer.execute("DELETE FROM w")
        assert pair.answers(look_up(7))[2] == (b"D", b"\0\2\0\0\0\x010\xff\xff\xff\xff")


def test_fast_path_follows_changed_definitions(server: RecordedServer, pair: Pair) -> None:
    with connected(server) as writer:
        writer.execute("CREATE TABLE d (id bigint, name text)")
        writer.execute("INSERT INTO d VALUES (1, 'one')")
        prepared(pair, "SELECT * FROM d WHERE id = $1")
        assert pair.kinds(look_up(1)) == "2TDCZ"
        assert pair.session.prompt == 0  # without an index it is worked out
        for _ in range(2):
            writer.execute("CREATE INDEX d_by_id ON d (id)")
            pair.settle(look_up(1))
            writer.execute("DROP INDEX d_by_id")
            pair.settle(look_up(1), is_prompt=False)
        writer.execute("CREATE INDEX d_by_id ON d (id)")
        pair.settle(look_up(1))
        writer.execute("ALTER TABLE d RENAME TO e")
        assert [state_of(body) for kind, body in pair.answers(look_up(1)) if kind == b"E"] == ["42P01"]
        writer.execute("CREATE TABLE d (id bigint, other text, more bigint)")
        assert [state_of(body) for kind, body in pair.answers(look_up(1)) if kind == b"E"] == ["0A000"]
        writer.execute("DROP TABLE d")
        writer.execute("ALTER TABLE e RENAME TO d")
        pair.settle(look_up(1))
        writer.execute("DROP TABLE d")
        assert [state_of(body) for kind, body in pair.answers(look_up(1)) if kind == b"E"] == ["42P01"]


def test_catalog_queries_do_not_take_the_fast_path(pair: Pair) -> None:
    prepared(pair, "SELECT relname FROM pg_class WHERE relname = $1", (TEXT,))
    assert pair.kinds(bind(b"t"), DESCRIBE, EXECUTE, SYNC) == "2TDCZ"
    assert pair.session.prompt == 0


INSERTION = parse("INSERT INTO written VALUES ($1, $2)", "i", (INT8, TEXT))


@pytest.fixture
def inserting(server: RecordedServer, pair: Pair) -> Pair:
    """Return clients that have prepared an INSERT into a table without keys."""
    with connected(server) as client:
        client.execute("DROP TABLE IF EXISTS written")
        client.execute("CREATE TABLE written (id bigint NOT NULL, note text)")
        client.execute("CREATE TABLE IF NOT EXISTS keyed (id bigint PRIMARY KEY)")
    pair.answers(INSERTION, SYNC)
    return pair


def insert(number: bytes | None, note: bytes | None = b"x", *, described: bytes = DESCRIBE) -> bytes:
    return bind(number, note, name="i") + described + EXECUTE


def test_inserted_rows_are_answered_as_others_are(server: RecordedServer, inserting: Pair) -> None:
    """In a pipeline and alone; no statement of them is executed by `execute`."""
    before = inserting.session.executed
    for sent in (
        insert(b"1") + insert(b"2", None) + insert(b"3", described=b"") + SYNC,
        insert(b"4") + SYNC,
        bind(long(5), b"five", name="i", formats=(1, 0)) + DESCRIBE + EXECUTE + SYNC,
    ):
        inserting.answers(sent)
    assert inserting.session.executed == before
    with connected(server) as client:
        rows = client.execute("SELECT id, note, count(*) FROM written GROUP BY id, note ORDER BY id").fetchall()
    assert rows == [(1, "x", 2), (2, None, 2), (3, "x", 2), (4, "x", 2), (5, "five", 2)]


@pytest.mark.parametrize(
    ("sent", "count"),
    [
        (insert(b"1") + insert(None) + insert(b"2"), 0),
        (insert(b"1") + insert(b"word") + insert(b"2"), 0),
        (insert(b"1") + bind(b"2", name="i") + DESCRIBE + EXECUTE, 0),
        (insert(b"1") + EXECUTE + insert(b"2"), 0),
        (insert(b"1") + DESCRIBE + insert(b"2") + bind(b"3", b"", name="none") + EXECUTE, 0),
        (insert(b"1") + message(b"C", b"P\0") + DESCRIBE, 0),
        (insert(b"1") + DESCRIBE + message(b"C", b"P\0") + insert(b"2"), 2),
    ],
)
def test_pipelines_of_inserts_fail_as_others_do(
    server: RecordedServer, inserting: Pair, sent: bytes, count: int
) -> None:
    """Also in a transaction, where an INSERT after an error is refused; nothing of a failed pipeline is written."""
    inserting.answers(sent, SYNC)
    for text in (b"BEGIN\0", b"ROLLBACK\0"):
        inserting.answers(message(b"Q", text))
        if text == b"BEGIN\0":
            inserting.answers(sent, SYNC)
            inserting.answers(insert(b"9"), SYNC)
    with connected(server) as client:
        assert client.execute("SELECT count(*) FROM written").fetchall() == [(2 * count,)]
