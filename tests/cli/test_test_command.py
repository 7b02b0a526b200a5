"""`flowctl test` from outside: choice of tests, fixtures in files, formats of results, and repetition after edits."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ET
from pathlib import Path
from subprocess import PIPE

import pytest
from forked_flowctl import BARE, Flowctl, flowctl

CATALOG = """\
collections:
  t/in: {schema: {type: object, properties: {id: {type: integer}}, required: [id]}, key: [/id]}
  t/out:
    schema: {type: object, properties: {id: {type: integer}, n: {type: integer}}, required: [id]}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: x, source: t/in, shuffle: any, lambda: "SELECT $id, $id * 2 AS n;"}]}
tests:
  t/a/one: [ingest: &in {collection: t/in, documents: in.jsonl}, verify: {collection: t/out, documents: out.ndjson}]
  t/a/two: [ingest: *in, verify: {collection: t/out, documents: [{id: 1, n: 9}, {id: 2}]}]
  t/b/<three>&: [ingest: *in, verify: {collection: t/out, documents: out.ndjson}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    (tmp_path / "in.jsonl").write_text('{"id": 1}\n\n{"id": 2}\n')
    (tmp_path / "out.ndjson").write_text('{"id": 1, "n": 2}\n{"id": 2, "n": 4}')
    return tmp_path


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "tests"),
    [
        ([], ["t/a/one", "t/a/two", "t/b/<three>&"]),
        (["--jobs", "3"], ["t/a/one", "t/a/two", "t/b/<three>&"]),
        (["-x"], ["t/a/one", "t/a/two"]),
        (["-x", "--jobs", "3"], ["t/a/one", "t/a/two"]),
        (["--name", "t/a/*"], ["t/a/one", "t/a/two"]),
        (["--name", "*three*", "--name", "t/?/one"], ["t/a/one", "t/b/<three>&"]),
        (["--name", "t/b/<three>&"], ["t/b/<three>&"]),
    ],
)
def test_test_command_runs_the_chosen_tests_in_order(folder: Path, options: list[str], tests: list[str]) -> None:
    code, out, err = flowctl(folder, "test", "-o", "json", *options)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["test"] for row in rows] == tests, err
    assert [row["test"] for row in rows if not row["passed"]] == ["t/a/two"] * ("t/a/two" in tests)
    assert code == ("t/a/two" in tests)
    assert [(row["file"], row["line"]) for row in rows if not row["passed"]] == [("flow.yaml", 9)] * code


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--name", "t/a/on"], "did you mean 't/a/one'?"),
        (["--name", "t/c/*"], "no test has a name like 't/c/*'"),
        (["--watch", "-o", "junit"], "--watch has no end"),
        (["--update"], "--update is for --snapshot"),
        (["--fail-under", "50"], "--fail-under is for --coverage"),
        (["--coverage", "-o", "junit"], "JUnit XML has no coverage"),
        (["--jobs", "0"], "0 is not in the range"),
    ],
)
def test_test_command_refuses_wrong_options(folder: Path, options: list[str], error: str) -> None:
    code, _, err = flowctl(folder, "test", *options)
    assert (code, error in err) == (2, True), err


def test_test_command_writes_junit_xml(folder: Path) -> None:
    code, out, err = flowctl(folder, "test", "-o", "junit")
    suite = ET.fromstring(out.split("?>\n")[1])[0]
    cases = [(case.get("classname"), case.get("name"), case.get("line"), len(case)) for case in suite]
    assert (code, "1 failed, 2 passed" in err) == (1, True)
    assert cases == [("t/a", "one", "8", 0), ("t/a", "two", "9", 1), ("t/b", "<three>&", "10", 0)]
    assert suite.attrib.items() >= {("tests", "3"), ("failures", "1")}
    failure = suite[1][0]
    assert failure.get("message") == "step 2 · verify t/out"
    assert "[1]  /n   expected  9\n            actual    2" in (failure.text or "")


def test_fixture_with_a_defect_has_the_position_of_its_line(folder: Path) -> None:
    (folder / "in.jsonl").write_text('{"id": 1}\n{"id": x}\n{"id": "y"}\n')
    code, _, err = flowctl(folder, "test")
    assert (code, "in.jsonl:2:1" in err, "not JSON" in err) == (1, True, True)
    (folder / "in.jsonl").write_text('{"id": 1}\n{"id": "y"}\n')
    _, _, err = flowctl(folder, "test")
    assert "in.jsonl:2:1" in err
    assert 'fails its schema at \'/id\': "y" is not of type "integer"' in err


def test_test_command_repeats_tests_after_edits(folder: Path) -> None:
    arguments = ["test", "--name", "t/a/one", "--watch"]
    with Flowctl(arguments, cwd=folder, stdout=PIPE, stderr=PIPE, text=True, env=BARE) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("PASS t/a/one")
        assert process.stdout.readline().startswith("1 passed")
        assert process.stderr
        assert process.stderr.readline().startswith("waiting for an edit")
        (folder / "out.ndjson").write_text("{}\n{oops")
        assert process.stderr.readline() == "out.ndjson changed\n"
        assert process.stderr.readline().startswith("error[E001]: not JSON")
        (folder / "out.ndjson").write_text('{"id": 1, "n": 3}\n{"id": 2}\n')
        assert process.stdout.readline().startswith("FAIL t/a/one")
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 0


HISTORY = """\
collections:
  h/moves:
    schema:
      type: object
      properties: {id: {type: integer}, from: {type: string}, to: {type: string}, at: {type: string}}
      required: [id, from, to]
    key: [/id]
  h/counts:
    schema: {type: object, properties: {who: {type: string}, n: {type: integer}}, required: [who]}
    key: [/who]
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (who TEXT PRIMARY KEY, n INTEGER NOT NULL);"]}}
      transforms:
        - name: sent
          source: h/moves
          shuffle: {key: [/from]}
          lambda: >-
            INSERT INTO seen VALUES ($from, 1) ON CONFLICT DO UPDATE SET n = n + 1 RETURNING who, n;
            SELECT $to || '!' AS who, 1 AS n;
        - {name: later, source: h/moves, shuffle: {key: [/from]}, readDelay: DELAY, lambda: "SELECT $from AS who, -n AS n FROM seen WHERE who = $from;"}
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("delay", ["0s", "1h"])
def test_created_test_passes_and_verifies_what_is_stored(folder: Path, delay: str) -> None:
    """A test out of history gives the stored document, and holds what follows from its source documents."""
    (folder / "flow.yaml").write_text(HISTORY.replace("DELAY", delay))
    moves = [(1, "ann", "ben", "00:00:00"), (2, "cleo", "ann", "00:10:00"), (3, "ann", "dan", "00:30:00")]
    lines = [{"id": number, "from": a, "to": b, "at": f"2024-01-01T{at}Z"} for number, a, b, at in moves]
    (folder / "moves.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert flowctl(folder, "ingest", "--collection", "h/moves", "--clock", "/at", "moves.jsonl")[0] == 0
    assert flowctl(folder, "run", "--until-idle")[0] == 0
    code, text, err = flowctl(folder, "test", "--create", 'a "new" one', "--collection", "h/counts", "--key", '["ann"]')
    assert (code, err) == (0, "the test ingests 2 documents\n")
    assert ("at: " in text, '{"who":"ann","n":-2}' in text, '{"who":"ben!","n":1}' in text) == (
        delay == "1h",
        True,
        True,
    )
    (folder / "new.yaml").write_text(f"import: [flow.yaml]\n{text}")
    code, out, err = flowctl(folder, "test", "--strict", "--source", "new.yaml")
    assert (code, out.partition("  (")[0]) == (0, 'PASS a "new" one'), out + err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--create", "x"], "--create, --collection and --key belong together"),
        (["--key", "[1]"], "--create, --collection and --key belong together"),
        (["--create", "x", "--collection", "t/in", "--key", "[1]"], "'t/in' is not derived"),
        (["--create", "t/a/one", "--collection", "t/out", "--key", "[1]"], "has a test 't/a/one' already"),
        (["--create", "x", "--collection", "t/out", "--key", "[7]"], "has the key [7]"),
    ],
)
def test_created_test_needs_a_derived_document(folder: Path, arguments: list[str], error: str) -> None:
    assert flowctl(folder, "ingest", "--collection", "t/in", "in.jsonl")[0] == 0
    code, out, err = flowctl(folder, "test", *arguments)
    assert (code, out, error in err) == (2, "", True), err


def test_snapshots_hold_what_verify_steps_have_seen(folder: Path) -> None:
    """A snapshot also has the properties that a verify step leaves out, and each change of them is a failure."""

    def run(*options: str, status: int = 0) -> str:
        code, out, err = flowctl(folder, "test", "--name", "t/[ab]/*e*", "--snapshot", "shots", *options)
        assert code == status, out + err
        return out + err

    flow = (folder / "flow.yaml").read_text()
    (folder / "out.ndjson").write_text('{"id": 1}\n{"id": 2}\n')
    assert "2 snapshots written into shots" in run("--jobs", "2")
    files = sorted(path for path in (folder / "shots").rglob("*") if path.is_file())
    assert [str(path.relative_to(folder)) for path in files] == [
        "shots/t/a/one/2.t%2Fout.jsonl",
        "shots/t/b/%3Cthree%3E%26/2.t%2Fout.jsonl",
    ]
    assert files[0].read_text() == '{"id":1,"n":2}\n{"id":2,"n":4}\n'
    assert "written" not in run()
    (folder / "flow.yaml").write_text(flow.replace("$id * 2", "$id * 3"))
    changed = run(status=1)
    assert "FAIL t/a/one · step 2 · verify t/out · shots/t/a/one/2.t%2Fout.jsonl" in changed
    assert "[2]  /n   expected  4\n            actual    6" in changed
    assert "if the new contents are right, write the snapshots again: --update" in changed
    assert "2 snapshots written" in run("--update")
    assert "written" not in run()
    files[0].write_text("{oops}\n")
    assert "shots/t/a/one/2.t%2Fout.jsonl:1: not JSON" in run(status=1)


COVERED = """\
collections:
  c/in: {schema: {type: object, properties: {id: {type: integer}}, required: [id]}, key: [/id]}
  c/out:
    schema: {type: object, properties: {id: {type: integer}}, required: [id]}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms:
        - name: some
          source: c/in
          shuffle: any
          lambda: |
            SELECT $id,
              CASE WHEN $id = 1 THEN 'one' ELSE 'more' END AS n
            WHERE $id < 5;
        - {name: late, source: c/out, shuffle: any, lambda: "SELECT $id WHERE 0;"}
  c/copy:
    schema: {type: object, properties: {id: {type: integer}}, required: [id]}
    key: [/id]
    derive: {using: {sqlite: {}}, transforms: [{name: copy, source: c/out, shuffle: any, lambda: "SELECT $id WHERE 1;"}]}
tests:
  first: [ingest: {collection: c/in, documents: [{id: 9}]}, verify: {collection: c/out, documents: []}]
  second: [ingest: {collection: c/in, documents: [{id: 1}]}, verify: {collection: c/out, documents: [{id: 1, n: one}]}]
"""
COVERED_BY_BOTH = """\
c/out: 2 of 2 transforms, 4 of 6 branches
  flow.yaml:14:44  some: ELSE of CASE is never taken
  flow.yaml:16:73  late: WHERE is never true
c/copy: 0 of 1 transform, 0 of 2 branches
  flow.yaml:20:55  copy: reads no document
reached: 6 of 11 transforms and branches
"""
COVERED_BY_FIRST = """\
c/out: 1 of 2 transforms, 1 of 6 branches
  flow.yaml:14:20  some: WHEN of CASE is never taken
  flow.yaml:14:44  some: ELSE of CASE is never taken
  flow.yaml:15:13  some: WHERE is never true
  flow.yaml:16:18  late: reads no document
c/copy: 0 of 1 transform, 0 of 2 branches
  flow.yaml:20:55  copy: reads no document
reached: 2 of 11 transforms and branches
"""


@pytest.mark.parametrize(
    ("options", "status", "report"),
    [
        (["--jobs", "2", "--fail-under", "54"], 0, COVERED_BY_BOTH),
        (["--fail-under", "55"], 1, COVERED_BY_BOTH),
        (["--name", "first"], 0, COVERED_BY_FIRST),
    ],
)
def test_coverage_lists_transforms_and_branches_that_no_document_reaches(
    folder: Path, options: list[str], status: int, report: str
) -> None:
    (folder / "flow.yaml").write_text(COVERED)
    code, out, err = flowctl(folder, "test", "--coverage", *options)
    assert (code, report in out) == (status, True), out + err
    assert ("less than 55 %" in err) == (status == 1)


def test_coverage_has_a_line_of_json_for_each_derivation(folder: Path) -> None:
    (folder / "flow.yaml").write_text(COVERED)
    code, out, err = flowctl(folder, "test", "--coverage", "-o", "json", "--name", "second")
    first, second, third = map(json.loads, out.splitlines())
    assert (code, first["passed"]) == (0, True), err
    assert (second["derivation"], second["branches"], second["reached_branches"]) == ("c/out", 6, 3)
    assert third["misses"] == [
        {"transform": "copy", "what": "reads no document", "file": "flow.yaml", "line": 20, "column": 55}
    ]
