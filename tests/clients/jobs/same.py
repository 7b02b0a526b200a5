"""A comparison that shows both values."""


def same(actual: object, expected: object) -> None:
    assert actual == expected, f"{actual!r} is not {expected!r}"
