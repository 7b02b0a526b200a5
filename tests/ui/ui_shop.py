"""A shop with hostile documents, for the pages."""

from __future__ import annotations

import json
from typing import Any

CATALOG = """
collections:
  shop/orders:
    key: [/id]
    schema:
      type: object
      required: [id]
      properties: {id: {type: integer}, customer: {type: string}, amount: {type: number}, text: {type: string}}
  shop/spending:
    key: [/customer]
    schema:
      type: object
      required: [customer]
      reduce: {strategy: merge}
      properties: {customer: {type: string}, spent: {type: number, reduce: {strategy: sum}}}
    derive:
      using: {sqlite: {migrations: ["CREATE TABLE seen (id INTEGER);"]}}
      transforms:
        - name: fromOrders
          source: shop/orders
          shuffle: {key: [/customer]}
          onViolation: quarantine
          lambda: |
            INSERT INTO seen VALUES ($id);
            SELECT $customer, $amount AS spent WHERE json($text) IS NOT NULL AND $id < 10;
  shop/broken:
    key: [/id]
    schema: {type: object, required: [id], properties: {id: {type: integer}}}
    derive:
      using: {sqlite: {}}
      transforms: [{name: wrong, source: shop/orders, shuffle: any, lambda: "SELECT 'x<y' AS id;"}]
materializations:
  shop/reports:
    endpoint: {connector: {image: materialize-sqlite, config: {path: reports.db}}}
    bindings: [{resource: {table: spending}, source: shop/spending}]
tests:
  shop/tests/spending:
    - ingest: {collection: shop/orders, documents: [{id: 1, customer: "<script>alert(1)</script>", amount: 20, text: "1"}]}
    - verify: {collection: shop/spending, documents: [{customer: "<script>alert(1)</script>", spent: 21}]}
"""
SCRIPT = "<script>alert(1)</script>"


def orders(size: int) -> str:
    """Return the documents of shop/orders as JSON Lines; the last document has about this number of bytes."""
    documents: list[dict[str, Any]] = [
        {"id": 1, "customer": "ann", "amount": 20, "text": "{}"},
        {"id": 2, "customer": f"ben {SCRIPT}", "amount": 5.5, "text": '"<img src=x onerror=alert(1)>"'},
        {"id": 3, "customer": "\u05d3\u05df \u202eabc", "amount": 1, "text": '"\u0633\u0644\u0627\u0645"'},
        {"id": 4, "customer": "ann", "amount": 1, "text": f"no JSON {SCRIPT}"},
        {"id": 11, "customer": "big", "amount": 1, "text": json.dumps("y" * size)},
    ]
    return "".join(json.dumps(document) + "\n" for document in documents)
