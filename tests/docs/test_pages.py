"""The pages cannot lie: what they tell a reader to write is written, what they tell to type is typed, and what is
printed is what they show.

A fenced block whose info string is a language and a file name (```` ```yaml flow.yaml ````) becomes that file. In a
```` ```console ```` block a line that begins with `$ ` is a command, and the lines after it are what it prints; a line
`…` stands for any lines, a `…` within a line for any text, and a command with no lines after it may print what it
likes. A ```` ```pycon ```` block is a session of Python, which continues that of earlier blocks. A page without files is
not run.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import REPOSITORY, installed_site
from forked_flowctl import Flowctl, sharing_options
from local_wheels import PYDANTIC, copy_installed, offline

BLOCK = re.compile(r"^```(\w+)(?: ([\w./-]+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [
    page
    for page in sorted((REPOSITORY / "docs").rglob("*.md"))
    if any(file for _, file, _ in BLOCK.findall(page.read_text()))
]
PROSE = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def commands_of(block: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that it is said to print."""
    commands: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append((line.removeprefix("$ ").partition("  #")[0].rstrip(), []))
        elif commands:
            commands[-1][1].append(line)
    return [(command, "\n".join(lines).rstrip().splitlines()) for command, lines in commands]


PROGRAM = """\
#!{python} -S
import sys
sys.path.insert(0, {tests!r})
from forked_flowctl import Flowctl
sys.exit(Flowctl(sys.argv[1:]).wait())
"""
"""The program `flowctl` in a shell: it starts no interpreter that imports the modules of the command."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the entry points of this checkout, and with the program `flowctl`."""
    site = installed_site(tmp_path_factory.mktemp("installed"))
    (site / "flowctl").write_text(PROGRAM.format(python=sys.executable, tests=str(REPOSITORY / "tests")))
    (site / "flowctl").chmod(0o755)
    return site


def run(command: str, folder: Path, site: Path) -> str:
    """What a command prints where the site's packages are installed, as a reader of the page sees it on a terminal of 120 columns."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(site), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY)]),
        "COLUMNS": "120",
        **offline(site / "wheels"),
    }
    program, *arguments = shlex.split(command)
    pipe = subprocess.PIPE
    options: dict[str, Any] = {
        "cwd": folder,
        "env": environment,
        "text": True,
        "stdout": pipe,
        "stderr": subprocess.STDOUT,
    }
    if program == "flowctl" and not set(command) & set("|<>;&$`"):
        process: subprocess.Popen[str] = Flowctl(arguments, **options)
    else:
        sharing = sharing_options()
        environment |= {name: value for name, value in sharing["env"].items() if name != "PYTHONPATH"}
        process = subprocess.Popen(command, shell=True, pass_fds=sharing["pass_fds"], **options)
    with process:
        return process.communicate()[0]


def run_session(text: str, names: dict[str, Any], page: str) -> None:
    """Run a session of Python, whose names stay for later sessions; a result that differs fails the test."""
    session = doctest.DocTestParser().get_doctest(text, names, page, page, 0)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    report: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=flags).run(session, out=report.append, clear_globs=False)
    names.update(session.globs)
    assert not report, "".join(report)


PROGRESS = re.compile(r"^\w+ +(running|\d+ %).* \d+:\d\d(\.\d| left)$\n", re.MULTILINE)
"""A line about a command that takes more than ten seconds on a busy machine."""


def matches(shown: list[str], printed: str) -> bool:
    """Whether what was printed is what the page shows, apart from lines of progress."""
    patterns = (
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + r"\n" for line in shown
    )
    lines = "".join(f"{line.rstrip()}\n" for line in PROGRESS.sub("", printed).rstrip().splitlines())
    return re.fullmatch("".join(patterns), lines) is not None


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_of_documentation_has_correct_examples(
    page: Path, tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for language, file, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if file.endswith("pyproject.toml"):
            copy_installed(site / "wheels", "packaging", *PYDANTIC)
        if file:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text, encoding="utf-8")
        elif language == "pycon":
            run_session(text, names, page.name)
        elif language == "console":
            for command, shown in commands_of(text):
                printed = run(command, tmp_path, site)
                assert not shown or matches(shown, printed), (
                    f"{page.name}: $ {command}\nshows\n" + "\n".join(shown) + f"\nand prints\n{printed}"
                )


def test_ellipsis_matches_any_lines() -> None:
    assert matches(["a", "…", "d"], "a\nb\nc\nd\n")
    assert matches(["…", "a", "…"], "a\n")
    assert matches(["a", "b"], "a  \nb\n")
    assert not matches(["a", "…", "d"], "a\nb\nc\n")
    assert not matches(["a"], "a\nb\n")
    assert matches(["1 passed in … s"], "1 passed in 0.2 s\n")
    assert not matches(["1 passed in … s"], "2 passed in 0.2 s\n")
    assert matches(
        ["a", "1 passed"], "a\ntest      running      00:10.5\ntest     22 % of 9 tests    0:35 left\n1 passed\n"
    )
    assert not matches(["a"], "a\ntest is running 00:10.5\n")


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text(encoding="utf-8")))
    local = [link.partition("#")[::2] for link in links if "://" not in link]
    targets = [((page.parent / file).resolve() if file else page, anchor) for file, anchor in local]

    assert [file for file, _ in targets if not file.exists()] == []
    assert [(file.name, anchor) for file, anchor in targets if anchor and anchor not in anchors_of(file)] == []
