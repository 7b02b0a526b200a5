"""The bench of TypeScript: a derivation that passes documents through, beside the same in SQL, and beside plain Deno.

End to end is a whole transaction of the shard runtime in one process, from segments to segments, without Spark, whose
equal cost would hide the difference. Deno alone compares our harness, given frames, with a hand-written program that
reads lines, parses each, and writes it, a chunk at a time. Rounds of both alternate, and the best of each counts. The
exit code is 1 if a ratio is below its floor.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from connectors.derive_typescript.runtime.command import deno, environment
from connectors.derive_typescript.runtime.deno_process import command_of
from connectors.derive_typescript.runtime.project import digest_of, project_folder
from connectors.module_kit.process import FRAME_DOCUMENTS, Wire, frame_of
from derive.catalog import load
from derive.engine.executor import InProcessExecutor
from derive.engine.task_reconciler import open_run
from derive.protocol.derive import ReadBatch
from derive.protocol.specs import CatalogSpec, DerivationSpec
from derive.storage.ingest import Ingestion
from derive.storage.store import Store

END_TO_END, ALONE = 0.5, 0.5

_BATCH = 10_000
"""Number of documents in a batch of the runtime."""

CATALOG = """
collections:
  b/in: &transfers
    schema:
      type: object
      required: [id, sender, recipient, amount, at]
      properties:
        id: {type: integer}
        sender: {type: string}
        recipient: {type: string}
        amount: {type: number}
        at: {type: string}
    key: [/id]
  b/sql:
    <<: *transfers
    derive:
      using: {sqlite: {}}
      transforms:
        - {name: pass, source: b/in, shuffle: any, lambda: "SELECT $id, $sender, $recipient, $amount, $at;"}
  b/typescript:
    <<: *transfers
    derive:
      using: {typescript: {module: pass.ts}}
      transforms: [{name: pass, source: b/in, shuffle: any}]
"""
MODULE = """
import { Document, IDerivation, SourcePass } from 'flow/b/typescript.ts';

export class Derivation extends IDerivation {
    pass(read: { doc: SourcePass }): Document[] {
        return [read.doc];
    }
}
"""
PLAIN = """
const decoder = new TextDecoder();
const encoder = new TextEncoder();
let rest = '';
for await (const chunk of Deno.stdin.readable) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split('\\n');
    rest = lines.pop()!;
    let text = '';
    for (const line of lines) {
        text += JSON.stringify(JSON.parse(line)) + '\\n';
    }
    const bytes = encoder.encode(text);
    for (let done = 0; done < bytes.length;) {
        done += Deno.stdout.writeSync(bytes.subarray(done));
    }
}
"""


def transfers(count: int, senders: int = 997) -> list[dict[str, Any]]:
    return [
        {
            "id": number,
            "sender": f"account-{number % senders}",
            "recipient": f"account-{number % 991}",
            "amount": number % 1_000 / 8,
            "at": f"2024-01-01T00:{number // 600_000:02}:{number // 10_000 % 60:02}.{number % 10_000:04}Z",
        }
        for number in range(count)
    ]


def end_to_end(catalog: CatalogSpec, data: Path, task: str, *, durable: bool = False) -> float:
    """Return the seconds of a run of one derivation over everything."""
    store = Store(data, durable=durable)
    run = open_run(catalog, store, InProcessExecutor(), tasks=[task])
    begun = time.perf_counter()
    run.step()
    seconds = time.perf_counter() - begun
    failed = run.tasks[task].error
    run.close()
    store.close()
    if failed:
        raise failed
    return seconds


def piped(command: list[str], source: Path, folder: Path, environ: dict[str, str]) -> float:
    """Return the seconds of a program that copies a file."""
    with source.open("rb") as stdin, (folder / "output").open("wb") as stdout:
        begun = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environ, stdin=stdin, stdout=stdout, check=True)
        return time.perf_counter() - begun


def frames(documents: list[dict[str, Any]]) -> list[bytes]:
    lines = [orjson.dumps({"open": {"state": {}, "forget": True}})]
    for start in range(0, len(documents), _BATCH):
        part = documents[start : start + _BATCH]
        clocks = [1_704_067_200_000_000] * len(part)
        batch = ReadBatch([0] * len(part), clocks, clocks, part)
        lines += [
            frame_of(batch, slice(at, at + FRAME_DOCUMENTS), as_columns=True)
            for at in range(0, len(part), FRAME_DOCUMENTS)
        ]
    return lines


def best(rounds: int, tasks: dict[str, Callable[[], float]]) -> dict[str, float]:
    seconds = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            seconds[name] = min(seconds[name], task())
    return seconds


def measure_end_to_end(catalog: CatalogSpec, folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Return the best seconds of each derivation."""
    data = folder / "data"
    store = Store(data, durable=False)
    lines = [orjson.dumps(document) for document in transfers(count)]
    Ingestion(store, catalog.collections["b/in"]).load("bench", enumerate(lines, start=1))
    store.close()
    fresh = iter(range(2 * rounds))

    def timed(task: str) -> float:
        copy = folder / f"data-{next(fresh)}"
        subprocess.run(["cp", "-r", data, copy], check=True)
        return end_to_end(catalog, copy, task)

    time.sleep(1.1)  # the tick of the last document ends
    return best(rounds, {"SQL": lambda: timed("b/sql"), "TypeScript": lambda: timed("b/typescript")})


def measure_alone(spec: DerivationSpec, folder: Path, count: int, rounds: int) -> dict[str, float]:
    """Return the best seconds of our harness, and of a plain program."""
    documents = transfers(count)
    lines, framed = folder / "lines", folder / "frames"
    lines.write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
    wire = Wire(0)  # only its frames are needed
    framed.write_bytes(wire.token + b"".join(wire.head(len(text)) + text for text in frames(documents)))
    (folder / "plain.ts").write_text(PLAIN)
    project = project_folder(spec, digest_of(spec))
    environ = environment(spec)
    return best(
        rounds,
        {
            "plain Deno": lambda: piped([deno(), "run", "--no-check", "plain.ts"], lines, folder, environ),
            "harness": lambda: piped(command_of(spec, project), framed, folder, environ),
        },
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flowctl-bench-") as name:
        folder = Path(name)
        (folder / "flow.yaml").write_text(CATALOG)
        (folder / "pass.ts").write_text(MODULE)
        catalog = load(folder / "flow.yaml")
        transactions = measure_end_to_end(catalog, folder, options.documents, options.rounds)
        alone = measure_alone(catalog.derivations["b/typescript"], folder, options.documents, options.rounds)
    slow = False
    print(f"{'pass-through':14}{'way':12}{'documents/s':>14}{'ratio':>8}{'floor':>8}")
    for what, seconds, floor in (("end to end", transactions, END_TO_END), ("Deno alone", alone, ALONE)):
        (unit, base), (way, ours) = seconds.items()
        ratio = base / ours
        slow = slow or ratio < floor
        print(f"{what:14}{unit:12}{options.documents / base:14,.0f}")
        print(f"{what:14}{way:12}{options.documents / ours:14,.0f}{ratio:8.2f}{floor:8.2f}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
