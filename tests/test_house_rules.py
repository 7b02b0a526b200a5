"""House rules of CONTRIBUTING.md that a program can check: lengths, names, and first words of docstrings."""

import ast
import gc
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from derive.plural import plural
from derive.storage.metadata.postgres_tables import CREATE, DIGESTS, PROTOCOL

pytestmark = pytest.mark.xdist_group("house rules")  # one process parses all modules

REPOSITORY = Path(__file__).parents[1]
SOURCES = {
    str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8")
    for folder in ("derive", "connectors", "bench")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
}
MODULES = {
    path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
    for path in SOURCES
    if not path.startswith("bench/")
}
VAGUE = {"each", "found", "whole"}
FORBIDDEN_TERMS = {
    **dict.fromkeys(("anew",), "recompute, restart"),
    **dict.fromkeys(("wanted", "wish", "wished", "wishes"), "desired, request"),
    **dict.fromkeys(("bell", "news", "nudge", "tell", "tells", "told"), "notify, report, wake"),
    **dict.fromkeys(("asking", "prompt"), "query, point lookup, fast path"),
    **dict.fromkeys(("comes", "goes", "halt", "halts", "heal", "heals"), "resume, fail, retryable"),
    **dict.fromkeys(("moment", "moments"), "timestamp, time"),
    **dict.fromkeys(("letters",), "characters"),
    **dict.fromkeys(("cohort", "cohorts", "lineup"), "dataflow group, task graph"),
    **dict.fromkeys(("tend", "tidy", "upkeep"), "compaction, maintenance, clean up"),
    **dict.fromkeys(("fed", "feeding"), "ingestion, source"),
    **dict.fromkeys(("draft",), "DDL transaction"),
    **dict.fromkeys(("agreement",), "compatibility"),
    **dict.fromkeys(("apart", "disjoint"), "free of conflicts, independent"),
    **dict.fromkeys(("joint",), "cycle transaction"),
    **dict.fromkeys(("here", "worth"), "local, cost model"),
    **dict.fromkeys(("lease", "leased", "leases", "rights"), "capability"),
    **dict.fromkeys(("ledger",), "storage clock"),
    **dict.fromkeys(("nobody", "remembering", "silence", "takeover"), "none, cache, stall, hybrid executor"),
}
"""Words that no module, class or function has in its name, and the terms to use instead."""
NOT_VARIABLES = {"each", "found", "news", "said", "tell", "told", "wanted", "whole"}
"""Names that no variable or parameter has, because they do not name its content."""
SMALL_MODULES = {
    "connectors/derive_typescript/runtime/deno_process.py": "starts before numpy is imported, which a session needs",
    "connectors/derive_typescript/runtime/session.py": "what is special in a session of TypeScript",
    "derive/scratch.py": "leaf: temporary folders",
    "derive/functions/scalar/periods.py": "leaf: OVERLAPS of all types of times",
    "derive/functions/scalar/sampling.py": "leaf: the conditions of TABLESAMPLE",
    "derive/sql/planner/sampling.py": "leaf: TABLESAMPLE, which no other item of FROM resembles",
    "connectors/module_kit/projects.py": "leaf: shared by languages",
    "connectors/derive_sqlite/measured.py": "only measured runs import it",
    "derive/storage/metadata/pooler.py": "leaf: the check of a new connection",
    "derive/storage/metadata/postgres_stall.py": "leaf: the question to a silent server",
    "derive/shard/meter.py": "leaf: shared by pipelines and cycles",
    "derive/ui/plan_picture.py": "leaf: from the text of EXPLAIN to a picture",
    "derive/cli/foreground.py": "leaf: shared by the console and commands that run until they are stopped",
    "derive/cli/pipes.py": "leaf: loaded by every command",
    "derive/cli/keys.py": "leaf: shared by commands and pages",
    "derive/cli/pasting.py": "leaf: loaded by every command",
    "derive/sql/transactions/programs.py": "leaf: shared by errors of reads and notices of definitions",
    "derive/cli/metadata.py": "a command",
    "derive/cli/prepare.py": "a command",
    "derive/compute/row_values.py": "seam: SQL must not know SQLite",
    "derive/cli/environment.py": "a command",
    "derive/durable.py": "leaf: durable writes",
    "derive/functions/types/letter_case.py": "leaf: case mappings",
    "derive/materialize/parent_watchdog.py": "entry point: runs without this package",
    "derive/materialize/stages.py": "seam: derivations and materializations",
    "derive/metrics/exposition.py": "leaf: a text format",
    "derive/spark/release.py": "leaf: the daemon and workers import it before anything that another release may lack",
    "derive/spark/detached.py": "leaf: the functions that workers run",
    "derive/spark/daemon.py": "entry point: the process that forks Spark's Python workers",
    "derive/sql/backends.py": "leaf: sessions of a server",
    "derive/sql/transactions/ownership.py": "a seam: the capability to serve SQL, with the errors of SQL",
    "derive/sql/transactions/counters.py": "leaf: numbers of identity columns and sequences",
    "derive/storage/metadata/joining.py": "leaf: the opening of metadata and restores share it",
    "derive/storage/metadata/recorded_location.py": "leaf: opening the metadata reads it",
    "derive/storage/capability/renewals.py": "leaf: capabilities of collections, of tasks, and to serve SQL share it",
    "derive/storage/segments/clocks.py": "keeps Arrow out of the start",
    "connectors/derive_python/flow_harness/pandas_import.py": "a seam: the one use of an interface of Arrow",
    "derive/plural.py": "a leaf that all rooms share",
    "derive/storage/table_compaction.py": "keeps Arrow out of the start of SQL",
    "derive/sql/execution/staged_rows.py": "a leaf of INSERT, COPY and foreign keys",
    "derive/sql/parser/merge.py": "the syntax of one statement, which data_statements.py has the parts of",
    "derive/sql/planner/writes.py": "a seam: the entry point above the planners of the statements",
    "derive/sql/transactions/deferral.py": "a value that the state of a session and foreign keys share",
}
"""Modules under 80 lines, and why each is not part of another one."""
NO_SUBJECTS = {
    *("What", "Whatever", "Who", "Whoever", "Whose", "Whom", "Of", "By", "Whether"),
    *("Nobody", "Nothing", "Somebody", "Someone", "Those", "Such"),
}
"""First words of a clause in the place of a subject: a docstring names the thing."""
PRONOUNS = {"It", "This", "That", "They"}
"""First words of a docstring that says neither what its function returns nor what it does."""
NO_SUBJECTS_OF_TESTS = {
    *{word.lower() for word in NO_SUBJECTS | PRONOUNS},
    *("its", "there", "so", "too", "others", "how", "however", "wherever", "which", "anything"),
}
"""First words after `test_` that name no subject."""
OLD_TERMS_OF_TESTS = {"anew", "told", "tell", "tells", "lease", "leases", "heals", "moment", "moments", "whoever"}
"""Words that no name of a test has, and for which the rest of the code has a standard term."""
RIDDLES_OF_TESTS = (
    *("no_sense", "that_is_none", "that_are_none", "whatever", "wherever", "of_ours", "taken_away", "mended"),
    *("fenced_off", "somebody", "anyhow", "as_they_should_be", "is_not_there", "are_not_there"),
)
"""Phrases that no name of a test has: a reader must see the subject and the behaviour without the body."""
RIDDLES = (
    *("tried again", "is not there", "are not there", "as they come", "unasked", "anew", "somebody", "whatever"),
    *("for good", "of ours", "cannot be had", "taken away", "what it has", "says nothing", "any more", "gives up"),
    *("given up", "taken over", "kept up to date", "has no effect here", "it has:"),
)
"""Phrases that no message and no first paragraph of a docstring has: they are read twice."""
COUNTED = (
    *("argument", "attempt", "binding", "branch", "byte", "candidate", "cause", "cell", "character", "client"),
    *("collection", "column", "commit", "connection", "copy", "derivation", "document", "edit", "element", "entry"),
    *("error", "event", "field", "file", "folder", "frame", "group", "hour", "index", "input", "item", "key", "level"),
    *("line", "load", "location", "message", "minute", "name", "parameter", "part", "partition", "process", "property"),
    *("query", "reader", "record", "replica", "request", "retraction", "row", "schema", "second", "segment", "session"),
    *("shard", "snapshot", "source", "statement", "step", "table", "task", "test", "tick", "time", "transaction"),
    *("transform", "update", "value", "version", "view", "write"),
)
"""Nouns that messages count."""
NEVER_ONE = {
    *("count", "most_bytes", "self.most_bytes", "form.most_bytes", "most_values(limit)", "size", "len(text)", "limit"),
    *("state.shards", "len(copies)", "len(parts)", "len(counts)", "len(self._dynamic[name])", "counted"),  # several
    *("total", "kind", "nanos", "type(message).__name__", "self._config.host"),  # not the number of the noun behind it
}
"""Expressions before a plural that are never 1, or no number."""
TEST_NAMES = [
    (str(path.relative_to(REPOSITORY)), name)
    for path in sorted((REPOSITORY / "tests").rglob("*.py"))
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@cache
def nodes_by_kind() -> Mapping[type[ast.AST], list[tuple[str, Any]]]:
    """Return the path and each node of all modules; the nodes stay, so the garbage collector need not look at them."""
    nodes: dict[type[ast.AST], list[tuple[str, Any]]] = {}
    gc.disable()
    try:
        for path, text in SOURCES.items():
            for node in ast.walk(ast.parse(text)):
                nodes.setdefault(type(node), []).append((path, node))
    finally:
        gc.freeze()
        gc.enable()
    return nodes


def nodes(*kinds: type[ast.AST]) -> list[tuple[str, Any]]:
    """Return the path and each node of these kinds."""
    return [pair for kind in kinds for pair in nodes_by_kind().get(kind, ())]


def calls(name: str) -> list[tuple[str, Any]]:
    """Return the path and each call of a function that is named without a module."""
    return [(path, node) for path, node in nodes(ast.Call) if isinstance(node.func, ast.Name) and node.func.id == name]


def docstrings() -> Iterator[tuple[str, str, bool]]:
    """Path and first word of each docstring, also of constants, and true for that of a function."""
    for path, node in nodes(*(kind for kind in nodes_by_kind() if "body" in kind._fields)):
        for index, statement in enumerate(node.body if isinstance(node.body, list) else []):
            match statement:
                case ast.Expr(ast.Constant(str(text))) if text.strip():
                    is_function = index == 0 and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                    yield path, text.split()[0].strip("`'\",.:;"), is_function


def texts() -> Iterator[tuple[str, str]]:
    """Path and text of each string; of a docstring, its first paragraph."""
    for path, node in nodes(ast.Constant):
        if isinstance(node.value, str):
            yield path, node.value.split("\n\n")[0]


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body, its docstring aside."""
    first = function.body[0].end_lineno if ast.get_docstring(function) else function.body[0].lineno - 1
    return (function.end_lineno or 0) - (first or 0)


def test_files_are_short() -> None:
    assert [path for path, text in SOURCES.items() if text.count("\n") > 800] == []


def test_small_modules_have_reasons() -> None:
    """Law: a module under 80 lines is in `SMALL_MODULES` with the reason why it is not part of another one."""
    rooms = ("derive/protocol/stubs/", "bench/")
    small = {
        path
        for path, text in SOURCES.items()
        if text.count("\n") < 80 and not path.endswith("/__init__.py") and not path.startswith(rooms)
    }

    assert small - SMALL_MODULES.keys() == set(), "merge it with the module of the same concept, or state a reason"
    assert SMALL_MODULES.keys() - small == set(), "not small any more, or gone: remove it from the table"
    assert len(SMALL_MODULES) < 60


def test_changed_tables_have_a_new_version() -> None:
    """Law: processes of different releases never share tables in PostgreSQL that differ."""
    statements = " ".join(re.sub("--.*", "", CREATE).split())
    digest = hashlib.sha256(statements.encode()).hexdigest()[:16]

    assert digest == DIGESTS[PROTOCOL], "raise PROTOCOL, upgrade earlier tables, and record the new digest"


def test_functions_are_short() -> None:
    functions = nodes(ast.FunctionDef, ast.AsyncFunctionDef)

    assert len(functions) > 1000
    assert [(path, function.name) for path, function in functions if length_of(function) >= 40] == []


def test_variables_have_no_vague_names() -> None:
    names = {(path, node.id) for path, node in nodes(ast.Name)} | {(path, node.arg) for path, node in nodes(ast.arg)}

    assert sorted((path, name) for path, name in names if name in VAGUE) == []


def words_of(name: str) -> set[str]:
    """Return the words of an identifier or a path: they end at underscores, dots, slashes and before capitals."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def test_names_are_split_into_words() -> None:
    assert words_of("derive/sql/_SQLSession_told2at.py") == {"derive", "sql", "session", "told2at", "py"}


def test_names_have_standard_terms() -> None:
    names = {(path, node.name) for path, node in nodes(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)}
    names |= {(path, path) for path in SOURCES}
    faults = [(path, name, words_of(name) & FORBIDDEN_TERMS.keys()) for path, name in names]

    assert len(names) > 5000
    assert sorted((path, name, FORBIDDEN_TERMS[word]) for path, name, words in faults for word in words) == []


def test_variables_have_the_name_of_their_content() -> None:
    names = [(path, node.arg) for path, node in nodes(ast.arg)]
    names += [(path, node.id) for path, node in nodes(ast.Name) if isinstance(node.ctx, ast.Store)]

    assert sorted({(path, name) for path, name in names if name.strip("_") in NOT_VARIABLES}) == []


def test_classes_have_names_of_words() -> None:
    assert [(path, node.name) for path, node in nodes(ast.ClassDef) if len(node.name.strip("_")) < 3] == []


def test_docstrings_begin_with_a_subject_or_a_verb() -> None:
    words = list(docstrings())
    faults = {
        (path, word) for path, word, is_function in words if word in NO_SUBJECTS or (is_function and word in PRONOUNS)
    }

    assert len(words) > 5000
    assert sorted(faults) == []


def test_test_names_begin_with_a_subject() -> None:
    faults = [
        (path, name)
        for path, name in TEST_NAMES
        if name.split("_")[1] in NO_SUBJECTS_OF_TESTS or set(name.split("_")) & OLD_TERMS_OF_TESTS
    ]

    assert len(TEST_NAMES) > 2000
    assert faults == [], "test_<subject>_<behaviour>"


def test_test_names_have_a_subject_and_a_behaviour() -> None:
    short = [(path, name) for path, name in TEST_NAMES if len(name.split("_")) < 4]
    riddles = [(path, name) for path, name in TEST_NAMES for phrase in RIDDLES_OF_TESTS if f"_{phrase}_" in f"{name}_"]

    assert short == [], "a subject and a behaviour need three words"
    assert riddles == []


def test_texts_have_no_phrases_that_are_read_twice() -> None:
    riddles = re.compile(rf"\b({'|'.join(RIDDLES)})\b")
    faults = [(path, match[0], text[:80]) for path, text in texts() if (match := riddles.search(text))]

    assert sum(1 for _ in texts()) > 20_000
    assert faults == []


def test_texts_begin_with_no_clause() -> None:
    clause = re.compile(r"\s*(?:What|Whatever|Who|Whoever|Whose|Whom|Whether) \S+ \S", re.IGNORECASE)

    assert [(path, text[:80]) for path, text in texts() if clause.match(text) and text[:1] != " "] == []


def test_counted_nouns_have_a_singular() -> None:
    """Law: a message shows a number with its noun by `counted`, so that no message says "1 documents".

    Messages of SQL have PostgreSQL's words. A conditional expression has the singular in its other branch.
    """
    nouns = re.compile(rf" (?:[a-z]+ )?(?:{'|'.join(map(plural, COUNTED))})\b")
    texts_of_two = [
        part
        for _, node in (*nodes(ast.IfExp), *calls("SqlError"))
        for part in ast.walk(node)
        if isinstance(part, ast.JoinedStr)
    ]
    excepted = set(map(id, texts_of_two))
    faults = []
    for path, node in nodes(ast.JoinedStr):
        if path.startswith(("derive/sql/", "bench/")) or id(node) in excepted:
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            match value, text:
                case ast.FormattedValue(), ast.Constant(str(words)) if nouns.match(words):
                    shown = ast.unparse(value.value)
                    if shown not in NEVER_ONE and not re.match(r"counted\(|[\w.]*\b_?[A-Z][A-Z_]", shown):
                        faults.append((path, f"{{{shown}}}{words[:30]}"))

    assert len(excepted) > 100
    assert faults == [], "derive.plural.counted(number, noun)"


def test_unsupported_syntax_has_a_hint() -> None:
    """Law: the parser names a way to rewrite each statement that it refuses as unsupported (0A000)."""
    errors = [
        (path, node)
        for path, node in nodes(ast.Call)
        if path.startswith("derive/sql/parser/")
        and any(isinstance(argument, ast.Constant) and argument.value == "0A000" for argument in node.args)
    ]

    assert len(errors) > 30
    assert [
        (path, node.lineno) for path, node in errors if "hint" not in {keyword.arg for keyword in node.keywords}
    ] == []


def test_hints_of_sql_begin_with_a_capital() -> None:
    """Law: a hint for clients of SQL is a sentence, as in PostgreSQL."""
    hints = [
        (path, part.value)
        for path, node in calls("SqlError")
        if path.startswith(("derive/sql/", "derive/functions/", "derive/compute/"))
        for keyword in node.keywords
        if keyword.arg == "hint"
        for part in [keyword.value.values[0] if isinstance(keyword.value, ast.JoinedStr) else keyword.value]
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]

    assert len(hints) > 100
    assert [(path, hint) for path, hint in hints if hint[0].islower()] == []


def import_graph() -> dict[str, set[str]]:
    """Return the modules of ours that each module imports: also inside functions, and for types alone."""
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    names = {path: name for name, path in MODULES.items()}
    for path, node in nodes(ast.Import, ast.ImportFrom):
        imported: set[str] = set()
        if isinstance(node, ast.Import):
            imported = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            imported = {module if module in MODULES else str(node.module) for module in full}
        if path in names:
            graph[names[path]] |= (imported & MODULES.keys()) - {names[path]}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules of which each imports each other one, directly or not."""
    order: list[str] = []
    visited: set[str] = set()

    def visit(name: str, edges: Mapping[str, set[str]], out: list[str]) -> None:
        stack = [(name, iter(edges[name]))]
        visited.add(name)
        while stack:
            following = next((other for other in stack[-1][1] if other not in visited), None)
            if following is None:
                out.append(stack.pop()[0])
            else:
                visited.add(following)
                stack.append((following, iter(edges[following])))

    for name in graph:
        if name not in visited:
            visit(name, graph, order)
    importers: dict[str, set[str]] = {name: set() for name in graph}
    for name, imported in graph.items():
        for other in imported:
            importers[other].add(name)
    visited.clear()
    components: list[set[str]] = []
    for name in reversed(order):
        if name not in visited:
            members: list[str] = []
            visit(name, importers, members)
            components.append(set(members))
    return [component for component in components if len(component) > 1]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": set()}) == [{"a", "b", "c"}]


def test_no_three_modules_import_each_other_in_a_circle() -> None:
    graph = import_graph()

    assert sum(map(len, graph.values())) > 2500
    assert [circle for circle in circles(graph) if len(circle) > 2] == []
