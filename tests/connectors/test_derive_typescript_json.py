"""Each result of JSON.stringify is published right, or is an error with its place and its document."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import apsw
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from typescript_derivation import CLOCK, HEAD, derivation, invoke, lambdas, open_session, run

from connectors.derive_typescript import TypeScriptConnector
from connectors.module_kit.published import fault_in
from derive.document.pointer import JSON
from derive.errors import LambdaError
from derive.protocol.derive import PublishedColumns, ReadBatch
from derive.protocol.specs import DerivationSpec

pytestmark = pytest.mark.deno

HALF = "holds half of a character (\\ud83d), which UTF-8 text cannot hold"
CANNOT = "which JSON cannot hold"

# Refused: the expression of a document, and the error.
REFUSED = [
    ("{ id: 1, s: '😀'.slice(0, 1) }", f"/s of the published document {HALF}"),
    ("{ id: 1, s: ['a', { b: 'x' + '😀'.slice(0, 1) }] }", f"/s/1/b of the published document {HALF}"),
    ("{ id: 1, ['😀'.slice(0, 1)]: 2 }", "is a name with half of a character (\\ud83d), which UTF-8 text cannot hold"),
    ("{ id: 1, o: { ['x' + '😀'.slice(1)]: 2 } }", "is a name with half of a character (\\ude00)"),
    ("{ id: 1, s: JSON.rawJSON('\"\\\\udc00\"') }", "/s of the published document holds half of a character (\\udc00)"),
    ("{ id: 1, d: new Date(NaN) }", f"/d of the published document is an invalid Date, {CANNOT}"),
    ("{ id: 1, d: [new Date('never')] }", f"/d/0 of the published document is an invalid Date, {CANNOT}"),
    ("{ id: 1, n: NaN }", f"/n of the published document is NaN, {CANNOT}"),
    ("{ id: 1, n: -Infinity }", f"/n of the published document is -Infinity, {CANNOT}"),
    ("{ id: 1, n: { toJSON: () => NaN } }", f"/n of the published document is NaN, {CANNOT}"),
    ("{ id: 1, n: { toJSON: () => ({ m: [0 / 0] }) } }", f"/n/m/0 of the published document is NaN, {CANNOT}"),
    ("{ id: 1, n: { toJSON() {} } }", f"/n of the published document is undefined, as its toJSON says, {CANNOT}"),
    ("{ id: 1, n: { toJSON: () => () => 1 } }", f"/n of the published document is a function, {CANNOT}"),
    ("{ id: 1, n: new (class { toJSON() { return NaN; } })() }", f"/n of the published document is NaN, {CANNOT}"),
    ("{ id: 1, n: JSON.rawJSON('1e999') }", "/n of the published document is a number beyond a double's range"),
    ("{ id: 1, n: JSON.rawJSON('9'.repeat(5000)) }", "/n of the published document is an integer of 5000 digits; 4300 at most"),
    ("{ id: 1, n: 1n }", "Do not know how to serialize a BigInt"),
    ("{ id: 1, n: Object(1n) }", "Do not know how to serialize a BigInt"),
    ("{ id: 1, n: new Number(NaN) }", f"/n of the published document is a Number, {CANNOT}"),
    ("{ id: 1, n: Symbol() }", f"/n of the published document is a symbol, {CANNOT}"),
    ("{ id: 1, n: [undefined] }", f"/n/0 of the published document is undefined, {CANNOT}"),
    ("{ id: 1, n: [, 1] }", f"/n/0 of the published document is undefined, {CANNOT}"),
    ("{ id: 1, n: new Set([1]) }", f"/n of the published document is a Set, {CANNOT}"),
    ("{ id: 1, n: /x/ }", f"/n of the published document is a RegExp, {CANNOT}"),
    ("{ id: 1, n: Promise.resolve(1) }", f"/n of the published document is a Promise, {CANNOT}"),
    ("(() => { const a: any = { id: 1 }; a.a = a; return a; })()", "Converting circular structure to JSON"),
    ("{ id: 1, s: 'x'.repeat(70_000_000) }", "it published a document of 7000"),
    ("{ id: 1, s: 'x'.repeat(1 << 28) + 'x'.repeat(1 << 28) + 'x'.repeat(1 << 28) }", "Invalid string length"),
    ("(() => { let a: any = 1; for (let n = 0; n < 300; n++) a = [a]; return { id: 1, a }; })()", "nested more than 250 deep"),
    ("new String('x')", "it published a string, which is no document"),
    ("null", "it published null, which is no document"),
]  # fmt: skip


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("document", "message"), REFUSED)
def test_values_without_json_form_are_refused_with_their_document(document: str, message: str) -> None:
    spec = lambdas(f"return read.doc.id === 2 ? [{{ id: 7 }}, {document}] : [{{ id: 1 }}];")
    failures = []
    for as_columns in (False, True):
        session = open_session(spec)
        with pytest.raises(LambdaError) as caught:
            read = ReadBatch([0] * 3, [CLOCK] * 3, [CLOCK] * 3, [{"id": 1}, {"id": 2}, {"id": 3}])
            list((session.invoke_columns(read) or ()) if as_columns else session.invoke(read))
        session.close()
        failures.append(caught.value)
    for failure in failures:
        assert message in failure.message
        assert failure.message.startswith("transform 'fromIn' of 'acme/out' failed: ")
        assert failure.message.endswith('; the document was {"id":2}')
        assert failure.position is not None
        assert failure.position.file == "acme.ts"


def test_a_half_of_a_character_is_found_in_columns() -> None:
    """All documents have the same properties here, so they come as columns."""
    spec = lambdas("return [{ id: read.doc.id, s: read.doc.id === 2 ? '😀'.slice(0, 1) : 'x' }];")
    session = open_session(spec)
    read = ReadBatch([0] * 3, [CLOCK] * 3, [CLOCK] * 3, [{"id": 1}, {"id": 2}, {"id": 3}])
    with pytest.raises(LambdaError) as caught:
        list(session.invoke_columns(read) or ())
    session.close()
    assert f'/s of the published document {HALF}; the document was {{"id":2}}' in caught.value.message


# Taken: the expression of a value, and the published value.
TAKEN: list[tuple[str, JSON]] = [
    ("'😀'", "😀"),
    ("'\\\\ud83d'", "\\ud83d"),
    ("'a\\0b'", "a\0b"),
    ("new Date(0)", "1970-01-01T00:00:00.000Z"),
    ("{ toJSON: (name: string) => `at ${name}` }", "at value"),
    ("{ toJSON: () => null }", None),
    ("{ a: undefined, b: 1 }", {"b": 1}),
    ("-0", 0),
    ("1e21", 1e21),
    ("5e-324", 5e-324),
    ("JSON.rawJSON('123456789012345678901234567890')", 123456789012345678901234567890),
    ('JSON.parse(\'{"__proto__": {"x": 1}}\')', {"__proto__": {"x": 1}}),
    ("{ ['__proto__']: 1 }", {"__proto__": 1}),
    ("Object.create(null, { a: { value: 1, enumerable: true } })", {"a": 1}),
    ("{ constructor: 1, hasOwnProperty: 2, toString: 3 }", {"constructor": 1, "hasOwnProperty": 2, "toString": 3}),
    ("Object.create({ inherited: 1 })", {}),
    ("{ '': { ' ': 1 } }", {"": {" ": 1}}),
    ("{ 10: 'b', 9: 'a' }", {"9": "a", "10": "b"}),
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("expression", "value"), TAKEN)
def test_values_with_json_form_are_published(expression: str, value: JSON) -> None:
    spec = lambdas(f"return [{{ id: 1, value: {expression} }}];")
    assert run(spec, [{"id": 1}]) == [(0, {"id": 1, "value": value})]
    session = open_session(spec)
    [published] = list(session.invoke_columns(ReadBatch([0], [CLOCK], [CLOCK], [{"id": 1}])) or [])
    session.close()
    assert isinstance(published, PublishedColumns) or published.documents == [{"id": 1, "value": value}]
    if isinstance(published, PublishedColumns):
        assert published.columns.documents() == [{"id": 1, "value": value}]


def test_names_with_equal_json_text_are_one_property() -> None:
    """An object has a name once, so no document has two."""
    spec = lambdas("const d: any = { id: 1, 1: 'a' }; d['1'] = 'b'; return [d];")
    assert run(spec, [{"id": 1}]) == [(0, {"id": 1, "1": "b"})]


STATES = [
    ("'😀'.slice(0, 1)", f"/s of the state {HALF}"),
    ("{ ['😀'.slice(0, 1)]: 1 }", "is a name with half of a character"),
    ("new Date(NaN)", f"/s of the state is an invalid Date, {CANNOT}"),
    ("{ toJSON: () => NaN }", f"/s of the state is NaN, {CANNOT}"),
    ("JSON.rawJSON('1e999')", "/s of the state is a number beyond a double's range"),
    ("1n", "Do not know how to serialize a BigInt"),
]


@pytest.mark.parametrize(("expression", "message"), STATES)
def test_state_without_json_form_is_refused(expression: str, message: str) -> None:
    members = f" override startCommit(): any {{ return {{ state: {{ updated: {{ s: {expression} }} }} }}; }}"
    session = TypeScriptConnector().open(lambdas("return [];", members), apsw.Connection(":memory:"), lambda *_: None)
    session._state.place = "here"
    invoke(session, [{"id": 1}])
    with pytest.raises(LambdaError) as caught:
        session.prepare_commit()
    session.close()
    assert message in caught.value.message
    assert caught.value.message.startswith("'startCommit' of 'acme/out' failed: ")
    assert caught.value.position is not None


@pytest.mark.parametrize(("document", "message"), REFUSED[:6])
def test_flush_result_without_json_form_is_refused(document: str, message: str) -> None:
    spec = lambdas("return [];", f" override flush(): any[] {{ return [{document}]; }}")
    session = open_session(spec)
    with pytest.raises(LambdaError) as caught:
        invoke(session, [{"id": 1}, {}], [0, 1])
    session.close()
    assert caught.value.message.startswith("flush() of 'acme/out' failed: ")
    assert message in caught.value.message


@pytest.mark.parametrize("thrown", ["new Error('x' + '😀'.slice(0, 1))", "'😀'.slice(0, 1)", "{ a: '😀'.slice(1) }"])
def test_an_error_with_half_a_character_is_reported(thrown: str) -> None:
    with pytest.raises(LambdaError, match=r"transform 'fromIn' of 'acme/out' failed: .*the document was"):
        run(lambdas(f"throw {thrown};"), [{"id": 1}])


def test_half_a_character_is_logged() -> None:
    reporting: list[str] = []
    session = open_session(
        lambdas("console.log('x', '😀'.slice(0, 1)); return [];"), lambda _, text: reporting.append(text)
    )
    invoke(session, [{"id": 1}])
    session.close()
    assert reporting == ["x \ufffd"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec=None), max_size=3), inner),
)


@given(VALUES)
@settings(max_examples=examples(300))
def test_fault_has_the_path_of_an_invalid_json_value(value: Any) -> None:
    """A fault is found if and only if a text holds half a character or a number is none."""
    text = json.dumps(value).encode()
    fault = fault_in(text)
    assert (fault is not None) == _is_faulty(value)


def _is_faulty(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, list):
        return any(map(_is_faulty, value))
    return isinstance(value, dict) and any(_is_faulty(name) or _is_faulty(member) for name, member in value.items())


def chance(body: str, documents: list[dict[str, JSON]], clocks: list[int], transforms: list[int]) -> list[JSON]:
    text = f"{HEAD}export class Derivation extends IDerivation {{\n    fromIn(read: any) {{ {body} }}\n    fromOther(read: any) {{ {body} }}\n}}\n"
    session = open_session(two(text))
    read = ReadBatch(transforms, clocks, clocks, documents)
    published = [document["value"] for _, document in session.invoke(read)]
    session.close()
    return published


def two(text: str) -> DerivationSpec:
    """A derivation of two transforms."""
    from dataclasses import replace

    spec = derivation(text)
    first = spec.transforms[0]
    other = replace(first, input=replace(first.input, index=1, name="fromOther"))
    return replace(spec, transforms=(first, other))


UUID = "return [{ id: 1, value: crypto.randomUUID() }];"


def test_ids_differ_by_transform_by_microsecond_and_by_document() -> None:
    same = [{"id": 1}] * 4
    ids = chance(UUID, same, [CLOCK, CLOCK + 1, CLOCK + 2, CLOCK], [0, 0, 0, 1])
    assert len(set(ids)) == 4
    five = [{"id": number} for number in range(5)]
    assert len(set(chance(UUID, five * 2, [CLOCK] * 10, [0] * 5 + [1] * 5))) == 10


def test_random_values_repeat_for_a_document() -> None:
    """Each document's chance is the same alone and behind others, however much these asked for."""
    body = "const n: number[] = []; for (let i = 0; i < read.doc.id; i++) n.push(Math.random(), crypto.getRandomValues(new Uint32Array(1))[0]); return [{ id: 1, value: n.concat(crypto.getRandomValues(new Uint8Array(3)) as any).join() }];"
    documents: list[dict[str, JSON]] = [{"id": number} for number in (5, 0, 3, 1)]
    together = chance(body, documents, [CLOCK] * 4, [0] * 4)
    alone = [chance(body, [document], [CLOCK], [0])[0] for document in documents]
    assert together == alone


@pytest.mark.torture  # test_random_values_are_distributed_evenly
def test_a_hundred_thousand_ids_are_all_different() -> None:
    count = 100_000
    ids = chance(UUID, [{"id": number} for number in range(count)], [CLOCK] * count, [0] * count)
    assert len(set(ids)) == count


def test_random_values_are_distributed_evenly() -> None:
    """First numbers of 20,000 documents fill 16 ranges evenly; bits of identifiers are ones as often as zeros."""
    count = 20_000
    documents: list[dict[str, JSON]] = [{"id": number} for number in range(count)]
    firsts = chance("return [{ id: 1, value: Math.random() }];", documents, [CLOCK] * count, [0] * count)
    shares = [0] * 16
    for first in firsts:
        assert isinstance(first, float)
        shares[int(first * 16)] += 1
    assert sum((share - count / 16) ** 2 / (count / 16) for share in shares) < 45  # chi-square, p of 1 in 13,000
    ids = chance(UUID, documents, [CLOCK] * count, [0] * count)
    numbers = [int(str(each).replace("-", ""), 16) for each in ids]
    for bit in range(128):
        ones = sum(number >> bit & 1 for number in numbers)
        is_fixed = 76 <= bit < 80 or 62 <= bit < 64  # version and variant
        assert is_fixed or abs(ones - count / 2) < 5 * math.sqrt(count) / 2


@pytest.mark.parametrize("document", [{"id": 1}, {"id": 1, "s": "x" * 17}, {"id": 1, "s": "ä😀" * 40}])
def test_random_state_is_a_digest_of_the_document(document: dict[str, JSON]) -> None:
    """The first bytes are xoshiro128** over SHA-256 of the transform, the clock and the document, as Python has it."""
    text = f"1 {CLOCK} {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}"
    digest = hashlib.sha256(text.encode("utf-16-be")).digest()
    state = [int.from_bytes(digest[place : place + 4], "big") for place in range(0, 16, 4)]
    expected = b"".join(_next(state).to_bytes(4, "little") for _ in range(6))
    body = "return [{ id: 1, value: [...crypto.getRandomValues(new Uint8Array(24))].join() }];"
    assert chance(body, [document], [CLOCK], [1]) == [",".join(map(str, expected))]


def _next(state: list[int]) -> int:
    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> (32 - bits)) & 0xFFFFFFFF

    value = rotated(state[1] * 5 & 0xFFFFFFFF, 7) * 9 & 0xFFFFFFFF
    shifted = state[1] << 9 & 0xFFFFFFFF
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = rotated(state[3], 11)
    return value
