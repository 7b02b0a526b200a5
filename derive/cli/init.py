"""`flowctl init`, and the catalogs that it writes: the smallest catalogs in which all parts work together."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import click

from derive.cli.options import quiet_option
from derive.errors import FlowError, UsageError

_CATALOG = """\
# A catalog: collections, derivations, and tests.
collections:
  # Documents of this collection are ingested.
  shop/orders:
    schema: orders.schema.yaml
    key: [/id]

  # Documents of this collection are derived from orders: one for each customer.
  shop/customers:
    schema:
      type: object
      required: [customer]
      # The `reduce` annotations say how documents of one customer become one document.
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
          # The lambda keeps no state between orders, so any shard may run it.
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
-- Runs once for each order. Each selected row is published as a document. $amount is a property of the order.
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

Orders are ingested. A derivation counts and sums the orders of each customer.

| file | content |
|---|---|
| `flow.yaml` | the catalog: the collections, the derivation, a test |
| `orders.schema.yaml` | the schema of an order |
| `customers.sql` | the lambda: makes a small document about the customer from each order |
| `orders.jsonl` | five orders, for a first run |

```console
$ flowctl check                                              # all errors of the catalog, with their positions
$ flowctl test                                               # the catalog's test, without Spark
$ flowctl graph                                              # the flow of documents between collections
$ flowctl ingest --collection shop/orders orders.jsonl       # loads the whole file, or nothing
$ flowctl run --until-idle                                   # derives; large work runs on Spark
$ flowctl collections read --collection shop/customers --reduce
{"customer":"ann","first_order":1,"orders":2,"spent":19.75}
{"customer":"ben","first_order":2,"orders":2,"spent":42.25}
```

The data folder is `.flow`, beside `flow.yaml`. Delete this folder to begin again.
"""

_PYTHON_CATALOG = """\
# A catalog: collections, a derivation in Python, and a test.
collections:
  # Documents of this collection are ingested.
  shop/orders:
    schema: orders.schema.yaml
    key: [/id]

  # Documents of this collection are derived from orders: one for each placed order.
  shop/receipts:
    schema:
      type: object
      required: [id, customer, number, spent]
      properties:
        id: { type: integer }
        customer: { type: string }
        number: { type: integer, description: 1 for the first order of the customer. }
        spent: { type: number, description: Sum of the orders of the customer so far. }
    key: [/id]
    derive:
      using:
        python: { module: receipts.py }
      transforms:
        # The method `from_orders` of the module processes each order.
        - name: fromOrders
          source: shop/orders
          # The module keeps state for each customer, so one shard processes all orders of a customer.
          shuffle: { key: [/customer] }

tests:
  shop/tests/receipts:
    description: Orders are numbered and summed for each customer; cancelled ones do not count.
    steps:
      - ingest:
          collection: shop/orders
          documents:
            - { id: 1, customer: ann, amount: 20, status: placed }
            - { id: 2, customer: ben, amount: 5.5, status: placed }
            - { id: 3, customer: ann, amount: 99, status: cancelled }
      - ingest:
          collection: shop/orders
          documents:
            - { id: 4, customer: ann, amount: 1.5, status: placed }
      - verify:
          collection: shop/receipts
          documents:
            - { id: 1, customer: ann, number: 1, spent: 20 }
            - { id: 2, customer: ben, number: 1, spent: 5.5 }
            - { id: 4, customer: ann, number: 2, spent: 21.5 }
"""

_MODULE = '''\
from collections.abc import Iterator

from shop.receipts import Document, IDerivation, Request


class Derivation(IDerivation):
    """Receipts of orders, with running totals of each customer."""

    def from_orders(self, read: Request.ReadFromOrders) -> Iterator[Document]:
        order = read.doc
        if order.status == "cancelled":
            return
        # self.state holds the values of this customer: those of the shuffle key.
        number = self.state.get("orders", 0) + 1
        spent = self.state.get("spent", 0) + order.amount
        self.state = {"orders": number, "spent": spent}
        yield Document(id=order.id, customer=order.customer, number=number, spent=spent)
'''

_PYTHON_README = """\
# A shop

Orders are ingested. A derivation in Python writes a receipt for each order, with running totals of its customer.

| file | content |
|---|---|
| `flow.yaml` | the catalog: the collections, the derivation, a test |
| `orders.schema.yaml` | the schema of an order |
| `receipts.py` | the derivation: a class with a method that processes each order |
| `orders.jsonl` | five orders, for a first run |

```console
$ flowctl generate                                           # types of the documents, for your editor
$ flowctl check                                              # all errors of the catalog and the module
$ flowctl test                                               # the catalog's test, without Spark
$ flowctl ingest --collection shop/orders orders.jsonl       # loads the whole file, or nothing
$ flowctl run --until-idle                                   # derives; large work runs on Spark
$ flowctl collections read --collection shop/receipts
{"customer":"ann","id":1,"number":1,"spent":12.5}
{"customer":"ben","id":2,"number":1,"spent":40}
{"customer":"ann","id":3,"number":2,"spent":19.75}
{"customer":"ben","id":5,"number":2,"spent":42.25}
$ flowctl state --task shop/receipts "SELECT key, state FROM keys"
{"key":"ann","state":"{\\"orders\\":2,\\"spent\\":19.75}"}
{"key":"ben","state":"{\\"orders\\":2,\\"spent\\":42.25}"}
```

Editors find the types if `flow_generated/python` is a root of imports (`extraPaths` of Pyright, `search-path` of
pyrefly). The data folder is `.flow`, beside `flow.yaml`. Delete this folder to begin again.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """A catalog to start from.

    Attributes:
        files: contents of each file by name, in reading order.
        steps: commands to run in its folder, in order.
    """

    files: Mapping[str, str]
    steps: tuple[str, ...]


def _sample(files: Mapping[str, str], *steps: str, read: str) -> Sample:
    ingest = "flowctl ingest --collection shop/orders orders.jsonl"
    last = (ingest, "flowctl run --until-idle", f"flowctl collections read --collection {read}")
    return Sample(MappingProxyType(files), (*steps, "flowctl check", "flowctl test", *last))


SAMPLES: Mapping[str, Sample] = MappingProxyType(
    {
        "sql": _sample(
            {
                "flow.yaml": _CATALOG,
                "orders.schema.yaml": _SCHEMA,
                "customers.sql": _LAMBDA,
                "orders.jsonl": _DOCUMENTS,
                "README.md": _README,
            },
            read="shop/customers --reduce",
        ),
        "python": _sample(
            {
                "flow.yaml": _PYTHON_CATALOG,
                "orders.schema.yaml": _SCHEMA,
                "receipts.py": _MODULE,
                "orders.jsonl": _DOCUMENTS,
                "README.md": _PYTHON_README,
            },
            "flowctl generate",
            read="shop/receipts",
        ),
    }
)
"""The catalogs, by the language of the derivation."""


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option(
    "--language",
    type=click.Choice(list(SAMPLES)),
    default="sql",
    show_default=True,
    help="The language of the derivation.",
)
@quiet_option
def command(folder: Path, language: str) -> None:
    """Write a small working catalog into DIR (by default the current folder), as a start for your own.

    The catalog has a collection of orders, a derivation in SQL or Python, a test, and a few documents to ingest.
    Existing files are never overwritten.

    \b
    Examples:
      flowctl init shop && cd shop && flowctl test
      flowctl init --language python shop && cd shop && flowctl test
    """
    from derive.cli.console import note

    sample = SAMPLES[language]
    for path in write_files(folder, sample.files):
        click.echo(click.format_filename(path))
    steps = sample.steps
    if folder.resolve() != Path.cwd():
        steps = (f"cd {shlex.quote(str(folder))}", *steps)
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
