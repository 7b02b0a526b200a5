"""The reference pages of the site, generated from the code: nothing of them is kept by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

REPOSITORY = Path(__file__).parent.parent


def reference_pages() -> dict[str, str]:
    """Return the text of each page of the reference, by its path in the site."""
    return {
        "reference/commands.md": commands_page(),
        "reference/fields.md": fields_page(),
        "reference/connectors.md": connectors_page(),
        "reference/issues.md": issues_page(),
        "reference/settings.md": settings_page(),
        "reference/functions.md": functions_page(),
    }


def commands_page() -> str:
    """Return the help of every command."""
    from derive.cli.main import flowctl

    parts = [
        "# Commands\nThe text of `flowctl COMMAND --help`, for every command. Options have environment variables where"
    ]
    parts.append("the text names one; [deployment](../deploy.md) has more variables.\n")
    with click.Context(flowctl, info_name="flowctl") as context:
        for level, name, command in _commands(context, flowctl, "flowctl", 2):
            with click.Context(command, info_name=name, max_content_width=80, terminal_width=80) as own:
                parts.append(f"{'#' * level} {name}\n```text\n{command.get_help(own).rstrip()}\n```\n")
    return "\n".join(parts)


def _commands(
    context: click.Context, group: click.Group, name: str, level: int
) -> Iterator[tuple[int, str, click.Command]]:
    """Yield each command with its level and its full name."""
    for part in group.list_commands(context):
        command = group.get_command(context, part)
        assert command is not None
        yield level, f"{name} {part}", command
        if isinstance(command, click.Group):
            yield from _commands(context, command, f"{name} {part}", level + 1)


def fields_page() -> str:
    """Return every field of a catalog."""
    from derive.catalog.language.json_schema import catalog_schema

    schema = catalog_schema()
    parts = [
        "# Fields of flow.yaml",
        "Every field of a catalog, from the schema that `flowctl json-schema` prints and `flowctl check` applies.\n",
        "## catalog",
        _fields_table(schema, schema["$defs"]),
    ]
    for name, definition in schema["$defs"].items():
        rows = _fields_table(definition, schema["$defs"])
        parts += [f"## {name}", f"{definition.get('description', '')}\n", rows]
    return "\n".join(parts)


def _fields_table(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the table of the fields of an object and of the objects in it; empty without fields."""
    rows = []
    for path, kind, field in _fields(schema, ""):
        definition = definitions.get(field.get("$ref", "").rpartition("/")[2], {})
        meaning = field.get("description") or definition.get("description", "")
        rows.append(f"| `{path}` | {kind} | {_cell(meaning)} |")
    return "\n".join(["| field | type | meaning |", "|---|---|---|", *rows, ""]) if rows else ""


def _fields(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the path, the type and the schema of each field."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        yield path, _type(field) + (", required" if name in required else ""), field
        yield from _fields(field, f"{path}.")
    for keyword in ("then", "else"):
        if keyword in schema:
            yield from _fields(schema[keyword], prefix)
    items = schema.get("items")
    if isinstance(items, Mapping):
        yield from _fields(items, f"{prefix.removesuffix('.')}[].")
    entries = schema.get("additionalProperties")
    if isinstance(entries, Mapping):
        yield from _fields(entries, f"{prefix}NAME.")


def _type(field: Mapping[str, Any]) -> str:
    """Return the type of a field, its values, and its default."""
    kinds = field.get("type", [])
    listed = [kinds] if isinstance(kinds, str) else list(kinds)
    if "enum" in field:
        listed = [f"`{value}`" for value in field["enum"]]
    text = " or ".join(kind for kind in listed if kind != "null") or _referred(field) or "see the text"
    return text + (f", default `{field['default']}`" if "default" in field else "")


def _referred(field: Mapping[str, Any]) -> str:
    """Return a link to the definition that a field refers to; empty without one."""
    for schema in (field, field.get("items", {}), field.get("additionalProperties", {})):
        if isinstance(schema, Mapping) and "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
    return ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def connectors_page() -> str:
    """Return every option of the connectors of endpoints."""
    from connectors.kit.connector import installed_materialize_connectors
    from derive.cli.materialize import option_rows

    parts = [
        "# Options of connectors",
        "Options of an endpoint are below `endpoint: connector: config:`, and options of a resource below `resource:`.",
        "`flowctl connector describe NAME` prints the same.\n",
    ]
    for connector in installed_materialize_connectors():
        parts += [f"## {connector}", "| of | option | type | meaning |", "|---|---|---|---|"]
        for row in option_rows(connector):
            required = ", required" if row["required"] == "yes" else ""
            secret = ", secret" if row["secret"] == "yes" else ""
            default = f", default `{row['default']}`" if row["default"] is not None else ""
            kind = _cell(f"{row['type']}{required}{secret}{default}")
            parts.append(f"| {row['of']} | `{row['option']}` | {kind} | {_cell(row['description'])} |")
        parts.append("")
    return "\n".join(parts)


def issues_page() -> str:
    """Return every code of an error or note of `flowctl check`, with its messages."""
    parts = [
        "# Codes of flowctl check",
        "Each error and note of a catalog has a code: `E` for an error, `N` for a note. `…` is a name or value.",
        "A code without messages has the messages of a library, a connector or a schema.",
        "[Errors](../errors.md) lists classes of errors of the other commands, and the SQLSTATEs of SQL.\n",
        "| code | meaning | messages | what to do |",
        "|---|---|---|---|",
    ]
    explained = explained_codes()
    for code, messages in sorted(issue_codes().items()):
        meaning, remedy = explained[code]
        parts.append(f"| {code} | {meaning} | {'<br>'.join(map(_cell, messages))} | {remedy} |")
    return "\n".join([*parts, ""])


def explained_codes() -> dict[str, tuple[str, str]]:
    """Return the meaning of each code of `flowctl check`, and what to do, from docs/errors.md."""
    page = (REPOSITORY / "docs/errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([EN]\d{3}) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    return {code: (meaning, _as_reference(remedy)) for code, meaning, remedy in rows}


def _as_reference(text: str) -> str:
    """Return a text of a page of docs/ with links for a page of the reference."""
    return re.sub(r"\]\((?=[\w-]+\.md)", "](../", text)


_CODE = re.compile(r"[EN]\d{3}")


def issue_codes() -> dict[str, list[str]]:
    """Return the messages of each code in the code of the catalog, with `…` for inserted values."""
    codes: dict[str, list[str]] = {}
    for folder in ("derive", "connectors"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not _CODE.search(text):
                continue
            tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef):
                    _add_issues(codes, node)
                if isinstance(node, ast.Constant) and (code := _code(node)):
                    codes.setdefault(code, [])  # its message is composed elsewhere
            constants = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
            _add_issues(codes, ast.Module(constants, []))
    return codes


def _add_issues(codes: dict[str, list[str]], scope: ast.AST) -> None:
    """Add the messages that a part of the code reports."""
    assigned = {
        (target.id, node.lineno): node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(scope):
        code, message = _issue(node)
        if code is None:
            continue
        if isinstance(message, ast.Name):
            lines = [line for name, line in assigned if name == message.id and line <= message.lineno]
            message = assigned[message.id, max(lines)] if lines else None
        known = codes.setdefault(code, [])
        known += [text for text in _texts(message) if text.strip("…: '") and text not in known]


def _issue(node: ast.AST) -> tuple[str | None, ast.expr | None]:
    """Return the code and the message of a call or a dict that reports an issue; None for other nodes."""
    if isinstance(node, ast.Call):
        for index, argument in enumerate(node.args):
            if (code := _code(argument)) is not None:
                return code, node.args[index + 1] if index + 1 < len(node.args) else None
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        entries = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
        return _code(entries.get("x-code")), entries.get("errorMessage")
    return None, None


def _code(node: ast.expr | None) -> str | None:
    """Return the code that an expression is; None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value):
        return node.value
    return None


def _texts(node: ast.expr | None) -> list[str]:
    """Return the texts that an expression of the code may have, with `…` for each inserted value."""
    match node:
        case ast.Constant(str(value)):
            return [value]
        case ast.JoinedStr(parts):
            return ["".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)]
        case ast.BinOp(left, ast.Add(), right):
            return [one + other for one in _texts(left) or ["…"] for other in _texts(right) or ["…"]]
        case ast.IfExp(_, body, otherwise):
            return [*_texts(body), *_texts(otherwise)]
    return []


def settings_page() -> str:
    """Return every setting of a session of SQL."""
    from derive.sql.preparation import KNOWN_SETTINGS

    parts = [
        "# Settings of SQL",
        "`SHOW NAME` shows a setting, and `SET NAME = VALUE` changes it for the session. Clients can also set settings",
        "of PostgreSQL that have no effect here. Custom settings have a dot in their name.\n",
        "| setting | default | SET |",
        "|---|---|---|",
    ]
    for name, setting in sorted(KNOWN_SETTINGS.items(), key=lambda item: item[0].lower()):
        changes = "no" if setting.checked is None else "only to its default" if setting.is_own else "yes"
        parts.append(f"| `{name}` | {f'`{_cell(setting.default)}`' if setting.default else ''} | {changes} |")
    return "\n".join([*parts, ""])


_WORDS_OF_OPERATORS = {"and", "or", "not"}


def functions_page() -> str:
    """Return every function, operator, aggregate and window function of SQL, with its signatures."""
    from derive.functions.aggregates.library import AGGREGATES, window_signatures
    from derive.functions.registry import functions_by_name

    scalars: dict[str, set[str]] = {}
    operators: dict[str, set[str]] = {}
    for function in functions_by_name().values():
        if function.symbol.startswith(("_", "flow_", "array_of_")):
            continue
        is_word = re.fullmatch(r"\w+", function.symbol) and function.symbol not in _WORDS_OF_OPERATORS
        kind = scalars if is_word else operators
        signature = _signature(function.arguments, function.result, is_variadic=function.is_variadic)
        kind.setdefault(function.symbol, set()).add(signature)
    aggregates: dict[str, set[str]] = {}
    for aggregate in AGGREGATES.values():
        function = aggregate.signature
        aggregates.setdefault(function.symbol, set()).add(_signature(function.arguments, function.result))
    windows = {name: {_signature(*types)} for name, types in window_signatures().items()}
    parts = ["# Functions of SQL", "Functions, operators and casts have the semantics of PostgreSQL.\n"]
    for title, named in (
        ("Functions", scalars),
        ("Operators", operators),
        ("Aggregates", aggregates),
        ("Window functions", windows),
    ):
        parts += [f"## {title}", "| name | arguments → result |", "|---|---|"]
        parts += [f"| `{_cell(name)}` | {'<br>'.join(sorted(_general(named[name])))} |" for name in sorted(named)]
        parts.append("")
    return "\n".join(parts)


_MOST_SIGNATURES = 8


def _general(signatures: set[str]) -> set[str]:
    """Return signatures, with one for any type T in place of those of all types."""
    families: dict[str, set[str]] = {}
    for signature in signatures:
        first = re.match(r"\(([\w ]+)", signature)
        word = rf"(?<!\w){re.escape(first[1])}(?!\w| \w)" if first else None
        family = re.sub(word, "T", signature) if word else signature
        families.setdefault(family, set()).add(signature)
    return {
        signature
        for family, members in families.items()
        for signature in ([family] if len(members) > _MOST_SIGNATURES else members)
    }


def _signature(arguments: Any, result: Any, *, is_variadic: bool = False) -> str:
    words = [kind.value if kind else "any" for kind in arguments]
    listed = ", ".join(words) + (", …" if is_variadic else "")
    return f"({listed}) → {result.value if result else 'the type of the argument'}"
