"""The bench of cycles: two derivations that read one another, over events an hour apart.

Each event takes five small steps: the first derivation reads the event, the second answers a tick later, the first asks
again another tick later, and so on; each step waits for the one before. Measured is a whole cold `flowctl run
--until-idle`. The exit code is 1 if the run takes longer than its ceiling.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import orjson

from bench.process import flowctl, run
from derive.document.clock import format_rfc3339

CEILING = 20.0
"""Maximum seconds for 6,000 events."""

BEGIN, HOUR = 1_600_000_000_000_000, 3_600_000_000

CATALOG = """\
collections:
  bench/events:
    schema: &event
      type: object
      required: [id, left]
      properties: { id: { type: integer }, left: { type: integer }, at: { type: string } }
    key: [/id]
  bench/asked:
    schema: *event
    key: [/id]
    derive:
      using: { sqlite: { migrations: ["CREATE TABLE asked (id INTEGER PRIMARY KEY, times INTEGER NOT NULL);"] } }
      transforms:
        - name: events
          source: bench/events
          shuffle: { key: [/id] }
          lambda: INSERT INTO asked VALUES ($id, 1) RETURNING id, $left AS left;
        - name: answers
          source: bench/answered
          shuffle: { key: [/id] }
          lambda: UPDATE asked SET times = times + 1 WHERE id = $id AND $left > 0 RETURNING id, $left - 1 AS left;
  bench/answered:
    schema: *event
    key: [/id]
    derive:
      using: { sqlite: {} }
      transforms: [{ name: asked, source: bench/asked, shuffle: any, lambda: "SELECT $id, $left;" }]
"""


def main() -> int:
    """Run the bench; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=6_000)
    events = parser.parse_args().events
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "flow.yaml").write_text(CATALOG)
        documents = (
            orjson.dumps({"id": number, "left": 1, "at": format_rfc3339(BEGIN + number * HOUR)})
            for number in range(events)
        )
        (folder / "events.jsonl").write_bytes(b"\n".join(documents))
        source = ("--source", str(folder / "flow.yaml"))
        run(flowctl("ingest", *source, "--collection", "bench/events", "--clock", "/at", str(folder / "events.jsonl")))
        seconds = run(flowctl("run", *source, "--until-idle")).seconds
    ceiling = CEILING * max(1.0, events / 6_000)
    print(f"{events:,} events round a cycle of two, an hour apart: {seconds:.1f} s (at most {ceiling:.0f})")
    return int(seconds > ceiling)


if __name__ == "__main__":
    sys.exit(main())
