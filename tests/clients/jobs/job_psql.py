"""psql and pg_dump: all backslash commands that read catalogs, and a dump that can be restored."""

import os
import subprocess
import tempfile
from pathlib import Path

DEFINITIONS = """
CREATE SCHEMA ps_other;
CREATE TABLE ps_a (id serial PRIMARY KEY, name varchar(20) NOT NULL DEFAULT 'x' UNIQUE, n numeric(5,2) CHECK (n > 0), tags text[]);
CREATE TABLE ps_b (a int REFERENCES ps_a ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED, at timestamptz DEFAULT now(), u uuid);
CREATE INDEX ps_b_at ON ps_b (at);
CREATE VIEW ps_v AS SELECT name, count(*) AS n FROM ps_a GROUP BY name;
CREATE MATERIALIZED VIEW ps_m AS SELECT count(*) AS n FROM ps_b;
CREATE SEQUENCE ps_s;
CREATE DOMAIN ps_d AS int CHECK (VALUE > 0);
CREATE FUNCTION ps_f(a int) RETURNS int IMMUTABLE LANGUAGE SQL AS 'SELECT a + 1';
CREATE TABLE ps_other.c (x int);
COMMENT ON TABLE ps_a IS 'a comment';
COMMENT ON COLUMN ps_a.name IS 'a name';
INSERT INTO ps_a (name, n, tags) VALUES ('ann', 1.5, '{x,y}'), ('ben', NULL, NULL);
INSERT INTO ps_b VALUES (1, '2024-01-01', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
"""

NAMES = """
da dA dAc dAf dAo dAp db dc dC dconfig dd dD ddp dE des det deu dew dF dFd dFp dFt dg dl dL dm dn do dO dp dP
drds dRp dRs ds dt dT du dx dX dy l z di dv dS dt+ dv+ di+ dm+ ds+ dn+ df+ dT+ dD+ l+ du+ db+
"""
"""Commands without arguments."""
PLAIN = [f"\\{name}" for name in NAMES.split()]
PATTERNS = ["\\dt *.*", "\\df *abs*", "\\dT int*", "\\do =", "\\dn *"]
COMMANDS = {
    **dict.fromkeys(PLAIN, ()),
    **dict.fromkeys(PATTERNS, ()),
    "\\d": ("ps_a", "ps_v", "ps_s"),
    "\\d ps_a": ('"ps_a_pkey" PRIMARY KEY', "character varying(20)", "Referenced by:", "CHECK"),
    "\\d+ ps_a": ("a name",),
    "\\d ps_b": ("ps_b_at", "REFERENCES ps_a(id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED"),
    "\\d+ ps_v": ("View definition",),
    "\\d ps_other.c": ("integer",),
    "\\d ps_b_at": ("timestamp with time zone",),
    "\\d ps_s": ("bigint",),
    "\\df ps_f": ("ps_f", "integer"),
    "\\sf ps_f": ("CREATE OR REPLACE FUNCTION", "a + 1"),
    "\\sf+ ps_f": ("a + 1",),
    "\\sv ps_v": ("CREATE OR REPLACE VIEW", "count"),
    "\\dd ps_a": (),
    "\\dt+ ps_a": ("a comment",),
    "\\dD ps_d": (),
    "\\conninfo": ("connected",),
    "\\encoding": ("UTF8",),
    "\\dt ps_other.*": ("ps_other",),
    "SELECT 1 AS x \\gset\n\\echo :x": ("1",),
    "SELECT 1 AS a, 2 AS b \\gdesc": ("integer",),
    "SELECT 'SELECT 7 AS seven' \\gexec": ("seven",),
    "SELECT name, 'c' AS k, n FROM ps_a \\crosstabview name k n": ("ann",),
    "\\copy ps_other.c FROM PROGRAM 'printf \"1\\n2\\n\"'": ("COPY 2",),
    "\\copy (SELECT * FROM ps_other.c ORDER BY 1) TO STDOUT": ("1\n2",),
    "\\errverbose": (),
    "\\timing on\nSELECT 1;": ("Time:",),
    "\\x\nSELECT 5 AS v;": ("v | 5",),
    "\\set AUTOCOMMIT off\nSELECT 1;\nCOMMIT;": ("COMMIT",),
    "\\bind 4\nSELECT $1::int + 1 \\g": (),
}
OLD = ("\\dconfig", "\\bind")
"""Commands of later versions of psql."""


def psql(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run commands in a plain environment: locale C, no settings of the user."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("PG") or name == "PATH"}
    command = ["psql", "-X", "-v", "ON_ERROR_STOP=1", *options]
    return subprocess.run(
        command, env={**environment, "LC_ALL": "C"}, input=text + "\n", capture_output=True, text=True, check=False
    )


def checked(text: str, *options: str) -> str:
    done = psql(text, *options)
    assert done.returncode == 0, (text, done.stderr)
    assert "ERROR" not in done.stderr, (text, done.stderr)
    return done.stdout


psql(
    "DROP SCHEMA IF EXISTS ps_other CASCADE; DROP TABLE IF EXISTS ps_a, ps_b CASCADE; DROP SEQUENCE IF EXISTS ps_s; DROP DOMAIN IF EXISTS ps_d; DROP FUNCTION IF EXISTS ps_f(int)"
)
checked(DEFINITIONS)
version = int(checked("\\echo :VERSION_NUM"))
failures = []
for command, expected in COMMANDS.items():
    if command.startswith(OLD) and version < 160000:
        continue
    done = psql(command)
    missing = [text for text in expected or () if text not in done.stdout]
    if done.returncode or "ERROR" in done.stderr or missing:
        failures.append((command, missing, done.stderr.strip(), done.stdout if missing else ""))
for failure in failures:
    print(failure)
print(f"{len(COMMANDS) - len(failures)} commands: done")
dump = subprocess.run(["pg_dump", "-s", "--no-owner", "-t", "ps_*"], capture_output=True, text=True, check=False)
assert dump.returncode == 0, dump.stderr
assert "CREATE TABLE public.ps_a" in dump.stdout
whole = subprocess.run(["pg_dump", "--no-owner", "-t", "ps_a"], capture_output=True, text=True, check=False)
assert whole.returncode == 0, whole.stderr
assert "ann\t1.50\t{x,y}" in whole.stdout, whole.stdout
with tempfile.TemporaryDirectory() as folder:
    place = Path(folder, "dump.sql")
    place.write_text(whole.stdout)
    checked("DROP TABLE ps_a CASCADE")
    checked("", "-f", str(place))
assert "ben" in checked("SELECT name FROM ps_a")
print("pg_dump: done")
checked(
    "DROP SCHEMA ps_other CASCADE; DROP MATERIALIZED VIEW IF EXISTS ps_m; DROP TABLE ps_b; DROP TABLE ps_a CASCADE; DROP SEQUENCE ps_s; DROP DOMAIN ps_d; DROP FUNCTION ps_f(int)"
)
assert not failures
