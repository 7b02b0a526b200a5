"""The bench of `flowctl check`: a thousand collections and a thousand derivations in two hundred files.

Each file holds five collections, five SQLite derivations with a table, a keyed shuffle and two statements, and a test;
schemas are inline, shared, or in files of their own. The check runs as a person runs it: a new process each time.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CEILING = 5.0
PER_FILE = 5

SHARED = """\
$defs:
  party: {type: object, properties: {name: {type: string}, country: {type: string, default: NL}}, required: [name]}
type: object
required: [id, account]
properties:
  id: {type: integer}
  account: {type: string}
  amount: {type: number}
  outcome: {enum: [approve, reject]}
  from: {$ref: '#/$defs/party'}
  to: {$ref: '#/$defs/party'}
"""
COLLECTION = """\
  bench/{file}/source-{number}:
    schema: ../shared.schema.yaml
    key: [/id]
    projections:
      outcome: {{location: /outcome, partition: true}}
      sender: /from/name
"""
DERIVATION = """\
  bench/{file}/derived-{number}:
    schema:
      type: object
      required: [account]
      reduce: {{strategy: merge}}
      properties:
        account: {{type: string}}
        total: {{type: number, default: 0, reduce: {{strategy: sum}}}}
    key: [/account]
    derive:
      using:
        sqlite:
          migrations:
            - CREATE TABLE seen (account TEXT PRIMARY KEY NOT NULL, at TEXT);
      transforms:
        - name: first
          source: {{name: bench/{file}/source-{number}, partitions: {{include: {{outcome: [approve]}}}}}}
          shuffle: {{key: [/account]}}
          lambda: |
            INSERT INTO seen VALUES ($account, $flow_published_at) ON CONFLICT DO NOTHING;
            SELECT $account, $amount AS total;
        - name: second
          source: bench/{other}/source-{number}
          shuffle: {{key: [/account]}}
          lambda: SELECT $account, -$amount AS total WHERE $from$name <> 'bank';
"""
TEST = """\
tests:
  bench/{file}/test:
    - ingest:
        collection: bench/{file}/source-0
        documents:
          - {{id: 1, account: a, amount: 1.5, outcome: approve}}
          - {{id: 2, account: b, amount: 2.5, outcome: reject}}
    - verify:
        collection: bench/{file}/derived-0
        documents:
          - {{account: a, total: 1.5}}
          - {{account: b, total: 2.5}}
"""


def generate(folder: Path, files: int) -> Path:
    """Write a catalog of `files` files; return its root."""
    (folder / "shared.schema.yaml").write_text(SHARED)
    for file in range(files):
        path = folder / f"part-{file}" / "flow.yaml"
        path.parent.mkdir()
        numbers = range(PER_FILE)
        collections = [COLLECTION.format(file=file, number=number) for number in numbers]
        derivations = [DERIVATION.format(file=file, other=(file + 1) % files, number=number) for number in numbers]
        path.write_text("".join(["collections:\n", *collections, *derivations, TEST.format(file=file)]))
    root = folder / "flow.yaml"
    root.write_text("import:\n" + "".join(f"  - part-{file}/flow.yaml\n" for file in range(files)))
    return root


def measure(root: Path) -> float:
    """Return the seconds of one check, from the start of the process to its end."""
    command = [sys.executable, "-c", "from derive.cli.main import main; main()", "check", "--source", str(root)]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = generate(Path(folder), options.files)
        seconds = [measure(root) for _ in range(options.rounds)]
    count = options.files * PER_FILE
    print(f"{count:,} collections and {count:,} derivations in {options.files} files")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = (used.ru_utime + used.ru_stime) / len(seconds)
    print(
        f"flowctl check: {min(seconds):.2f} s best, {max(seconds):.2f} s worst of {len(seconds)}, ceiling {CEILING} s"
    )
    print(f"processor time: {processor:.2f} s a check")
    if min(seconds) > CEILING:
        raise SystemExit("too slow")


if __name__ == "__main__":
    main()
