"""The catalog: what a person writes in `flow.yaml`, and what it builds to.

`build` turns the files of a catalog into validated specs, or into everything that is wrong with them, and `check` adds
what is wrong with its code; `generate` writes files for authors, and `graph` is the data flow as plain data.
`definitions` are what was written, with its positions. The rooms, each using only those before it: `language` is what a
file may say and where it says so; `loading` follows a catalog through its files to definitions; `schemas` examines the
schemas of collections; `rules` are what keys, transforms, selectors and tests must keep. They tell a `report`.
"""

from derive.catalog.build import load, load_without_tests

__all__ = ["load", "load_without_tests"]
