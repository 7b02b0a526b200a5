"""`flowctl sql` from outside."""

from __future__ import annotations

from pathlib import Path

from forked_flowctl import flowctl

ROOT = Path(__file__).parents[2]


def sql(folder: Path, *arguments: str, text: str = "") -> tuple[int, str, str]:
    (folder / "data").mkdir(exist_ok=True)
    return flowctl(folder, "sql", "--data", str(folder / "data"), *arguments, text=text)


def test_sql_prints_results_in_each_format(tmp_path: Path) -> None:
    script = tmp_path / "t.sql"
    script.write_text(
        "CREATE TABLE t (a int, b text, c jsonb);\n"
        "INSERT INTO t VALUES (1, 'x, y', '{\"k\": [1]}'), (2, NULL, NULL);\n"
        "SELECT * FROM t ORDER BY a;\n"
    )

    rows = '{"a":1,"b":"x, y","c":{"k": [1]}}\n{"a":2,"b":null,"c":null}\n'
    assert sql(tmp_path, "-f", str(script)) == (0, rows, "CREATE TABLE\nINSERT 0 2\n")
    assert sql(tmp_path, "-c", "SELECT a, b FROM t ORDER BY a", "-o", "csv") == (0, 'a,b\n1,"x, y"\n2,\n', "")
    table = " a |  b\n---+------\n 1 | x, y\n 2 |\n(2 rows)\n\n"
    assert sql(tmp_path, "-o", "table", text="SELECT a, b FROM t ORDER BY a;") == (0, table, "")
    assert sql(tmp_path, "-c", "COPY t (a, b) FROM STDIN", text="3\tz\n") == (0, "", "COPY 1\n")
    assert sql(tmp_path, "-q", "-o", "json", "-c", "DELETE FROM t WHERE a = 2") == (0, "", "")
    assert sql(tmp_path, "-c", "COPY (SELECT b FROM t WHERE a = 3) TO STDOUT") == (0, "z\n", "")


def test_sql_reports_errors(tmp_path: Path) -> None:
    status, out, err = sql(tmp_path, "-c", "SELECT 1", "-c", "SELEC 2")

    assert (status, out) == (1, '{"?column?":1}\n')
    assert err == (
        'error[42601]: syntax error at or near "SELEC"\n  --> -c:1:1\n1 | SELEC 2\n  | ^^^^^ Did you mean SELECT?\n'
    )


def test_errors_show_their_line_and_a_suggestion(tmp_path: Path) -> None:
    script = tmp_path / "t.sql"
    script.write_bytes(
        b"\xef\xbb\xbfCREATE TABLE customers (name text);\r\n-- SELECT c.naem\r\n"
        b"SELECT 1;  SELECT\r\n\tc.naem\r\nFROM customers AS c;\r\n"
    )
    fault = "error[42703]: column c.naem does not exist\n"
    excerpt = '4 | \tc.naem\n  | \t^^^^^^ Did you mean "name"?\n'

    assert sql(tmp_path, "-f", "t.sql") == (
        1,
        '{"?column?":1}\n',
        f"CREATE TABLE\n{fault}  --> t.sql:4:2\n{excerpt}",
    )
    text = script.read_text(encoding="utf-8-sig").replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS")
    _, _, err = sql(tmp_path, text=text)
    assert err.endswith(f"{fault}  --> standard input:4:2\n{excerpt}")
    for statement, excerpt in (
        ("SELECT * FROM custmers", "              ^^^^^^^^ Did you mean customers?"),
        ("PREPARE p AS SELECT naem FROM customers", '                    ^^^^ Did you mean "name"?'),
        ("CREATE REPLICA x (ADRESS 'a:1')", "                  ^^^^^^ Did you mean ADDRESS?"),
        ("SELECT name FROM customers WHERE", "                                ^"),
    ):
        assert sql(tmp_path, "-c", statement)[2].split("\n")[2:4] == [f"1 | {statement}", f"  | {excerpt}"]


def test_sql_refuses_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "t.sql").write_bytes(b"SELECT '\xff'")

    message = "error: t.sql is not UTF-8 text: byte 9 is 0xff\n"
    assert sql(tmp_path, "-f", "t.sql") == (2, "", message)


def test_json_output_renames_duplicate_columns(tmp_path: Path) -> None:
    query = "SELECT 1 AS x, 2 AS x, 3 AS x_2, 4 AS x, 5"

    assert sql(tmp_path, "-c", query, "-o", "json") == (
        0,
        '{"x":1,"x_3":2,"x_2":3,"x_4":4,"?column?":5}\n',
        "column 2 has the same name 'x' as an earlier column: it is printed as 'x_3'\ncolumn 4 has the same name 'x' as an earlier column: it is printed as 'x_4'\n",
    )
    assert sql(tmp_path, "-c", query, "-o", "csv") == (0, "x,x,x_2,x,?column?\n1,2,3,4,5\n", "")


def test_json_output_writes_numbers_as_postgresql_does(tmp_path: Path) -> None:
    """Law: an integral double is written as in a document, and so that `flowctl collections read` agrees."""
    columns = "40::float8 AS a, 21.5::float8 AS b, 1e15::float8 AS c, 1.1::real AS d, -2::float8 AS e"

    more = "'NaN'::float8 AS f, 2.5 AS g, 2.50 AS h, 3::numeric(4,2) AS i, 1.5::numeric AS j"
    status, out, _ = sql(tmp_path, "-c", f"SELECT {columns}, {more}, NULL::numeric(4,2) AS k")

    assert (status, out) == (
        0,
        '{"a":40,"b":21.5,"c":1e+15,"d":1.1,"e":-2,"f":"NaN","g":"2.5","h":"2.50","i":"3.00","j":"1.5","k":null}\n',
    )
