"""A module's state: what `startCommit` returns is in the shard's database, and the constructor of the next has it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typescript_derivation import HEAD, derivation, invoke

from connectors.derive_typescript import TypeScriptConnector
from connectors.derive_typescript.runtime.session import TypeScriptSession
from connectors.module_kit.process import POOL
from connectors.module_kit.state import State, merged
from derive.document.pointer import JSON
from derive.errors import LambdaError
from derive.protocol.specs import DerivationSpec
from derive.shard.plan import Attempt
from derive.shard.state import fold, open_state

# The examples of RFC 7396, appendix A: target, patch and result.
EXAMPLES: list[tuple[JSON, JSON, JSON]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), EXAMPLES)
def test_merge_patches_follow_rfc_7396(target: JSON, patch: JSON, result: JSON) -> None:
    assert merged(target, patch) == result


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(values, values)
def test_merge_patch_applied_twice_equals_one_application(target: JSON, patch: JSON) -> None:
    once = merged(target, patch)
    assert merged(once, patch) == once


@given(values)
def test_state_is_read_as_written(value: JSON) -> None:
    database = apsw.Connection(":memory:")
    state = State(database, "flow_typescript")
    assert (state.version(), state.value()) == (None, {})
    first = state.commit([{"updated": value, "mergePatch": False}])
    assert (state.version(), state.value()) == (first, value)
    second = state.commit([])
    assert second != first
    assert (state.version(), state.value()) == (second, value)


COUNTER = f"""{HEAD}
let instances = 0;
export class Derivation extends IDerivation {{
    counts: Record<string, number>;
    changed: Record<string, number | null> = {{}};
    instance = ++instances;
    constructor(open: {{ state: {{ counts?: Record<string, number> }} }}) {{
        super(open);
        this.counts = open.state.counts ?? {{}};
    }}
    fromIn(read: any): any {{
        const key = read.doc.k;
        this.changed[key] = this.counts[key] = (this.counts[key] ?? 0) + 1;
        if (read.doc.forget) {{
            delete this.counts[key];
            this.changed[key] = null;
        }}
        return [{{ k: key, n: this.counts[key] ?? 0, instance: this.instance }}];
    }}
    startCommit() {{
        return {{ state: {{ updated: {{ counts: this.changed }}, mergePatch: true }} }};
    }}
    RESET
}}
"""
PLAIN = COUNTER.replace("    RESET\n", "")
RESET = COUNTER.replace("RESET", "async reset() { instances = 100; }")


class Shard:
    """One shard's folder, and the transactions that were committed."""

    def __init__(self, root: Path, name: str = "shard") -> None:
        self.folder = root / "task" / name
        self.folder.mkdir(parents=True)
        (root / "task" / "epochs" / "1").mkdir(parents=True, exist_ok=True)
        self.committed: str | None = None
        self.number = 0

    @contextmanager
    def transaction(self, spec: DerivationSpec, *, commits: bool = True) -> Iterator[TypeScriptSession]:
        self.number += 1
        attempt = Attempt(1, self.number, token=f"{self.folder.name}.{self.number}")
        with open_state(self.folder, attempt=attempt, committed=self.committed) as database:
            session = TypeScriptConnector().open(spec, database, lambda _, message: None)
            try:
                yield session
                session.prepare_commit()
            finally:
                session.close()
        if commits:
            self.committed = str(attempt)


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    yield
    POOL.close()


def counted(session: TypeScriptSession, *keys: str) -> list[tuple[int, int]]:
    return [(each["n"], each["instance"]) for _, each in invoke(session, [{"k": key} for key in keys])]


@pytest.mark.deno
def test_transaction_begins_with_the_state_of_the_last_one(tmp_path: Path) -> None:
    shard, spec = Shard(tmp_path), derivation(PLAIN)
    pids = []
    for expected in ([(1, 1), (2, 1)], [(3, 2), (4, 2)], [(5, 3), (6, 3)]):
        with shard.transaction(spec) as session:
            assert counted(session, "a", "a") == expected
            assert session._process is not None
            pids.append(session._process.pid)
    assert len(set(pids)) == 1  # the process is the same, and the instance another
    with shard.transaction(spec) as session:
        assert invoke(session, [{"k": "a", "forget": True}]) == [(0, {"k": "a", "n": 0, "instance": 4})]
    with shard.transaction(spec) as session:
        assert counted(session, "a") == [(1, 5)]
    assert shard.committed is not None
    database = apsw.Connection(str(fold(shard.folder, attempt=Attempt(1, 100), committed=shard.committed)))
    assert database.execute("SELECT state FROM flow_typescript").get == '{"counts":{"a":1}}'
    database.close()


@pytest.mark.deno
def test_uncommitted_transaction_leaves_neither_state_nor_process(tmp_path: Path) -> None:
    shard, spec = Shard(tmp_path), derivation(PLAIN)
    with shard.transaction(spec) as session:
        assert counted(session, "a") == [(1, 1)]
    with shard.transaction(spec, commits=False) as session:
        assert counted(session, "a", "b") == [(2, 2), (1, 2)]
        lost = session._process
    assert lost is not None
    assert lost.alive
    with shard.transaction(spec) as session:
        assert counted(session, "a", "b") == [(2, 1), (1, 1)]  # of a new process: it is its first instance
        assert session._process is not lost
        assert not lost.alive


@pytest.mark.deno
def test_a_transaction_that_fails_ends_the_process(tmp_path: Path) -> None:
    shard, spec = Shard(tmp_path), derivation(PLAIN)
    with shard.transaction(spec) as session:
        counted(session, "a")
    with pytest.raises(KeyboardInterrupt), shard.transaction(spec) as session:
        counted(session, "a")
        process = session._process
        raise KeyboardInterrupt
    assert process is not None
    assert not process.alive
    with shard.transaction(spec) as session:
        assert counted(session, "a") == [(2, 1)]


@pytest.mark.deno
def test_a_process_killed_between_transactions_is_replaced_with_the_state(tmp_path: Path) -> None:
    shard, spec = Shard(tmp_path), derivation(PLAIN)
    with shard.transaction(spec) as session:
        counted(session, "a")
        assert session._process is not None
        pid = session._process.pid
    os.kill(pid, signal.SIGKILL)
    with shard.transaction(spec) as session:
        assert counted(session, "a") == [(2, 1)]


@pytest.mark.deno
def test_shards_have_processes_and_states_of_their_own(tmp_path: Path) -> None:
    shards, spec = [Shard(tmp_path, name) for name in ("one", "two")], derivation(PLAIN)
    for expected in ([(1, 1)], [(2, 2)]):
        for shard in shards:
            with shard.transaction(spec) as session:
                assert counted(session, "a") == expected


@pytest.mark.deno
@pytest.mark.parametrize(("text", "expected"), [(PLAIN, [(1, 1)]), (RESET, [(1, 101)])])
def test_a_new_task_starts_over_with_reset_or_another_process(
    tmp_path: Path, text: str, expected: list[tuple[int, int]]
) -> None:
    """As between catalog tests, each of which has a data folder of its own."""
    spec = derivation(text)
    with Shard(tmp_path, "one").transaction(spec) as session:
        assert counted(session, "a") == [(1, 1)]
    with Shard(tmp_path, "two").transaction(spec) as session:
        assert counted(session, "a") == expected


# What startCommit does wrong, and what is said.
WRONG = [
    ("throw new RangeError('full');", "'startCommit' of 'acme/out' failed: RangeError: full", 3),
    ("return { state: { updated: () => 1 } } as any;", "must return a state that is JSON, and returned a function", 3),
    ("return { state: { updated: { a: [0 / 0] } } } as any;", "/a/0 of the state is NaN, which JSON cannot hold", 3),
    ("return { state: { updated: new Map() } } as any;", "the state is a Map, which JSON cannot hold", 3),
    ("return { state: {} } as any;", "must return a state that is JSON, and returned undefined", 3),
    ("return new Promise(() => {}) as any;", "it waits for a promise that nothing will ever resolve", 3),
]


@pytest.mark.deno
@pytest.mark.parametrize(("body", "reason", "line"), WRONG)
def test_invalid_state_is_an_error(tmp_path: Path, body: str, reason: str, line: int) -> None:
    text = f"{HEAD}export class Derivation extends IDerivation {{ fromIn(): any {{ return []; }}\n startCommit() {{ {body} }} }}"
    with pytest.raises(LambdaError) as caught, Shard(tmp_path).transaction(derivation(text)) as session:
        invoke(session, [{"id": 1}])
    assert reason in caught.value.message
    assert caught.value.position is not None
    assert (caught.value.position.file, caught.value.position.line) == ("acme.ts", line)


@pytest.mark.deno
def test_start_commit_may_return_no_state(tmp_path: Path) -> None:
    text = f"{HEAD}export class Derivation extends IDerivation {{ fromIn(r: any): any {{ return [r.doc]; }}\n startCommit() {{ return {{}}; }} }}"
    shard = Shard(tmp_path)
    for _ in range(2):
        with shard.transaction(derivation(text)) as session:
            assert invoke(session, [{"id": 1}]) == [(0, {"id": 1})]


@pytest.mark.deno
def test_state_of_an_inherited_start_commit_is_an_error() -> None:
    session = TypeScriptConnector().open(derivation(PLAIN), apsw.Connection(":memory:"), lambda _, message: None)
    with pytest.raises(LambdaError, match="'acme/out' inherits 'startCommit' from another file"):
        counted(session, "a")
    session.close()
