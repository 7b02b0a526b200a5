"""`check` finds what is wrong with a module before a document is read, and says it at the author's places."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from connectors.derive_typescript import TypeScriptConnector
from connectors.derive_typescript.check import SoundModules, check_modules
from connectors.derive_typescript.config import TypeScriptConfig
from connectors.derive_typescript.runtime.command import cache_folder
from derive.document.pointer import JSON
from derive.errors import Issue
from derive.position import Position, Script
from derive.protocol.specs import CollectionSpec, DerivationSpec, InputSpec, ShuffleSpec, TransformSpec

pytestmark = pytest.mark.deno

AT = Position("flow.yaml", 3, 5)
BALANCES = {
    "type": "object",
    "required": ["user", "balance"],
    "properties": {"user": {"type": "string"}, "balance": {"type": "number"}},
}
OUTCOMES = {
    "type": "object",
    "required": ["id", "sender", "recipient", "amount", "outcome"],
    "properties": {
        "id": {"type": "integer"},
        "sender": {"type": "string"},
        "recipient": {"type": "string"},
        "amount": {"type": "number"},
        "outcome": {"enum": ["approve", "decline"]},
    },
}
DOCUMENTED = """\
import { IDerivation, Document, SourceFromOutcomes } from 'flow/acmeBank/balances.ts';

// Implementation for derivation acmeBank/balances.
export class Derivation extends IDerivation {
    fromOutcomes(read: { doc: SourceFromOutcomes }): Document[] {
        const doc = read.doc;
        return [
            // Debit the sender.
            { user: doc.sender, balance: -doc.amount },
            // Credit the recipient.
            { user: doc.recipient, balance: doc.amount },
        ];
    }
}
"""
HEAD = """\
import { IDerivation, Document, SourceFromOutcomes } from 'flow/acmeBank/balances.ts';
export class Derivation extends IDerivation {
"""


def collection(name: str, schema: JSON) -> CollectionSpec:
    return CollectionSpec(name, ("/user",), ("",), schema, schema, (), AT)


def derivation(module: Script, *names: str) -> DerivationSpec:
    transforms = tuple(
        TransformSpec(
            InputSpec(index, name, "acmeBank/transfer-outcomes", Position("flow.yaml", 10 + index)), ShuffleSpec("any")
        )
        for index, name in enumerate(names or ("fromOutcomes",))
    )
    sources = {"acmeBank/transfer-outcomes": collection("acmeBank/transfer-outcomes", OUTCOMES)}
    target = collection("acmeBank/balances", BALANCES)
    return DerivationSpec(target, "typescript", TypeScriptConfig(module), transforms, sources, 1_000_000)


def check(text: str, *names: str) -> list[Issue]:
    return TypeScriptConnector().check([derivation(Script(text, text, Position("balances.ts")), *names)])


CLOCK = f"""\
{HEAD}    count = 0;
    constructor(open: {{ state: unknown }}) {{ super(open); }}
    override async fromOutcomes(read: {{ doc: SourceFromOutcomes; publishedAt: string }}): Promise<Document[]> {{
        await Promise.resolve(this.count++);
        return read.doc.outcome === 'approve' ? [{{ user: read.publishedAt, balance: 0 }}] : [];
    }}
}}
"""
NO_CLASS = "export class Derivatio {}"
TYPES = """\
    fromOutcomes(read: { doc: SourceFromOutcomes }): Document[] {
        const amount: string = read.doc.amount;
        if (read.doc.outcome === 'aproved') return [];
        return [{ user: read.doc.sendr, balance: 1 }];
    }
}
"""
MEMBERS = """\
    startCommit() { return {}; }
}
"""
SYNTAX = """\
    fromOutcomes(read {
"""
OVERLAP = 'the types \'"approve" | "decline"\' and \'"aproved"\' have no overlap'
ABSTRACT = "does not implement inherited abstract member fromOutcomes from class 'IDerivation'"
# The module's text behind HEAD, and its issues: code, message, line, column and how much is underlined.
WRONG: list[tuple[str, list[tuple[str, str, int, int, int]]]] = [
    (  # wrong types, a constant that the schema does not list, and a property that is not there
        TYPES,
        [
            ("E531", "Type 'number' is not assignable to type 'string'", 4, 15, 6),
            ("E531", f"This comparison appears to be unintentional because {OVERLAP}", 5, 13, 30),
            ("E531", "Property 'sendr' does not exist on type 'SourceFromOutcomes'. Did you mean 'sender'?", 6, 34, 5),
        ],
    ),
    (  # a method that is missing
        MEMBERS,
        [("E531", f"Non-abstract class 'Derivation' {ABSTRACT}", 2, 14, 10)],
    ),
    (  # not TypeScript
        SYNTAX,
        [("E531", "SyntaxError: Expected ',', got '{'", 3, 23, 0)],
    ),
]


@pytest.fixture(scope="module")
def issues_of() -> dict[str, list[Issue]]:
    """Return issues by the text of their module; one process of Deno checks all modules, as each takes a second."""
    texts = {
        f"{place}.ts": text for place, text in enumerate([DOCUMENTED, CLOCK, NO_CLASS, *(HEAD + t for t, _ in WRONG)])
    }
    specs = [derivation(Script(text, text, Position(file))) for file, text in texts.items()]
    inline = "export class Derivation {\n  fromOutcomes(): string { return 1; }\n}\n"
    source = "|\n" + "".join(f"        {line}\n" for line in inline.splitlines())
    issues = TypeScriptConnector().check([*specs, derivation(Script(inline, source, Position("flow.yaml", 7, 19)))])
    texts["flow.yaml"] = "inline"
    return {text: [issue for issue in issues if issue.position.file == file] for file, text in texts.items()}


@pytest.mark.parametrize("text", [DOCUMENTED, CLOCK], ids=["documented", "clock"])
def test_sound_module_has_no_issues(text: str, issues_of: dict[str, list[Issue]]) -> None:
    assert issues_of[text] == []


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_issues_have_positions_in_the_authors_files(
    text: str, expected: list[tuple[str, str, int, int, int]], issues_of: dict[str, list[Issue]]
) -> None:
    found = [
        (each.code, each.message, each.position.line, each.position.column, each.position.length)
        for each in issues_of[HEAD + text]
    ]
    assert found == expected


def test_inline_code_is_found_in_the_yaml_file(issues_of: dict[str, list[Issue]]) -> None:
    assert [(each.position.line, each.position.column) for each in issues_of["inline"][:1]] == [(9, 36)]


def test_a_module_without_the_class_is_one_issue(issues_of: dict[str, list[Issue]]) -> None:
    hint = "write 'export class Derivation extends IDerivation'"
    issue = Issue("E531", "the module exports no class 'Derivation'", Position("2.ts"), hint)
    assert issues_of[NO_CLASS] == [issue]


def together(*texts: str) -> list[tuple[str, str, int]]:
    """The issues of modules that are checked in one go: file, message, line."""
    specs = [derivation(Script(text, text, Position(f"{place}.ts"))) for place, text in enumerate(texts)]
    issues = TypeScriptConnector().check(specs)
    return [(each.position.file, each.message, each.position.line) for each in issues]


SENDR = HEAD + "    fromOutcomes(read: { doc: SourceFromOutcomes }) { read.doc.sendr; return []; }\n}\n"
UNKNOWN = "Property 'sendr' does not exist on type 'SourceFromOutcomes'. Did you mean 'sender'?"


def test_unloadable_module_hides_no_issues_of_others() -> None:
    gone = f"import {{ x }} from './gone.ts';\n{DOCUMENTED}"
    found = together(SENDR, HEAD + SYNTAX, DOCUMENTED, gone, HEAD + SYNTAX, SENDR)
    assert sorted((file, line) for file, _, line in found) == [
        ("0.ts", 3),
        ("1.ts", 3),
        ("3.ts", 1),
        ("4.ts", 3),
        ("5.ts", 3),
    ]
    (message,) = [message for file, message, _ in found if file == "3.ts"]
    assert "gone.ts" in message
    assert "flowctl-deno" not in message


def test_check_names_an_unfetched_library_and_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DENO_DIR", str(tmp_path))
    cache_folder.cache_clear()
    try:
        (issue,) = check(f"import leftPad from 'npm:left-pad@1.3.0';\n{DOCUMENTED}")
    finally:
        cache_folder.cache_clear()
    assert "left-pad" in issue.message
    assert issue.hint == "fetch libraries ahead of time: flowctl generate --cache"
    assert (issue.position.line, issue.position.column) == (1, 21)
    assert list(tmp_path.rglob("left-pad*")) == []


def of_text(text: str) -> DerivationSpec:
    return derivation(Script(text, text, Position("balances.ts")))


def test_sound_modules_are_not_checked_again(tmp_path: Path) -> None:
    """Told by modules that are wrong: what is remembered of them is believed."""
    documented, wrong, library = map(of_text, (DOCUMENTED, SENDR, f"import 'npm:left-pad@1.3.0';\n{DOCUMENTED}"))
    assert check_modules([documented], SoundModules(tmp_path)) == []
    assert len(check_modules([wrong], SoundModules(tmp_path))) == 1
    known = SoundModules(tmp_path)
    assert [known.knows(spec) for spec in (documented, wrong, library)] == [True, False, False]

    known.add([wrong, library])
    assert check_modules([documented, wrong], SoundModules(tmp_path)) == []
    assert not SoundModules(tmp_path).knows(library)
    assert not SoundModules(tmp_path).knows(of_text(SENDR + "\n"))
    typed = replace(documented, collection=collection("acmeBank/balances", {**BALANCES, "required": ["user"]}))
    assert not SoundModules(tmp_path).knows(typed)


def test_modules_with_libraries_are_known_together_with_them(tmp_path: Path) -> None:
    library, known = of_text(f"import 'npm:left-pad@1.3.0';\n{DOCUMENTED}"), SoundModules(tmp_path)
    known.add([library], '[["left-pad@1.3.0",[],7]]')

    libraries = ('[["left-pad@1.3.0",[],7]]', '[["left-pad@1.3.0",[],8]]', "[]", "")
    assert [SoundModules(tmp_path).knows(library, stamps) for stamps in libraries] == [True, False, False, False]


def test_unusable_cache_of_sound_modules_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "flowctl-sound-modules").write_bytes(b"\xff")
    assert not SoundModules(tmp_path).knows(of_text(DOCUMENTED))
    (tmp_path / "file").touch()
    known = SoundModules(tmp_path / "file")
    known.add([of_text(DOCUMENTED)])
    assert known.knows(of_text(DOCUMENTED))
    assert not SoundModules(tmp_path / "file").knows(of_text(DOCUMENTED))


def test_shared_and_reserved_method_names_are_issues() -> None:
    issues = check(DOCUMENTED, "fromOutcomes", "from-outcomes", "Flush", "constructor")
    assert [(each.code, each.message, each.position.line) for each in issues] == [
        ("E532", "transforms 'fromOutcomes' and 'from-outcomes' would both be the method 'fromOutcomes'", 11),
        ("E532", "transform 'Flush' would be the method 'flush', which the runtime reserves", 12),
        ("E532", "transform 'constructor' would be the method 'constructor', which the runtime reserves", 13),
    ]
