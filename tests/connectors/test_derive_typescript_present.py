"""Time, chance and timers are the document's, so that processing it again gives the same (law L1)."""

from __future__ import annotations

import pytest
from typescript_derivation import CLOCK, HEAD, derivation, lambdas, open_session, run

from connectors.module_kit.process import POOL
from derive.errors import LambdaError
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import DerivationSpec

pytestmark = [pytest.mark.deno, pytest.mark.usefixtures("empty_pool")]


# An expression, and its value for a document at 2023-11-14T22:13:20.123456Z.
PRESENT = [
    ("new Intl.DateTimeFormat('en-GB', { dateStyle: 'short', timeStyle: 'medium' }).format()", "14/11/2023, 22:13:20"),
    ("new Intl.DateTimeFormat('en-GB', { dateStyle: 'short' }).format(0)", "01/01/1970"),
    ("new Intl.DateTimeFormat('en', { year: 'numeric' }).formatToParts().map((each) => each.value)", ["2023"]),
    ("new Intl.DateTimeFormat().resolvedOptions().timeZone", "UTC"),
    ("new Date().toLocaleString()", "11/14/2023, 10:13:20 PM"),
    ("[performance.now(), performance.timeOrigin, performance.getEntries()]", [1_700_000_000_123, 0, []]),
    ("new Event('x').timeStamp", 1_700_000_000_123),
    ("process.hrtime()", [1_700_000_000, 123_000_000]),
    ("String(process.hrtime.bigint())", "1700000000123000000"),
    ("process.uptime()", 0),
    ("navigator.hardwareConcurrency", 1),
    ("[typeof Worker, typeof localStorage, typeof caches, typeof BroadcastChannel]", ["undefined"] * 4),
    ("[typeof (Deno as any).pid, typeof (Deno as any).memoryUsage]", ["undefined"] * 2),
    ("new WeakRef({ kept: 1 }).deref()", {"kept": 1}),
    ("new Date(2024, 0, 1).toISOString()", "2024-01-01T00:00:00.000Z"),
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("expression", "value"), PRESENT)
def test_modules_cannot_observe_time_or_machine(expression: str, value: object) -> None:
    assert run(lambdas(f"return [{{ value: {expression} }}];"), [{"id": 1}]) == [(0, {"value": value})]


# What asks for chance.
CHANCE = [
    "Math.random()",
    "crypto.randomUUID()",
    "[...crypto.getRandomValues(new Uint32Array(3))]",
    "nodeCrypto.randomBytes(8).toString('hex')",
    "nodeCrypto.randomUUID()",
    "nodeCrypto.randomInt(1e9)",
    "[...nodeCrypto.randomFillSync(new Uint8Array(9), 1)]",
]


@pytest.mark.parametrize("expression", CHANCE)
def test_random_values_depend_on_the_document(expression: str) -> None:
    text = (
        f"{HEAD}import nodeCrypto from 'node:crypto';\nexport class Derivation extends IDerivation {{\n"
        f"    fromIn(): any {{ return [{{ value: {expression} }}]; }}\n}}\n"
    )
    together = run(derivation(text), [{"id": 1}, {"id": 2}])
    POOL.close()
    alone = run(derivation(text), [{"id": 2}])
    assert together[1][1] == alone[0][1]
    assert together[0][1] != together[1][1]


# Cryptography: what is the same each time, and what is not.
HMAC = "importKey('raw', new Uint8Array(9), { name: 'HMAC', hash: 'SHA-1' }, false, ['sign'])"
SIGNED = "crypto.subtle.sign('HMAC', key, new Uint8Array(1))"
SUBTLE = [
    ("digest('SHA-256', new Uint8Array(1)).then((it) => new Uint8Array(it).length)", 32),
    (f"{HMAC}.then((key) => {SIGNED}).then((it) => it.byteLength)", 20),
]


@pytest.mark.parametrize(("call", "value"), SUBTLE)
def test_deterministic_cryptography_is_available(call: str, value: int) -> None:
    assert run(lambdas(f"return crypto.subtle.{call}.then((value) => [{{ value }}]);"), [{"id": 1}]) == [
        (0, {"value": value})
    ]


@pytest.mark.parametrize(
    "call", ["generateKey({ name: 'AES-GCM', length: 128 }, true, [])", "sign({ name: 'ECDSA' }, 1 as any, 1 as any)"]
)
def test_random_cryptography_is_refused(call: str) -> None:
    with pytest.raises(LambdaError, match="gives something else each time"):
        run(lambdas(f"return (crypto.subtle as any).{call}.then(() => []);"), [{"id": 1}])


TIMERS = """
    const order: string[] = [];
    const stop = setInterval(() => order.push('every'), 20);
    setTimeout((word: string) => order.push(word), 50_000, 'late');
    clearTimeout(setTimeout(() => order.push('never'), 1));
    setTimeout(() => order.push('same'), 10);
    setImmediate(() => order.push('now'));
    await new Promise((done) => setTimeout(done, 45));
    clearInterval(stop);
    await new Promise((done) => setTimeout(done, 60_000));
    return [{ order, now: Date.now() }];
"""


def test_timers_fire_in_order_and_wait_for_nothing() -> None:
    text = f"{HEAD}export class Derivation extends IDerivation {{ async fromIn(): Promise<any> {{ {TIMERS} }} }}"
    assert run(derivation(text), [{"id": 1}]) == [
        (0, {"order": ["now", "same", "every", "every", "late"], "now": 1_700_000_000_123})
    ]


def test_timers_end_with_their_document() -> None:
    spec = lambdas("setTimeout(() => this.fired++, 0); return Promise.resolve([{ fired: this.fired }]);", " fired = 0;")
    assert {each["fired"] for _, each in run(spec, [{"id": number} for number in range(300)])} == {0}


def test_random_values_are_refused_in_flush() -> None:
    text = f"{HEAD}export class Derivation extends IDerivation {{ fromIn() {{ return []; }}\n flush(): any {{ return [{{ id: Math.random() }}]; }} }}"
    spec = derivation(text)
    with pytest.raises(LambdaError) as caught:
        run_flush(spec)
    assert caught.value.message == (
        "flush() of 'acme/out' failed: Error: there is no chance in flush(): it is seeded by a document, and a tick has many"
    )
    assert caught.value.position is not None
    assert (caught.value.position.file, caught.value.position.line) == ("acme.ts", 3)


def run_flush(spec: DerivationSpec) -> None:
    session = open_session(spec)
    try:
        assert session.flushes
        list(session.invoke(ReadBatch([0, 1], [CLOCK, CLOCK], [CLOCK, CLOCK], [{"id": 1}, {}])))
    finally:
        session.close()


def test_constructor_sees_no_time_and_repeated_random_values() -> None:
    spec = lambdas("return [this.made];", " made = { now: Date.now(), dice: Math.random() };")
    first = run(spec, [{"id": 1}])
    again = run(spec, [{"id": 2}])
    assert first == again
    assert first[0][1]["now"] == 0
