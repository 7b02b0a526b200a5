"""Regular expressions match what a real PostgreSQL says, and take no longer for texts that are made to be slow."""

from __future__ import annotations

import string
import time

import pytest
from conftest import examples
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from postgres_oracle import TOO_LONG, Outcome, call_sql, literal, literal_sql, of_ours, of_postgres

from derive.algebra.expression import Call, Literal
from derive.algebra.types import Type
from derive.errors import SqlError
from derive.functions.regex.expression import regular_expression
from derive.functions.registry import evaluate, resolve_function, resolve_operator
from derive.functions.scalar.pattern_matching import LikePattern
from derive.functions.statement_context import running

Argument = str | int

_LETTERS = "aabbcx_ -1\nÄäßΣσς中"
_ATOMS = st.one_of(
    st.sampled_from([*"aaabbbcxÄσ中", " ", "_", "1", ".", "(?:)", "()", r"\.", r"\n", r"\x61", r"\u00e4"]),
    st.sampled_from(
        [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "[ab]", "[^a]", "[a-c]", "[[:alpha:]]", "[^[:space:]b]"]
    ),
    st.sampled_from(["[[:upper:]x]", "[[:punct:]]", "[]a]", "[a-]", r"[\wx]", "[^a-z]", "[Ä-ü]", "[[=a=]b]"]),
    st.sampled_from(["^", "$", r"\y", r"\Y", r"\A", r"\Z", r"\mb", r"a\M", r"\m\w"]),
)
_QUANTIFIERS = st.sampled_from(
    ["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?", "{1,1}?", "{2}?", "{1,}"]
)
_CONSTRAINTS = {"^", "$", r"\y", r"\Y", r"\A", r"\Z"}


@st.composite
def _quantified(draw: st.DrawFn, atoms: st.SearchStrategy[str]) -> str:
    atom = draw(atoms)
    quantifier = draw(_QUANTIFIERS)
    if atom in _CONSTRAINTS:
        return atom
    return f"(?:{atom}){quantifier}" if atom.startswith(r"\m") or atom.endswith(r"\M") else atom + quantifier


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    branches = st.lists(_quantified(inner), min_size=1, max_size=4).map("".join)
    alternations = st.lists(branches, min_size=1, max_size=3).map("|".join)
    return st.one_of(alternations.map(lambda part: f"({part})"), alternations.map(lambda part: f"(?:{part})"))


_NODES = st.recursive(_ATOMS, _combined, max_leaves=8)
EXPRESSIONS = st.lists(st.lists(_quantified(_NODES), max_size=5).map("".join), min_size=1, max_size=2).map("|".join)
TEXTS = st.text(st.sampled_from(_LETTERS), max_size=12)
FLAGS = st.lists(st.sampled_from("inpwsc"), max_size=2).map("".join)


def _quoted(argument: Argument) -> str:
    return str(argument) if isinstance(argument, int) else "'" + argument.replace("'", "''") + "'::text"


def _call(name: str, *arguments: Argument) -> Call:
    literals = tuple(Literal(part, Type.INTEGER if isinstance(part, int) else Type.TEXT) for part in arguments)
    resolve = resolve_function if name[0].isalpha() else resolve_operator
    resolution = resolve(name, [literal.type for literal in literals])
    return Call(resolution.function, literals, resolution.result_type)


def _outcomes(name: str, *arguments: Argument) -> tuple[Outcome, Outcome]:
    texts = list(map(_quoted, arguments))
    sql = f"{name}({', '.join(texts)})" if name[0].isalpha() else f"{texts[0]} {name} {texts[1]}"
    return of_ours(_call(name, *arguments)), of_postgres(sql)


def _assert_alike(name: str, *arguments: Argument) -> None:
    ours, theirs = _outcomes(name, *arguments)
    # PostgreSQL compiles some expressions for longer than a test may take, and then refuses them.
    assume(theirs.sqlstate != TOO_LONG and "too complex" not in theirs.message)
    if ours.sqlstate == "0A000":
        assert theirs.sqlstate is None, (name, arguments)
        return
    assert (ours.type, ours.datum, ours.sqlstate) == (theirs.type, theirs.datum, theirs.sqlstate), (
        name,
        arguments,
        str(ours),
        str(theirs),
    )


@settings(max_examples=examples(400), deadline=None)
@example(r"(a*?)(b|ab)(c*)", "aabcc", "")
@example(r"(a|ab)(bc|c)", "abc", "")
@example(r"(?:a|(b))*", "ab", "")
@example(r"(a|ab|b)*", "ab", "")
@example(r"((a)|b){2}", "ab", "")
@example(r"(a+?){1,1}(a*)", "aaa", "")
@example(r"|(a|(a|\d){1,2})*?", "11111111", "")
@example(r".((\w+[^:])*?)*(\D)", "a_a1Ä", "")
@example(r"^(a){0,3}$", "aaa", "")
@example(r"^((a)|b){0,3}$", "aba", "")
@example(r"^(x(a)?y){0,3}$", "xyxayxy", "")
@example(r"(bb|((a)??(b)){0,3}?)", "babab", "")
@example(r"((((a)|b)){0,3}?|)", "aab", "")
@example(r"^((a|)((b)|)){0,3}?$", "abba", "")
@example(r".((\w+[^:]){0,3}?){0,2}(\D)", "a_a1Ä", "")
@given(EXPRESSIONS, TEXTS, FLAGS)
def test_matches_and_groups_equal_postgresql(expression: str, text: str, flags: str) -> None:
    replacement = r"<\&|\1|\2|\3|\4>"
    _assert_alike("regexp_replace", text, expression, replacement, f"g{flags}")
    _assert_alike("regexp_substr", text, expression, 1, 2, flags, 1)


@settings(max_examples=examples(150), deadline=None)
@given(EXPRESSIONS, TEXTS, FLAGS, st.integers(0, 5), st.integers(0, 3), st.integers(0, 2))
def test_regexp_functions_equal_postgresql(
    expression: str, text: str, flags: str, begin: int, which: int, group: int
) -> None:
    _assert_alike("regexp_like", text, expression, flags)
    _assert_alike("regexp_count", text, expression, begin, flags)
    _assert_alike("regexp_instr", text, expression, begin, which, group % 2, flags, group)
    _assert_alike("regexp_replace", text, expression, r"[\1]", begin, which, flags)
    _assert_alike("substring", text, expression)
    _assert_alike("!~*", text, expression)
    _assert_alike("regexp_match", text, expression, flags)
    _assert_alike("regexp_split_to_array", text, expression, flags)


@settings(max_examples=examples(400), deadline=None)
@given(st.text(st.sampled_from(r"ab1(){}[]*+?|.^$\,-:=#! dwsyZmx<>"), max_size=8), TEXTS)
def test_invalid_expressions_fail_as_in_postgresql(expression: str, text: str) -> None:
    ours, theirs = _outcomes("~", text, expression)
    if ours.sqlstate != "0A000":
        assert (ours.datum, ours.sqlstate) == (theirs.datum, theirs.sqlstate), (
            expression,
            text,
            str(ours),
            str(theirs),
        )


@settings(max_examples=examples(200), deadline=None)
@given(st.text(st.sampled_from(r'ab%_|()*+?[]{}1,\#"^$.'), max_size=8), TEXTS, st.sampled_from(["\\", "#", ""]))
def test_similar_to_equals_postgresql(pattern: str, text: str, escape: str) -> None:
    ours = of_ours(
        Call("matches_text", (Literal(text, Type.TEXT), _call("similar_to_escape", pattern, escape)), Type.BOOLEAN)
    )
    theirs = of_postgres(f"{_quoted(text)} SIMILAR TO {_quoted(pattern)} ESCAPE {_quoted(escape)}")
    if ours.sqlstate != "0A000":
        assert (ours.datum, ours.sqlstate) == (theirs.datum, theirs.sqlstate), (str(ours), str(theirs))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "%", "_", "(a|b)", "[ab]", "ab*", '#"']), max_size=8), TEXTS)
def test_substring_similar_equals_postgresql(pieces: list[str], text: str) -> None:
    pattern = "".join(pieces)
    ours = of_ours(_call("substring", text, pattern, "#"))
    theirs = of_postgres(f"substring({_quoted(text)} similar {_quoted(pattern)} escape '#')")
    assert (ours.datum, ours.sqlstate) == (theirs.datum, theirs.sqlstate), (str(ours), str(theirs))


@settings(max_examples=examples(300), deadline=None)
@given(st.text(st.sampled_from("aAbÄä%_\\\n"), max_size=8), st.text(st.sampled_from("aAbÄä%_\\\n"), max_size=12))
def test_like_equals_postgresql(pattern: str, text: str) -> None:
    for symbol in ("~~", "!~~", "~~*", "!~~*"):
        ours, theirs = _outcomes(symbol, text, pattern)
        if ours.sqlstate != "22025":  # which PostgreSQL notices in some texts only
            assert (ours.datum, ours.sqlstate) == (theirs.datum, theirs.sqlstate), (str(ours), str(theirs))


@pytest.mark.parametrize(
    ("expression", "sqlstate"),
    [
        (r"(a)\1", "0A000"),
        (r"a(?=b)", "0A000"),
        (r"(?<!a)b", "0A000"),
        (r"a(?!b)", "0A000"),
        (r"\mx*", "0A000"),
        ("(?b)a", "0A000"),
        ("(a", "2201B"),
        ("a)", "2201B"),
        ("[a", "2201B"),
        ("a{2,1}", "2201B"),
        ("a{256}", "2201B"),
        ("a**", "2201B"),
        ("*a", "2201B"),
        ("[[:none:]]", "2201B"),
        ("[b-a]", "2201B"),
        (r"a\2", "2201B"),
        ("(" * 5000 + ")" * 5000, "2201B"),
        ("ab" * 200_000, "2201B"),
        ("((a{200}){200}){200}", "2201B"),
    ],
)
def test_unsupported_expressions_are_refused(expression: str, sqlstate: str) -> None:
    with pytest.raises(SqlError) as raised:
        regular_expression(expression)
    assert raised.value.sqlstate == sqlstate


def test_overlong_expressions_are_refused() -> None:
    with pytest.raises(SqlError) as raised:
        regular_expression("(" + "a" * 100_000)  # it is not closed, either
    assert raised.value.message == "invalid regular expression: regular expression is too complex"


@pytest.mark.parametrize("pattern", ["a_" * 20_000, "_" + "a" * 100_000])
def test_long_like_patterns_are_matched(pattern: str) -> None:
    assert LikePattern("a" * 1_000_000 + "%").matches("a" * 1_000_001)
    with pytest.raises(SqlError) as raised:
        LikePattern(pattern)
    assert (raised.value.sqlstate, raised.value.message) == ("54001", "LIKE pattern is too long")


def test_unsupported_expressions_have_hints() -> None:
    with pytest.raises(SqlError) as raised:
        regular_expression(r"(a)\1")
    assert raised.value.hint == "Select the two parts with regexp_substr, and compare them with =."


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("~", ("a" * 40 + "c", "(a+)+b"), 0),
        ("~", ("a" * 100_000, "(a|aa)+$b"), 0),
        ("~", ("x" * 100_000, "(x+x+)+y"), 0),
        ("~", ("ä" * 100_000, "(ä+ä+)+y"), 0),
        ("~~", ("a" * 100_000, "%a%a%a%a%a%a%b"), 0),
        ("~~", ("a" * 100_000, "%a_%a_%a_%a%_b"), 0),
        ("~~*", ("Ä" * 20_000, "%ä%ä%ä%ä%b"), 0),
        ("regexp_count", ("a" * 20_000, "a+?"), 20_000),
        ("regexp_replace", ("a" * 20_000 + "c", "(a*)*(a|c)", r"\2"), "c"),
        ("regexp_replace", ("a" * 2_000 + "c", "^(.*?)(a|b|c)$", r"\2"), "c"),
    ],
)
def test_regular_expressions_take_bounded_time(name: str, arguments: tuple[str, ...], expected: Argument) -> None:
    begin = time.perf_counter()

    assert evaluate(_call(name, *arguments)) == expected
    assert time.perf_counter() - begin < 60


def test_overlong_matches_are_refused() -> None:
    with pytest.raises(SqlError) as raised:
        evaluate(_call("~", "a" * 20_000_000, "a{250}b{250}c{250}"))
    assert raised.value.sqlstate == "54000"


def test_many_matches_in_one_text_can_be_cancelled() -> None:
    asked: list[None] = []

    def cancelled() -> bool:
        asked.append(None)
        return len(asked) > 10

    with running(cancelled), pytest.raises(SqlError) as raised:
        evaluate(_call("regexp_replace", "a" * 1_000_000, "a", "b", "g"))
    assert raised.value.sqlstate == "57014"


def test_expression_may_distinguish_many_characters() -> None:
    letters = string.ascii_letters + string.digits

    assert evaluate(_call("regexp_replace", f"ä{letters}ö", f"({letters})", "<>")) == "ä<>ö"
    assert evaluate(_call("~", "ä" + letters, rf"\y{letters}")) == 0


# Templates of `to_char`, `to_date`, `to_timestamp` and `to_number`, as people write them.


NUMBERS = ["0", "1", "-1", "0.5", "-0.25", "12", "-485", "1485", "148.5", "-1234567.891", "3148.5", "99.995"]
NUMBER_TEMPLATES = [
    "9999", "0000", "999.99", "FM999.99", "FM990.00", "9,999.99", "9G999D99", "S9999", "9999S", "MI9999", "SG999", "FM9999999.999", "999TH", "FM0999", "0.0", "99.0", '"No. "9999', "$9999.00", "FM$9,999,999.00",
]  # fmt: skip


def same(symbol: str, texts: list[tuple[str, Type]]) -> None:
    resolution = resolve_function(symbol, [kind for _, kind in texts])
    arguments = tuple(literal(text, kind) for text, kind in texts)
    ours = of_ours(Call(resolution.function, arguments, resolution.result_type))
    theirs = of_postgres(call_sql(symbol, [literal_sql(text, kind) for text, kind in texts]))
    assert (ours.type, ours.datum, ours.sqlstate) == (theirs.type, theirs.datum, theirs.sqlstate)


@pytest.mark.parametrize("template", NUMBER_TEMPLATES)
def test_to_char_formats_numbers(template: str) -> None:
    for number in NUMBERS:
        same("to_char", [(number, Type.NUMERIC), (template, Type.TEXT)])
    same("to_char", [("-12", Type.BIGINT), (template, Type.TEXT)])


@pytest.mark.parametrize(
    ("text", "template"),
    [("12,454.8-", "99G999D9S"), ("-12.5", "99.9"), ("  7", "99"), ("1,234", "9,999"), ("$12.50", "$99.99")],
)
def test_to_number_parses_numbers(text: str, template: str) -> None:
    same("to_number", [(text, Type.TEXT), (template, Type.TEXT)])


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("05 Dec 2000", "DD Mon YYYY"),
        ("5 January 2020", "DD Month YYYY"),
        ("2020-02-29 13:14:15.678", "YYYY-MM-DD HH24:MI:SS.MS"),
        ("20200229T131415", 'YYYYMMDD"T"HH24MISS'),
        ("02/03/20 04:05 PM", "MM/DD/YY HH12:MI AM"),
        ("2020-366", "YYYY-DDD"),
        ("2020 13", "YYYY MM"),
        ("44-03-15 BC", "YYYY-MM-DD BC"),
        ("2020-01-01 13 PM", "YYYY-MM-DD HH12 PM"),
        ("2020-01-01 25", "YYYY-MM-DD HH24"),
        ("x", "YYYY"),
        ("05 Foo 2000", "DD Mon YYYY"),
        ("2020-01-01 00:00:00.123456", "YYYY-MM-DD HH24:MI:SS.US"),
    ],
)
def test_to_timestamp_parses_timestamps(text: str, template: str) -> None:
    same("to_timestamp", [(text, Type.TEXT), (template, Type.TEXT)])
    same("to_date", [(text, Type.TEXT), (template, Type.TEXT)])
