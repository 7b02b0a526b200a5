"""`flowctl sql` from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def flowctl(folder: Path, *arguments: str, text: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "derive.cli.main", "sql", "--data", str(folder / "data"), *arguments],
        capture_output=True,
        text=True,
        input=text,
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_statements_and_forms_of_output(tmp_path: Path) -> None:
    script = tmp_path / "t.sql"
    script.write_text(
        "CREATE TABLE t (a int, b text, c jsonb);\n"
        "INSERT INTO t VALUES (1, 'x, y', '{\"k\": [1]}'), (2, NULL, NULL);\n"
        "SELECT * FROM t ORDER BY a;\n"
    )

    assert flowctl(tmp_path, "-f", str(script)) == (
        0,
        '{"a":1,"b":"x, y","c":{"k": [1]}}\n{"a":2,"b":null,"c":null}\n',
        "",
    )
    assert flowctl(tmp_path, "-c", "SELECT a, b FROM t ORDER BY a", "-o", "csv") == (0, 'a,b\n1,"x, y"\n2,\n', "")
    table = " a |  b\n---+------\n 1 | x, y\n 2 |\n(2 rows)\n\n"
    assert flowctl(tmp_path, "-o", "table", text="SELECT a, b FROM t ORDER BY a;") == (0, table, "")
    assert flowctl(tmp_path, "-c", "COPY t (a, b) FROM STDIN", text="3\tz\n") == (0, "", "")
    assert flowctl(tmp_path, "-c", "COPY (SELECT b FROM t WHERE a = 3) TO STDOUT") == (0, "z\n", "")


def test_errors(tmp_path: Path) -> None:
    status, out, err = flowctl(tmp_path, "-c", "SELECT 1", "-c", "SELEC 2")

    assert (status, out) == (1, '{"?column?":1}\n')
    assert err.startswith('error: syntax error at or near "SELEC"')
