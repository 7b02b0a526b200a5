"""From a text to its statements: structure, positions and errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from derive.errors import SqlError
from derive.sql.parser.ast import Logical, NumberLiteral, Operation, QualifiedName, Select, Test, TypeCast
from derive.sql.parser.parse import parse, split
from derive.sql.parser.statement import (
    Close,
    Copy,
    CopyFormat,
    Deallocate,
    Declare,
    Discard,
    Execute,
    Explain,
    Explanation,
    Fetch,
    Insert,
    Prepare,
    SelectStatement,
    Set,
    Show,
    ShowObjects,
    Statement,
    Subscribe,
)
from derive.sql.parser.transaction_statements import (
    Begin,
    Commit,
    Rollback,
    SetTransaction,
    TransactionModes,
)


def shown(node: object) -> str:
    """An expression with all of its parentheses."""
    match node:
        case NumberLiteral(text):
            return text
        case Operation(symbol, operands):
            forms = [*map(shown, operands)]
            return f"({' '.join((*forms[:-1], symbol, forms[-1]))})"
        case Logical(connective, operands):
            forms = [*map(shown, operands)]
            return f"({f' {connective} '.join(forms)})" if len(forms) > 1 else f"(not {forms[0]})"
        case Test(operand, what, is_negated):
            return f"({shown(operand)} is {'not ' if is_negated else ''}{what})"
        case TypeCast(operand, target):
            return f"{shown(operand)}::{target.name}"
    raise AssertionError(node)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 ^ 4", "(1 + (2 * (3 ^ 4)))"),
        ("1 - 2 - 3", "((1 - 2) - 3)"),
        ("2 ^ 3 ^ 4", "((2 ^ 3) ^ 4)"),
        ("-2 ^ 2", "(-2 ^ 2)"),
        ("- 2::int", "(- 2::int4)"),
        ("1 -> 2 = 3", "((1 -> 2) = 3)"),
        ("1 || 2 + 3", "(1 || (2 + 3))"),
        ("1 @> 2 || 3", "((1 @> 2) || 3)"),
        ("not 1 = 2 and 3 or 4 and 5", "(((not (1 = 2)) and 3) or (4 and 5))"),
        ("1 = 2 is null", "((1 = 2) is null)"),
        ("1 is null = 2", "((1 is null) = 2)"),
        ("1 and 2 and 3", "(1 and 2 and 3)"),
        ("1 < 2 + 3", "(1 < (2 + 3))"),
        ("1 like 2 || 3", "(1 ~~ (2 || 3))"),
        ("1 = 2 like 3", "(1 = (2 ~~ 3))"),
        ("1 = not 2", "(1 = (not 2))"),
        ("@ 1 + 2", "(@ (1 + 2))"),
        ("1 operator(pg_catalog.+) 2", "(1 + 2)"),
    ],
)
def test_operators_have_precedence(text: str, expected: str) -> None:
    statement = parse(f"select {text}")

    assert isinstance(statement, SelectStatement)
    assert isinstance(statement.query.body, Select)
    assert shown(statement.query.body.items[0].expression) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alter view v set schema s", "ALTER VIEW does not support this change"),
        ("alter materialized view v owner to x", "ALTER MATERIALIZED VIEW does not support this change"),
        ("alter table t alter a set storage plain", "ALTER COLUMN does not support this change"),
    ],
)
def test_unsupported_changes_name_their_statement(text: str, message: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)

    assert (caught.value.sqlstate, caught.value.message) == ("0A000", message)


@pytest.mark.parametrize(
    ("text", "near", "offset"),
    [
        ("select 1 +", None, 10),
        ("select from from", "from", 12),
        ("select a from t t1 t2", "t2", 19),
        ("select 1 = 2 = 3", "=", 13),
        ("select 1 between 2 and 3 between 4 and 5", "between", 25),
        ("selec 1", "selec", 0),
        ("select 'a' 'b'", "'b'", 11),
        ("select * from (select 1", None, 23),
        ("select a as from t", "t", 17),
        ("insert into t", None, 13),
        ("create view v as", None, 16),
        ("select 1 limit 1 limit 2", "limit", 17),
        ("select left from t", "from", 12),
        ("select * from a join b", None, 22),
        ("update t set", None, 12),
    ],
)
def test_syntax_errors_have_positions(text: str, near: str | None, offset: int) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)

    expected = f'syntax error at or near "{near}"' if near else "syntax error at end of input"
    assert (caught.value.sqlstate, caught.value.message, caught.value.offset) == ("42601", expected, offset)


@pytest.mark.parametrize(
    "text", ["select * from acmeBank/balances b", "subscribe acmeBank/balances", "copy acmeBank/balances to stdout"]
)
def test_unquoted_collection_names_get_a_hint(text: str) -> None:
    with pytest.raises(SqlError, match='syntax error at or near "/"') as caught:
        parse(text)

    assert caught.value.hint == 'Names with a slash need quotes: "acmeBank/balances".'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("begin isolation level serializable, read only", Begin(TransactionModes("serializable", True))),
        ("START TRANSACTION", Begin(tag="START TRANSACTION")),
        ("end", Commit()),
        ("abort work;", Rollback()),
        (
            "set transaction isolation level strict serializable",
            SetTransaction(TransactionModes("strict serializable")),
        ),
        ("SET x.Y TO 'a', b, -1", Set("x.y", ("a", "b", "-1"), 4)),
        ("set local time zone 'UTC'", Set("timezone", ("UTC",), 10, is_local=True)),
        ("reset all", Set("all", None, 6)),
        ("show transaction isolation level", Show("transaction isolation level", 5)),
        ("show columns from s.t", ShowObjects("columns", QualifiedName("s", "t", 18), 5)),
        ("discard all", Discard("all")),
        ("unlisten *", Discard("listeners")),
        ("fetch forward 5 from c", Fetch("c", 5, 21)),
        ("fetch all c with (timeout = '1s')", Fetch("c", None, 10, "1s")),
        ("close all", Close(None, 6)),
        ("deallocate prepare p", Deallocate("p", 19)),
        ("execute p (1)", Execute("p", (NumberLiteral("1", 11),), 8)),
        ("subscribe to t with (progress, snapshot false)", Subscribe(QualifiedName(None, "t", 13), False, True)),
        (
            "copy t (a) from stdin csv header",
            Copy(QualifiedName(None, "t", 5), (("a", 8),), True, CopyFormat("csv", ",", "", True)),
        ),
        ("", None),
        (" ; -- nothing", None),
    ],
)
def test_statements_are_parsed(text: str, expected: Statement | None) -> None:
    assert parse(text) == expected


def test_nested_statements_are_parsed() -> None:
    explained = parse("explain timestamp for select 1")
    prepared = parse("prepare p (int) as insert into t values ($1);")
    declared = parse("declare c cursor for subscribe t as of 5 up to 7")

    assert isinstance(explained, Explain)
    assert (explained.explanation, explained.text) == (Explanation.TIMESTAMP, "select 1")
    assert isinstance(prepared, Prepare)
    assert isinstance(prepared.statement, Insert)
    assert prepared.text == "insert into t values ($1)"
    assert isinstance(declared, Declare)
    assert isinstance(declared.statement, Subscribe)
    assert declared.statement.up_to == NumberLiteral("7", 47)


@pytest.mark.parametrize(
    "text",
    [
        "select {begin}(select 1){end}".format(begin="(" * 40, end=" + 1)" * 40),
        "select * from {begin}(select 1) x{end}".format(begin="(" * 40, end=" cross join t)" * 40),
        "select * from {begin}(select 1) x{end}".format(begin="((select * from " * 40, end=") a cross join t)" * 40),
        "select {begin}1{end}".format(begin="((select " * 40, end=") + 1)" * 40),
    ],
)
def test_nested_parentheses_are_parsed_a_few_times_each(text: str) -> None:
    assert isinstance(parse(text), SelectStatement)
    with pytest.raises(SqlError) as caught:
        parse(f"{text[:-2]} where where")
    assert caught.value.sqlstate == "42601"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("select a from t as of 5", 5),
        ("select a as of from t as x as of 7", 7),
        ("select 1 as of 3", 3),
        ("select 1 from t as of", None),
    ],
)
def test_as_of_times_are_parsed(text: str, time: int | None) -> None:
    statement = parse(text)

    assert isinstance(statement, SelectStatement)
    if time is None:
        assert statement.as_of is None
    else:
        assert statement.as_of is not None
        assert statement.as_of.time == NumberLiteral(str(time), len(text) - 1)


def test_split_returns_statements_with_offsets() -> None:
    assert split("select ';' ; ;; -- begin;\n begin;commit") == ((0, "select ';'"), (27, "begin"), (33, "commit"))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("selec 2", "SELECT"),
        ("shwo tables", "SHOW"),
        ("create tabel t (a int)", "TABLE"),
        ("create replica x (adress 'a:1')", "ADDRESS"),
        ("insert inot t values (1)", "INTO"),
        ("select * form t", "FROM"),
        ("select a from t where a betwen 1 and 2", "BETWEEN"),
        # What is misspelt was taken for an alias, and the error is behind it.
        ("select a form t", "FROM"),
        ("select a from t wher a = 1", "WHERE"),
        ("select a from t gruop by a", "GROUP"),
        ("update t ste a = 1", "SET"),
        # Nothing is near.
        ("select a from t e f", None),
        ("select )", None),
        ("x", None),
        ("select 1 +", None),
        ('create "tabel" t (a int)', None),
    ],
)
def test_misspelt_keyword_gets_a_suggestion(text: str, hint: str | None) -> None:
    with pytest.raises(SqlError, match="syntax error") as caught:
        parse(text)

    assert caught.value.hint == (f"Did you mean {hint}?" if hint else None)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("create table t (user text)", "user"),
        ("select a from order", "order"),
        ("select a, from t", None),
        ("select a from t where order by a", None),
    ],
)
def test_reserved_name_gets_a_hint_to_quote(text: str, word: str | None) -> None:
    with pytest.raises(SqlError, match="syntax error") as caught:
        parse(text)

    hint = f'This word is reserved in SQL. Quote the name of a column or table: "{word}".'
    assert caught.value.hint == (hint if word else None)


def test_excessive_nesting_is_refused() -> None:
    with pytest.raises(SqlError, match="stack depth limit exceeded") as caught:
        parse("select " + "(" * 5000 + "1" + ")" * 5000)

    assert caught.value.sqlstate == "54001"


WORDS = [
    "select",
    "from",
    "where",
    "(",
    ")",
    ",",
    "*",
    "a",
    "b",
    "t",
    "'x'",
    "1",
    "=",
    "+",
    "and",
    "not",
    "in",
    "is",
    "null",
]
WORDS += [
    "order",
    "group",
    "by",
    "limit",
    "join",
    "on",
    "as",
    "of",
    "with",
    "union",
    "over",
    "case",
    "when",
    "end",
    "between",
]


@given(st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_every_text_parses_or_raises_an_sql_error(text: str) -> None:
    offset = None
    try:
        parse(text)
    except SqlError as error:
        offset = error.offset

    assert offset is None or 0 <= offset <= len(text)


def test_alteration_of_a_user_names_the_place_of_passwords() -> None:
    """The command `\\password` of psql sends such a statement."""
    with pytest.raises(SqlError, match="--password-file"):
        parse("ALTER USER ann PASSWORD 'SCRAM-SHA-256$4096:x'")
