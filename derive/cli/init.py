"""`flowctl init`, and the catalog that it writes: the smallest one that shows all parts working together."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import click

from derive.errors import FlowError, UsageError

_CATALOG = """\
# A catalog: what is collected, what follows from it, and tests of that.
collections:
  # Documents of this collection are ingested.
  shop/orders:
    schema: orders.schema.yaml
    key: [/id]

  # Documents of this one are derived from orders: one for each customer.
  shop/customers:
    schema:
      type: object
      required: [customer]
      # Documents of the same customer are reduced into one, as the annotations say.
      reduce: { strategy: merge }
      properties:
        customer: { type: string }
        first_order: { type: integer, reduce: { strategy: firstWriteWins } }
        orders: { type: integer, reduce: { strategy: sum } }
        spent: { type: number, reduce: { strategy: sum } }
    key: [/customer]
    derive:
      using:
        sqlite: {}
      transforms:
        - name: fromOrders
          source: shop/orders
          # The lambda keeps nothing between orders, so any shard may run it.
          shuffle: any
          lambda: customers.sql

tests:
  shop/tests/customers:
    description: Orders are counted and summed for each customer; cancelled ones do not count.
    steps:
      - ingest:
          collection: shop/orders
          documents:
            - { id: 1, customer: ann, amount: 20, status: placed }
            - { id: 2, customer: ben, amount: 5.5, status: placed }
            - { id: 3, customer: ann, amount: 99, status: cancelled }
            - { id: 4, customer: ann, amount: 1.5, status: placed }
      - verify:
          collection: shop/customers
          documents:
            - { customer: ann, first_order: 1, orders: 2, spent: 21.5 }
            - { customer: ben, first_order: 2, orders: 1, spent: 5.5 }
"""

_SCHEMA = """\
# JSON Schema of an order.
type: object
required: [id, customer, amount, status]
properties:
  id: { type: integer }
  customer: { type: string, minLength: 1 }
  amount: { type: number, minimum: 0 }
  status: { enum: [placed, cancelled] }
"""

_LAMBDA = """\
-- Runs once for each order; each row it selects is published as a document. $name is a property of the order.
SELECT $customer, $id AS first_order, 1 AS orders, $amount AS spent
WHERE $status = 'placed';
"""

_DOCUMENTS = """\
{"id": 1, "customer": "ann", "amount": 12.5, "status": "placed"}
{"id": 2, "customer": "ben", "amount": 40, "status": "placed"}
{"id": 3, "customer": "ann", "amount": 7.25, "status": "placed"}
{"id": 4, "customer": "carol", "amount": 310, "status": "cancelled"}
{"id": 5, "customer": "ben", "amount": 2.25, "status": "placed"}
"""

_README = """\
# A shop

Orders are ingested; how often and how much each customer ordered is derived from them.

| file | what it holds |
|---|---|
| `flow.yaml` | the catalog: the collections, the derivation, a test |
| `orders.schema.yaml` | what an order looks like |
| `customers.sql` | the lambda that turns an order into what it says about a customer |
| `orders.jsonl` | a few orders to try it on |

```console
$ flowctl check                                              # everything wrong in the catalog, with its place
$ flowctl test                                               # the catalog's test, without Spark
$ flowctl graph                                              # what flows where
$ flowctl ingest --collection shop/orders orders.jsonl       # all of the file or nothing
$ flowctl run --until-idle                                   # derive, on Spark
$ flowctl collections read --collection shop/customers --reduce
{"customer":"ann","first_order":1,"orders":2,"spent":19.75}
{"customer":"ben","first_order":2,"orders":2,"spent":42.25}
```

Data is kept in `.flow`, beside `flow.yaml`; delete that folder to begin again.
"""

FILES: Mapping[str, str] = MappingProxyType(
    {
        "flow.yaml": _CATALOG,
        "orders.schema.yaml": _SCHEMA,
        "customers.sql": _LAMBDA,
        "orders.jsonl": _DOCUMENTS,
        "README.md": _README,
    }
)
"""Contents of each file of the catalog, by name, in reading order."""


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
def command(folder: Path) -> None:
    """Write a small working catalog into DIR (by default the current folder), as a start for your own.

    The catalog has a collection of orders, a derivation in SQL, a test, and a few documents to ingest. Existing files
    are never overwritten.

    \b
    Example:
      flowctl init shop && cd shop && flowctl test
    """
    from derive.cli.console import note

    for path in write_files(folder, FILES):
        click.echo(click.format_filename(path))
    steps = [
        "flowctl check",
        "flowctl test",
        "flowctl ingest --collection shop/orders orders.jsonl",
        "flowctl run --until-idle",
        "flowctl collections read --collection shop/customers --reduce",
    ]
    if folder.resolve() != Path.cwd():
        steps.insert(0, f"cd {shlex.quote(str(folder))}")
    note("Next:\n" + "\n".join(f"  {step}" for step in steps))


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write all files into a folder, or none; create the folder if it does not exist.

    Args:
        folder: the folder.
        files: text by file name.

    Returns:
        Paths of the files, in the same order.

    Raises:
        UsageError: the folder is a file, or one of the files exists.
        FlowError: the system refuses to write.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder")
    present = [name for name in files if (folder / name).exists() or (folder / name).is_symlink()]
    if present:
        hint = "name a new folder; nothing was written"
        raise UsageError(f"{folder} already has {', '.join(present)}", hint=hint)
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8", newline="\n") as stream:
                written.append(folder / name)
                stream.write(text)
    except OSError as exc:
        for path in written:
            path.unlink(missing_ok=True)
        raise FlowError(f"cannot write into {folder}: {exc.strerror or exc}") from exc
    return written
