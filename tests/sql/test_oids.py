"""Types as PostgreSQL's clients know them."""

from derive.algebra.types import Type
from derive.functions.types.pg_type import PG_TYPES
from derive.sql.pg_types import OID_OF, type_of_oid


def test_every_type_has_a_number_that_stands_for_its_form() -> None:
    forms = {kind: type_of_oid(oid) for kind, oid in OID_OF.items()}

    assert set(forms) == set(Type)
    # A clock is told as a bigint, and what nothing has decided is text.
    assert {kind: form for kind, form in forms.items() if form is not kind} == {
        Type.MZ_TIMESTAMP: Type.BIGINT,
        Type.UNKNOWN: Type.TEXT,
    }


def test_arrays_name_their_elements() -> None:
    arrays = {
        pg_type.name: PG_TYPES[pg_type.element].name
        for pg_type in PG_TYPES.values()
        if pg_type.element and pg_type.name[0] == "_"
    }

    assert arrays["_int4"] == "int4"
    assert all(array == f"_{element}" for array, element in arrays.items())


def test_what_is_not_known_has_no_type() -> None:
    assert type_of_oid(0) is None
    assert type_of_oid(999_999) is None
