"""Which answers the protocol allows, which the tests of random messages rely on."""

from __future__ import annotations

import pytest
from answers import are_answers


def kinds(text: str) -> list[bytes]:
    return [bytes([kind]) for kind in text.encode()]


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("X", ""),
        ("QX", "NTDDCZ"),
        ("QX", "TDCSTDCEZ"),
        ("QX", "EZ"),
        ("PBDEEHSX", "12TDsDCZ"),
        ("PDSX", "1tnZ"),
        ("PBESX", "EZ"),
        ("PBESSQX", "12EZZCZ"),
        ("SX", "EZ"),
        ("FSX", "EZZ"),
        ("QddHScQX", "GCZIZ"),
        ("QddfSX", "GEZZ"),
        ("QddcSX", "GEZZ"),  # at the first piece, or at the end
        ("QdSdcX", "GEZZ"),  # at the first piece: Sync is none of the COPY's
        ("PBEdcSX", "12GCZ"),
        ("PBEdQSX", "12GEZ"),
        ("PBEdPBSX", "12GEZ"),
        ("dcfHX", ""),
    ],
)
def test_what_may_be_answered(sent: str, received: str) -> None:
    assert are_answers(kinds(sent), kinds(received))


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("X", "Z"),
        ("QX", "TDC"),
        ("QX", "TDCZZ"),
        ("QX", "TDDE"),
        ("PBESX", "12CC"),
        ("PBESX", "1EEZ"),
        ("PBESX", "2CZ"),
        ("PDSX", "1tZ"),
        ("HX", "Z"),
        ("QdcX", "GZ"),
        ("QdfX", "GCZ"),
        ("QcSX", "GCZ"),
    ],
)
def test_what_may_not_be_answered(sent: str, received: str) -> None:
    assert not are_answers(kinds(sent), kinds(received))
