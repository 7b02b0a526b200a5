"""Stubs of the protocols, generated from `derive/protocol/proto` by `tests/protocol/generated_stubs.py`."""
