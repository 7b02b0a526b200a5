"""The command line from outside: exit codes, what goes where, and how fast help is."""

import gzip
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from forked_flowctl import flowctl

from derive.catalog import load
from derive.cli.main import flowctl as group
from derive.testing import run_tests

CATALOG = """\
collections:
  a/b:
    schema: {type: object, properties: {id: {type: string}}, required: [id]}
    key: [/id]
tests:
  a/passes:
    - ingest: {collection: a/b, documents: [{id: x}]}
    - verify: {collection: a/b, documents: [{id: x}]}
  a/fails:
    - ingest: {collection: a/b, documents: [{id: x}]}
    - verify: {collection: a/b, documents: [{id: y}]}
"""

COMMANDS = [
    *(
        "backup",
        "check",
        "collections",
        "compact",
        "completion",
        "compute",
        "connector",
        "diff",
        "discover",
        "environment",
        "generate",
        "graph",
        "ingest",
    ),
    *("ingestions", "init", "json-schema", "logs", "materialize", "metadata", "plan", "prepare", "preview"),
    *("quarantine", "reset", "restore", "run", "shadow", "split", "sql", "state", "status", "swap", "test"),
    *("ui", "verify", "why"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flow.yaml").write_text(CATALOG)
    (tmp_path / "bad.yaml").write_text(CATALOG.replace("[/id]", "[/idd]"))
    return tmp_path


def test_help_lists_every_command(folder: Path) -> None:
    status, out, err = flowctl(folder, "--help")

    assert (status, err) == (0, "")
    listed = out[out.index("Commands:") :].splitlines()[1:]
    assert [line.split()[0] for line in listed] == COMMANDS


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys, derive.cli.main as main\n"
        "try: main.flowctl.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'rich', 'jsonschema_rs', 'yaml', 'apsw', 'grpc', 'orjson'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stderr == "[]\n"


def test_command_ends_without_garbage_collection_and_threads_of_numpy() -> None:
    script = (
        "import atexit, gc, os, sys\n"
        "def end():\n"
        "    frozen = gc.get_freeze_count()\n"
        "    import numpy\n"
        "    print(frozen > 1000, len(os.listdir('/proc/self/task')))\n"
        "atexit.register(end)\n"
        "sys.argv = ['flowctl', '--version']\n"
        "from derive.cli.main import main\n"
        "main()\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "True 1"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(folder: Path, command: str) -> None:
    status, out, err = flowctl(folder, command, "--help")

    assert (status, err) == (0, "")
    assert out.startswith("Usage: ")


def helps(command: click.Command, name: str, parent: click.Context | None = None) -> dict[str, str]:
    """Return the help texts of a command and of its subcommands, by name."""
    context = click.Context(command, parent, info_name=name)
    texts = {name: command.get_help(context)}
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            texts |= helps(found, f"{name} {each}", context)
    return texts


def test_every_help_has_examples() -> None:
    texts = helps(group, "flowctl")
    del texts["flowctl"]

    assert len(texts) > 45
    assert [name for name, text in texts.items() if "\n  Example" not in text] == []


def test_passing_check_reports_the_checked_catalog(folder: Path) -> None:
    assert flowctl(folder, "check") == (0, "", "flow.yaml: 1 collection, 0 derivations, no errors\n")


def test_failing_check_shows_positions_without_a_traceback(folder: Path) -> None:
    status, out, err = flowctl(folder, "check", "--source", "bad.yaml")

    assert (status, out) == (1, "")
    assert err == (
        "error[E303]: the key '/idd' is not mentioned in the schema\n"
        "  --> bad.yaml:4:11\n"
        "4 |     key: [/idd]\n"
        "  |           ^^^^ did you mean '/id'?\n"
        "\n"
        "1 error\n"
    )


def test_failing_check_as_json_exits_with_1(folder: Path) -> None:
    status, out, err = flowctl(folder, "check", "--source", "bad.yaml", "-o", "json")

    assert (status, err) == (1, "")
    assert out == (
        '{"code":"E303","message":"the key \'/idd\' is not mentioned in the schema",'
        '"file":"bad.yaml","line":4,"column":11,"length":4,"hint":"did you mean \'/id\'?"}\n'
    )


def test_debug_shows_the_traceback(folder: Path) -> None:
    status, _, err = flowctl(folder, "--debug", "check", "--source", "bad.yaml")

    assert status == 1
    assert err.startswith("Traceback (most recent call last):")


@pytest.mark.parametrize(
    ("name", "status", "last"), [("a/passes", 0, "1 passed in "), ("a/fails", 1, "1 failed, 0 passed in ")]
)
def test_the_exit_code_reports_whether_tests_passed(folder: Path, name: str, status: int, last: str) -> None:
    code, out, _ = flowctl(folder, "test", "--name", name)

    assert code == status
    assert out.splitlines()[-1].startswith(last)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        # a command that does not exist
        (["chek"], "there is no command 'chek'. Did you mean 'check'?"),
        (["read", "a/b"], "Did you mean 'collections read'?"),
        (["help", "run"], "Did you mean '--help'?"),
        (["sql", "SELECT 1"], "Write -c before a statement"),
        (["sql", "SELECT 'a'"], "Write -c before a statement"),
        (["sql", "srve"], "No such command 'srve'.\n"),
        # an option that does not exist
        (["check", "--sorce", "x"], "Did you mean '--source'?"),
        (["status", "--task", "x"], "No such option '--task'. 'flowctl status' lists every task.\n"),
        (["check", "--task", "x"], "No such option '--task'.\n"),
        (["sql", "serve", "--port", "1"], "Did you mean '--listen HOST:PORT'?"),
        # an address or a folder that is none
        (["run", "--ui", "8080"], "--ui takes HOST:PORT, not 8080"),
        (["status", "--data", ""], "a data folder has a name; '.' is the present folder"),
        (["status", "--data", "flow.yaml"], "flow.yaml is a file, and a data folder is needed, such as .flow"),
        # a file that does not exist, and a file that has another name
        (["ingest", "--collection", "a/b", "flaw.yaml"], "did you mean flow.yaml?"),
        (["sql", "-f", "flaw.yaml"], "did you mean flow.yaml?"),
        (["ingest", "--collection", "a/b", "fl.yml"], "there is no file fl.yml\n"),
        (["ingest", "--collection", "a/b", "../x/y/z.jsonl"], "there is no folder ../x\n"),
        (["ingest", "--collection", "a/b", "flow.yaml/x"], "there is no file flow.yaml/x\n"),
        (["ingest", "--collection", "a/b", "--follow", "--until-idle", "flaw.yaml"], "did you mean flow.yaml?"),
        (["--data", "x", "status"], "Options of a command follow it: flowctl status --data …"),
        # a name without its option
        (["collections", "read", "a/b"], "Missing option '--collection'. Write --collection a/b."),
        (["--debug", "reset", "a/b"], "Missing option '--task'. Write --task a/b."),
        (["why", "--key", "[1]", "a/b"], "(a/b). Write --collection a/b."),
        (["why", "--collection", "a/b", "more"], "Got unexpected extra argument (more)\n"),
        (["reset", "a/b", "a/c"], "Missing option '--task'.\n"),
        (["ingest", "x"], "Missing option '--collection'.\n"),
        (["ingest", "a/b", "flow.yaml"], "Missing option '--collection'. Write --collection a/b.\n"),
        (["ingest", "a/b.jsonl"], "Missing option '--collection'.\n"),
        (["why", "a/b", "[1]"], """(a/b [1]). Write --collection a/b --key '[1]'."""),
        (["sql", "-c", "\\d"], "here, SHOW OBJECTS lists relations"),
        # a collection that does not exist
        (["ingest", "--collection", "a/c", "x"], "did you mean 'a/b'?"),
        (["ingest", "--collection", "b", "x"], "did you mean 'a/b'?"),
        # a test that does not exist
        (["test", "--name", "a/pases"], "did you mean 'a/passes'?"),
    ],
)
def test_invalid_command_line_exits_with_2(folder: Path, arguments: list[str], said: str) -> None:
    status, out, err = flowctl(folder, *arguments)

    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sub"], "the folder sub has no file to load (known suffixes: .csv, .json, .jsonl"),
        (["gone.jsonl"], "there is no file gone.jsonl"),
        (["a.parquet.gz"], "a.parquet.gz is a compressed Parquet file, which cannot be read (decompress it first)"),
        (["--format", "parquet"], "a Parquet file cannot be read from standard input"),
        (["not.jsonl.gz"], "not.jsonl.gz is not gzip, but its name says so"),
    ],
)
def test_ingest_reports_unusable_inputs(folder: Path, arguments: list[str], said: str) -> None:
    (folder / "sub").mkdir()
    (folder / "a.parquet.gz").write_bytes(b"")
    (folder / "not.jsonl.gz").write_text('{"id":"x"}\n')
    status, out, err = flowctl(folder, "ingest", "--collection", "a/b", *arguments)

    assert (status, out) == (2, "")
    for part in said.rstrip(")").split(" ("):
        assert part in err
    assert "Traceback" not in err


def test_ingest_reads_a_pipe_like_a_file(folder: Path) -> None:
    """As a shell's `<(…)` gives one."""
    os.mkfifo(folder / "pipe.jsonl")
    with ThreadPoolExecutor(1) as threads:
        threads.submit((folder / "pipe.jsonl").write_bytes, gzip.compress(b'{"id":"x"}\n'))
        status, _, err = flowctl(folder, "ingest", "--collection", "a/b", "pipe.jsonl")

    assert status == 0
    assert err.startswith("pipe.jsonl                                    1 document")


def test_closed_output_pipe_is_no_error(folder: Path) -> None:
    command = [sys.executable, "-m", "derive.cli.main", "check", "--source", "bad.yaml", "-o", "json"]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_ctrl_c_prints_one_line(folder: Path) -> None:
    # An alarm stands in for the key, while the command waits for standard input.
    script = (
        "import signal, sys\n"
        "from derive.cli.main import main\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1.5)\n"
        "sys.argv = ['flowctl', 'ingest', '--collection', 'a/b']\n"
        "main()\n"
    )

    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"\nstopped\n")
        assert process.wait() == 130


def test_check_reports_captures_that_are_not_run_here(folder: Path) -> None:
    capture = "captures: {a/capture: {endpoint: {connector: {image: i, config: {}}}, bindings: []}}\n"
    (folder / "flow.yaml").write_text(CATALOG + capture)

    status, out, err = flowctl(folder, "check")

    assert (status, out) == (0, "")
    assert err == (
        "warning[N001]: capture 'a/capture' is not run\n  --> flow.yaml:12:12\n"
        f"12 | {capture}   |            ^^^^^^^^^ load documents with 'flowctl ingest'\n"
        "flow.yaml: 1 collection, 0 derivations, no errors, 1 warning\n"
    )


# The README and its like cannot lie: its catalog passes its own tests, and the files that they name exist.


REPOSITORY = Path(__file__).parents[2]


def test_the_catalog_of_the_readme_passes_its_test(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    catalog, materializations = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "flow.yaml").write_text(catalog + materializations, encoding="utf-8")
    built = load(tmp_path / "flow.yaml")

    results = list(run_tests(built))

    assert [(each.test.name, each.failure) for each in results] == [("shop/tests/spending", None)]
    assert list(built.materializations) == ["shop/reports"]


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/architecture.md", "docs/laws.md"])
def test_files_named_in_documentation_exist(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    folders = "derive|connectors|tests|docs|examples|bench"
    named = {REPOSITORY / name for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", text)}

    assert named
    assert [path for path in sorted(named) if not path.exists()] == []


def test_architecture_page_names_existing_files() -> None:
    text = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w.]+)`\s+(?:in|of)\s+`((?:derive|connectors)/[\w/]+\.py)`", text)

    assert len(named) > 3
    for name, path in named:
        defined = rf"(?m)\b(def|class) {name.rpartition('.')[2]}\b|^{name}\b.* = "
        assert re.search(defined, (REPOSITORY / path).read_text("utf-8")), name


def test_architecture_rows_name_each_file_once() -> None:
    """A merge of modules leaves repeated paths and bare names of files that are gone."""
    for line in (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8").splitlines():
        paths = re.findall(r"`([\w./-]+/[\w-]+\.py)`", line)
        assert len(paths) == len(set(paths)), line
        folders = [*(Path(path).parent for path in paths), *map(Path, re.findall(r"`([\w./-]+)/`", line))]
        for name in re.findall(r"`(\w+\.py)`", line):
            assert not folders or any((REPOSITORY / folder / name).exists() for folder in folders), (name, line)


def test_help_of_every_command_fits_80_columns() -> None:
    def lines(command: click.Command, name: str) -> Iterator[str]:
        context = click.Context(command, info_name=name, terminal_width=80)
        yield from command.get_help(context).splitlines()
        if isinstance(command, click.Group):
            for member in command.list_commands(context):
                found = command.get_command(context, member)
                assert found is not None
                yield from lines(found, f"{name} {member}")

    assert [line for line in lines(group, "flowctl") if len(line) > 80] == []


@pytest.mark.parametrize("command", [["check"], ["plan"], ["run", "--until-idle"], ["test"]])
def test_commands_that_check_code_warn_of_a_property_that_the_schema_does_not_mention(
    command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "flow.yaml").write_text(
        """\
collections:
  a/orders: {schema: {type: object, properties: {id: {type: integer}}, required: [id]}, key: [/id]}
  a/sums:
    schema: {type: object, properties: {id: {type: integer}, total: {type: integer}}, required: [id]}
    key: [/id]
    derive:
      using: {sqlite: {}}
      transforms: [{name: sum, source: a/orders, shuffle: any, lambda: "SELECT $id, 1 AS totl"}]
"""
    )
    status, _, err = flowctl(tmp_path, *command)
    assert (status, err.count("warning[N529]"), err.count("did you mean 'total'?")) == (0, 1, 1)
