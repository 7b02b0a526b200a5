"""Differences of definitions that are compared as texts: modules, and the files of their projects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import write_catalog

from derive.catalog import load
from derive.document.exact import parse_exact
from derive.planning.differences import Change, Facts, find_differences, json_differences, text_diff
from derive.protocol.definition_text import definition_of

CATALOG = """
collections:
  a/numbers: {schema: &schema {type: object, required: [n], properties: {n: {type: integer}}}, key: [/n]}
  a/copies:
    schema: *schema
    key: [/n]
    derive: {using: {typescript: {module: copies.ts}}, transforms: [{name: from, source: a/numbers, shuffle: any}]}
"""
MODULE = """\
import { add } from "./sums.ts";
export class Derivation {
  from(read: { doc: { n: number } }) {
    return [{ n: add(read.doc.n, 1) }];
  }
}
"""
SUMS = "export function add(a: number, b: number) {\n  return a + b;\n}\n"


def definition(folder: Path, module: str, sums: str) -> Any:
    (folder / "copies.ts").write_text(module)
    (folder / "sums.ts").write_text(sums)
    spec = load(write_catalog(folder, CATALOG)).derivations["a/copies"]
    return parse_exact(definition_of(spec).text.encode())


def changes(folder: Path, module: str, sums: str) -> list[Change]:
    before = definition(folder, MODULE, SUMS)
    return list(find_differences(before, definition(folder, module, sums), Facts()))


def test_an_edited_module_is_a_diff(tmp_path: Path) -> None:
    (change,) = changes(tmp_path, MODULE.replace("n, 1)", "n, 2)"), SUMS)
    assert (change.part, change.effect, change.key) == ("module", "new documents", "/module")
    assert "-    return [{ n: add(read.doc.n, 1) }];" in change.diff
    assert "+    return [{ n: add(read.doc.n, 2) }];" in change.diff


def test_an_edited_import_of_a_module_is_a_diff(tmp_path: Path) -> None:
    (change,) = changes(tmp_path, MODULE, SUMS.replace("a + b", "a - b"))
    assert (change.part, change.effect, change.key) == ("sums.ts", "new documents", "/module")
    assert change.diff == (" export function add(a: number, b: number) {", "-  return a + b;", "+  return a - b;", " }")


def test_edited_files_of_a_python_project_are_diffs_or_sizes(tmp_path: Path) -> None:
    text = CATALOG.replace("typescript: {module: copies.ts}", "python: {files: [copies.py, tool.py, model.bin]}")
    (tmp_path / "copies.py").write_text("import tool\n")
    definitions = []
    for tool, model in ((b"a = 1\n", b"\xff\x00"), (b"a = 2\n", b"\xff\x01")):
        (tmp_path / "tool.py").write_bytes(tool)
        (tmp_path / "model.bin").write_bytes(model)
        spec = load(write_catalog(tmp_path, text)).derivations["a/copies"]
        definitions.append(parse_exact(definition_of(spec).text.encode()))
    found = {
        change.part: (change.before, change.after)
        for change in find_differences(definitions[0], definitions[1], Facts())
    }
    assert found == {"tool.py": ("a = 1\n", "a = 2\n"), "model.bin": ("2 bytes", "2 bytes")}


def test_a_definition_does_not_differ_from_itself(tmp_path: Path) -> None:
    assert changes(tmp_path, MODULE, SUMS) == []


def test_json_differences_are_found_below_lists_of_properties() -> None:
    assert list(json_differences({"a": [1, 2]}, {"a": [1, 3]})) == [("/a", [1, 2], [1, 3])]
    assert list(json_differences({"a/b": {"~": 1}}, {"a/b": {}})) == [("/a~1b/~0", 1, None)]
    assert list(json_differences({"a": True}, {"a": 1})) == [("/a", True, 1)]
    assert list(json_differences({"a": 10**30}, {"a": 10**40})) == [("/a", 10**30, 10**40)]


def test_long_diff_has_a_header_for_each_part() -> None:
    before = "\n".join(map(str, range(30)))
    after = before.replace("3\n", "three\n", 1).replace("27", "twenty-seven")
    diff = text_diff(before, after)
    assert [line for line in diff if line.startswith("@@")] == ["@@ -1,7 +1,7 @@", "@@ -25,6 +25,6 @@"]
