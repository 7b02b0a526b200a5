"""Functions of text."""

from __future__ import annotations

from derive.compute.algebra.types import Type
from derive.compute.scalar.function import Functions

FUNCTIONS = Functions()

_T, _I, _B = Type.TEXT, Type.INTEGER, Type.BOOLEAN


FUNCTIONS.native("||", (_T, _T), _T, lambda arguments, _: f"({arguments[0]} || {arguments[1]})", word="concat")


@FUNCTIONS.define("lower", (_T,), _T, can_fail=False)
def _lower(text: str) -> str:
    return text.lower()


@FUNCTIONS.define("upper", (_T,), _T, can_fail=False)
def _upper(text: str) -> str:
    return text.upper()


for _symbol in ("length", "char_length", "character_length"):
    FUNCTIONS.define(_symbol, (_T,), _I, can_fail=False)(len)
