"""Tables that lambdas share, and the transforms that may use them.

A document without a shuffle key may come to any shard, and each shard has its own tables. So the rows that it finds in
a table that a lambda writes, and the shard of its own writes, depend on the number of shards (law L1). Tables that only
migrations fill are the same on all shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from connectors.derive_sqlite.program import SCHEMA, Program
from derive.errors import Issue
from derive.lambda_sql.block import Statement

_HINT = "shuffle by the fields that its rows belong to: shuffle: {key: [/field]}"


def check_tables(programs: Sequence[Program]) -> list[Issue]:
    """Return an issue for each statement that uses a shard's table though its documents come to any shard.

    Args:
        programs: programs of all transforms of a derivation.
    """
    written: dict[str, str] = {}
    for program in programs:
        for step in program.steps:
            for table in step.statement.writes:
                written.setdefault(table, program.transform.name)
    anywhere = [program for program in programs if program.transform.shuffle.kind == "any"]
    return [issue for program in anywhere for issue in _issues(program, written)]


def _issues(program: Program, written: dict[str, str]) -> Iterator[Issue]:
    script = program.transform.script
    assert script is not None  # otherwise there would be no program
    for step in program.steps:
        problem = _problem(step.statement, written)
        if problem:
            message = f"{program.what} {problem}, but with 'shuffle: any' its documents come to any shard"
            yield Issue("E528", message, script.locate(step.statement.begin), _HINT)


def _problem(statement: Statement, written: dict[str, str]) -> str | None:
    if statement.writes:
        table = min(statement.writes - {SCHEMA} or statement.writes)
        return f"writes the table '{table}'"
    shared = sorted(statement.reads & written.keys())
    if shared:
        return f"reads the table '{shared[0]}', which the lambda of transform '{written[shared[0]]}' writes"
    return None
