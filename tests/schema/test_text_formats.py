"""Formats of texts beyond those of JSON Schema."""

from __future__ import annotations

import jsonschema_rs
import pytest

from derive.schema.validator import ASSERTED, FORMATS, compile_validator

HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("name", "valid", "invalid"),
    [
        ("integer", ["1", "-1", "1.0", "-10.000", "1" * 30], ["", "1.", "1.5", "+1", "1e3", ".0", "x"]),
        ("number", ["1", "1.5", "-1e3", "NaN", "Infinity", "-Infinity"], ["", "1.", "+1", "nan", "x"]),
        (
            "macaddr",
            [
                "08:00:2b:01:02:03", "08-00-2B-01-02-03", "08002b:010203", "08002b-010203", "0800.2b01.0203",
                "08002b010203",
            ],
            ["", "08:00:2b:01:02", "08:00-2b:01:02:03", "08:00:2b:01:02:0g", "08:00:2b:01:02:03:04", " 08002b010203"],
        ),
        (
            "macaddr8",
            [
                "08:00:2b:01:02:03:04:05", "08-00-2b-01-02-03-04-05", "08002b:0102030405", "08002b-0102030405",
                "0800.2b01.0203.0405", "08002b0102030405",
            ],
            ["", "08:00:2b:01:02:03", "08002b01020304", "08:00:2b:01:02:03:04:0x"],
        ),
        ("sha256", [f"sha256:{HASH}"], ["", HASH, f"sha256:{HASH}0", f"sha256:{HASH.upper()}", f"sha1:{HASH}"]),
    ],
)  # fmt: skip
def test_validator_refuses_values_that_violate_a_format(name: str, valid: list[str], invalid: list[str]) -> None:
    validator = compile_validator({"format": name}, name="x")

    assert [text for text in valid if not validator.is_valid(text)] == []
    assert [text for text in invalid if validator.is_valid(text)] == []
    assert validator.is_valid(1)


@pytest.mark.parametrize("name", sorted(ASSERTED))
def test_validator_asserts_all_formats_of_the_list(name: str) -> None:
    validator = jsonschema_rs.Draft202012Validator({"format": name}, formats=FORMATS, validate_formats=True)

    assert not all(map(validator.is_valid, ["\0 {", "[", "~", "a b", "{"]))
