"""The TypeScript connector runs methods of a module under Deno, as time and chance of the documents have it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_SECONDS
from typescript_derivation import CLOCK, HEAD, derivation, invoke, lambdas, open_session, run

from connectors.derive_typescript.connector import TypeScriptConnector
from connectors.derive_typescript.runtime.deno_process import DenoProcess
from connectors.derive_typescript.runtime.project import digest_of
from connectors.module_kit.process import POOL
from derive.errors import LambdaError, LostError, TaskError
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import Document

pytestmark = [pytest.mark.deno, pytest.mark.usefixtures("empty_pool")]


def test_session_publishes_in_order_with_causes() -> None:
    spec = lambdas("return Array(read.doc.id).fill({ id: read.doc.id });")
    assert run(spec, [{"id": 2}, {"id": 0}, {"id": 1}]) == [(0, {"id": 2}), (0, {"id": 2}), (2, {"id": 1})]


def test_session_uses_the_process_that_was_started_ahead() -> None:
    spec = lambdas("return [read.doc];")
    TypeScriptConnector().start_ahead(spec)
    waiting = POOL.take(digest_of(spec), None)
    assert waiting is not None
    POOL.give(digest_of(spec), waiting)

    session = open_session(spec)
    published = invoke(session, [{"id": 1}])
    session.close()

    assert published == [(0, {"id": 1})]
    assert POOL.take(digest_of(spec), None) is waiting
    waiting.end()


def test_start_ahead_leaves_errors_to_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = lambdas("return [read.doc];")

    def missing() -> str:
        raise TaskError("the Deno runtime is not installed")

    monkeypatch.setattr("connectors.derive_typescript.runtime.deno_process.deno", missing)
    TypeScriptConnector().start_ahead(spec)

    assert POOL.take(digest_of(spec), None) is None
    with pytest.raises(TaskError, match="not installed"):
        run(spec, [{"id": 1}])


def test_each_transform_calls_its_method_which_may_be_async() -> None:
    spec = derivation(
        f"{HEAD}export class Derivation extends IDerivation {{\n"
        "    fromCredits(read: any) { return [{ credit: read.doc.id }]; }\n"
        "    async fromDebits(read: any) { await null; return [{ debit: read.doc.id }]; }\n"
        "}\n",
        "from-credits",
        "from_debits",
    )
    session = open_session(spec)
    published = invoke(session, [{"id": 1}, {"id": 2}, {"id": 3}], [1, 0, 1])
    session.close()
    assert published == [(0, {"debit": 1}), (1, {"credit": 2}), (2, {"debit": 3})]


numbers = st.integers(-(2**53), 2**53) | st.floats(-1e15, 1e15)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(60))
@given(st.lists(st.dictionaries(st.text(), anything, max_size=5), min_size=1, max_size=30))
def test_documents_survive_the_round_trip(documents: list[Document]) -> None:
    kept = [{f"_{name}": value for name, value in each.items()} for each in documents]  # no `__proto__`, no numbers
    assert run(lambdas("return [read.doc];"), kept) == list(enumerate(kept))


def test_batches_longer_than_a_frame_keep_their_order() -> None:
    spec = lambdas("return read.doc.id % 1000 === 999 ? [read.doc] : [];")
    published = run(spec, [{"id": number} for number in range(5_500)])
    assert published == [
        (999, {"id": 999}),
        (1999, {"id": 1999}),
        (2999, {"id": 2999}),
        (3999, {"id": 3999}),
        (4999, {"id": 4999}),
    ]


def test_documents_larger_than_pipes_and_frames_pass() -> None:
    spec = lambdas("return [{ id: read.doc.id, size: read.doc.text.length, text: read.doc.text }];")
    published = run(spec, [{"id": number, "text": "é" * 200_000} for number in range(40)])
    assert [(place, each["size"]) for place, each in published] == [(number, 200_000) for number in range(40)]


def test_an_object_changed_after_it_was_returned_stays_as_published() -> None:
    spec = lambdas("this.out.id = read.doc.id; return [this.out];", " out = { id: 0 };")
    assert run(spec, [{"id": 1}, {"id": 2}]) == [(0, {"id": 1}), (1, {"id": 2})]


def test_an_empty_batch_starts_no_process() -> None:
    session = open_session(lambdas("return [];"))
    assert invoke(session, []) == []
    assert session._process is None
    session.close()


def test_present_time_is_the_documents_timestamp() -> None:
    spec = lambdas(
        "return [{ now: Date.now(), date: new Date().toISOString(), text: Date(), old: new Date(0).getTime(),"
        " utc: Date.UTC(1970, 0, 2), same: new Date().constructor === Date, is: new Date() instanceof Date,"
        " at: read.publishedAt, zone: new Date(0).getHours() }];"
    )
    assert run(spec, [{"id": 1}]) == [
        (
            0,
            {
                "now": 1_700_000_000_123,
                "date": "2023-11-14T22:13:20.123Z",
                "text": "Tue Nov 14 2023 22:13:20 GMT+0000 (Coordinated Universal Time)",
                "old": 0,
                "utc": 86_400_000,
                "same": True,
                "is": True,
                "at": "2023-11-14T22:13:20.123456Z",
                "zone": 0,
            },
        )
    ]


def test_temporal_shows_the_documents_clock() -> None:
    spec = lambdas("return [{ now: Temporal.Now.instant().toString(), day: Temporal.Now.plainDateISO().toString() }];")
    assert run(spec, [{"id": 1}]) == [(0, {"now": "2023-11-14T22:13:20.123Z", "day": "2023-11-14"})]


def test_random_values_depend_only_on_the_document_and_its_timestamp() -> None:
    body = "return [{ dice: [Math.random(), Math.random()], uuid: crypto.randomUUID() }];"
    together = run(lambdas(body), [{"id": 1}, {"id": 2}])
    POOL.close()
    alone = run(lambdas(body), [{"id": 2}])
    assert together[1][1] == alone[0][1]
    assert together[0][1] != together[1][1]
    assert all(0 <= each < 1 for each in alone[0][1]["dice"])
    assert len(set(alone[0][1]["dice"])) == 2


def test_console_output_is_logged_with_its_level(capfd: pytest.CaptureFixture[str]) -> None:
    spec = lambdas(
        "console.debug('%s is %d%%', 'it', 5, { deep: [1] }); console.log('seen', read.doc.id); console.info(null);"
        " console.warn('a\\nb'); console.error(new Error('bad').message); console.dir([1]); console.count('c');"
        " console.assert(1 > 2, 'no'); console.timeEnd('t');"
        " Deno.stdout.writeSync(new TextEncoder().encode('raw\\n')); process.stdout.write('node\\n');"
        " process.stderr.write('wrong'); return [read.doc];"
    )
    said: list[tuple[str, str]] = []
    session = open_session(spec, log=lambda level, message: said.append((level, message)))
    assert invoke(session, [{"id": 1}]) == [(0, {"id": 1})]
    session.close()
    assert said == [
        ("debug", "it is 5% { deep: [ 1 ] }"),
        ("info", "seen 1"),
        ("info", "null"),
        ("warn", "a\nb"),
        ("error", "bad"),
        ("info", "[ 1 ]"),
        ("info", "c: 1"),
        ("error", "assertion failed: no"),
        ("info", "raw"),
        ("info", "node"),
        ("error", "wrong"),
    ]
    assert capfd.readouterr() == ("", "")


# Errors of methods, and their messages; test_derive_typescript_json.py has values that JSON cannot hold.
WRONG = [
    ("return [{ id: read.doc.sum.total }];", "TypeError: Cannot read properties of undefined (reading 'total')", 4),
    ("throw new RangeError('too much');", "RangeError: too much", 4),
    ("throw { code: 7 };", "Error: { code: 7 }", 3),
    ("return read.doc;", "TypeError: the method must return an array of documents, and returned object", 3),
    ("", "TypeError: the method must return an array of documents, and returned undefined", 3),
    ("return [7];", "it published a number, which is no document", 3),
    ("return [() => 1];", "it published a function, which is no document", 3),
    ("return [undefined];", "it published undefined, which is no document", 3),
    ("return [Symbol('s')];", "it published a symbol, which is no document", 3),
    ("return [{ toJSON: () => 'text' }];", "it published a string, which is no document", 3),
    ("let a: any = 1; for (let i = 0; i < 99999; i++) a = [a]; return [{ a }];", "nested more than 250 deep", 3),
    ("const all = []; for (;;) all.push(new Uint8Array(1e8));", "RangeError: Array buffer allocation failed", 4),
    ("Deno.exit(3);", "Error: Deno.exit: a derivation's module does not end its process", 4),
    ("process.exit(3);", "Error: process.exit: a derivation's module does not end its process", 4),
    ("close();", "Error: close: a derivation's module does not end its process", 4),
    ("return new Promise(() => {});", "Error: it waits for a promise that nothing will ever resolve", 3),
    ("return fetch('http://127.0.0.1:8123/').then(() => []);", "NotCapable: Requires net access", 4),
    ("return [{ text: Deno.readTextFileSync('/etc/passwd') }];", "NotCapable: Requires read access", 4),
    ("return [{ env: Deno.env.get('HOME') }];", "NotCapable: Requires env access", 4),
    ("new Deno.Command('id').outputSync();", "NotCapable: Requires run access", 4),
    ("Deno.writeTextFileSync('x', 'y');", "NotCapable: Requires write access", 4),
    ("new Worker('data:,');", "ReferenceError: Worker is not defined", 4),
]


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("body", "reason", "line"), WRONG)
def test_an_error_names_the_transform_the_place_and_the_document(body: str, reason: str, line: int) -> None:
    with pytest.raises(LambdaError) as caught:
        run(lambdas(f"if (read.doc.id < 2) return []; {body}"), [{"id": 1}, {"id": 2}, {"id": 3}])
    message = caught.value.message
    assert message.startswith("transform 'fromIn' of 'acme/out' failed: ")
    assert reason in message
    assert message.endswith('; the document was {"id":2}')
    assert caught.value.position is not None
    assert (caught.value.position.file, caught.value.position.line) == ("acme.ts", line)


def test_a_large_document_is_cut_in_the_message() -> None:
    with pytest.raises(LambdaError) as caught:
        run(lambdas("throw new Error('no');"), [{"id": "x" * 10_000}])
    assert caught.value.message.endswith("xxx…")
    assert len(caught.value.message) < 1_000


def test_an_unhandled_rejection_is_an_error_at_its_place() -> None:
    with pytest.raises(LambdaError, match="lost") as caught:
        run(lambdas("Promise.reject(new Error('lost')); return Promise.resolve([]);"), [{"id": 1}, {"id": 2}])
    assert caught.value.position is not None
    assert (caught.value.position.file, caught.value.position.line) == ("acme.ts", 4)
    assert "flowctl-deno" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("export class Other {}", "the module exports no class 'Derivation'"),
        ("export class Derivation {}", "the class 'Derivation' has no method 'fromIn'"),
        ("throw new Error('early')", "Error: early"),
        ("export class Derivation { (", "Unexpected token"),
    ],
)
def test_module_that_cannot_start_reports_the_reason(text: str, reason: str) -> None:
    with pytest.raises(LambdaError) as caught:
        run(derivation(text), [{"id": 1}])
    assert reason in caught.value.message
    assert caught.value.position is not None
    assert caught.value.position.file == "acme.ts"


def test_a_killed_process_is_an_error_and_the_next_session_works() -> None:
    spec = lambdas("return [read.doc];")
    session = open_session(spec)
    invoke(session, [{"id": 1}])
    assert session._process is not None
    os.kill(session._process.pid, signal.SIGKILL)
    with pytest.raises(LostError, match=r"the Deno process of 'acme/out' was killed \(signal 9\)"):
        invoke(session, [{"id": number} for number in range(3_000)])
    session.close()
    assert run(spec, [{"id": 2}]) == [(0, {"id": 2})]


def test_a_process_killed_between_sessions_is_replaced() -> None:
    spec = lambdas("return [read.doc];")
    session = open_session(spec)
    invoke(session, [{"id": 1}])
    process = session._process
    assert process is not None
    session.close()
    os.kill(process.pid, signal.SIGKILL)
    assert run(spec, [{"id": 2}]) == [(0, {"id": 2})]


def test_a_session_reuses_the_process_and_not_the_instance() -> None:
    spec = lambdas("return [{ count: ++this.count }];", " count = 0;")
    pids = []
    for _ in range(2):
        session = open_session(spec)
        assert invoke(session, [{"id": 1}, {"id": 2}]) == [(0, {"count": 1}), (1, {"count": 2})]
        assert session._process is not None
        pids.append(session._process.pid)
        session.close()
    assert pids[0] == pids[1]


FORK = """\
import os, sys
sys.path.insert(0, sys.argv[1])
from typescript_derivation import invoke, lambdas, open_session
from connectors.module_kit.process import POOL
from connectors.derive_typescript.runtime.deno_process import DenoProcess
from connectors.derive_typescript.runtime.project import digest_of
spec = lambdas("return [read.doc];")
def used():
    session = open_session(spec)
    assert invoke(session, [{"id": 1}]) == [(0, {"id": 1})]
    pid = session._process.pid
    session.close()
    return pid
parent = used()
child = os.fork()
if child == 0:
    other = used()
    POOL.close()
    os._exit(0 if other != parent else 1)
assert os.waitpid(child, 0)[1] == 0
assert used() == parent
"""


def test_a_fork_starts_a_process_of_its_own() -> None:
    """Spark forks its Python workers."""
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(Path(__file__).parent)]
    assert subprocess.run(command, check=False, timeout=PATIENCE_SECONDS).returncode == 0


def test_thread_that_sends_to_a_closed_process_never_writes_to_the_next_process() -> None:
    """A descriptor that is closed under it would be the next process's, by number."""
    process = DenoProcess(spec := lambdas("return [read.doc];"), digest_of(spec))
    os.kill(process.pid, signal.SIGSTOP)  # so that the pipe is full, and the thread waits
    refused: list[OSError] = []

    def send() -> None:
        try:
            while True:
                process.send(b"x" * (1 << 16))
        except OSError as error:
            refused.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(0.3)
    assert sender.is_alive()
    process.end()
    pipes = [os.pipe() for _ in range(8)]  # take the numbers that are free by now
    try:
        sender.join(PATIENCE_SECONDS)
        assert refused
        with pytest.raises(BrokenPipeError):
            process.send(b"x")
        assert select.select([read for read, _ in pipes], [], [], 0)[0] == []
    finally:
        for read, write in pipes:
            os.close(read)
            os.close(write)


def test_partly_read_batch_ends_the_process() -> None:
    spec = lambdas("return [read.doc];")
    session = open_session(spec)
    documents = [{"id": number} for number in range(5_000)]
    ones = [CLOCK] * 5_000
    unread = session.invoke(ReadBatch([0] * 5_000, ones, ones, documents))
    assert next(unread) == (0, {"id": 0})
    process = session._process
    assert process is not None
    session.close()
    assert not process.alive
    assert run(spec, [{"id": 7}]) == [(0, {"id": 7})]
