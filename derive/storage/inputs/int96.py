"""Times of Parquet's INT96, which Spark writes by default: nanoseconds in the years 1 to 9999 of RFC 3339."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from derive.storage.inputs.unfit import FIRST_SECOND, LAST_SECOND, UnfitError

_MICROS = 1_000_000


def text_type(nanos: pa.DataType, micros: pa.DataType) -> pa.DataType:
    """Return the type of a column with texts for the times of INT96.

    Args:
        nanos: type of the column read as nanoseconds.
        micros: type of the column read as microseconds.

    Raises:
        UnfitError: the times are in a type that Parquet does not have.
    """
    if nanos == micros:
        return nanos
    if types.is_timestamp(nanos):
        return pa.string()
    if types.is_struct(nanos):
        fields = [nanos.field(index) for index in range(nanos.num_fields)]
        kinds = [text_type(field.type, micros.field(index).type) for index, field in enumerate(fields)]
        return pa.struct([field.with_type(kind) for field, kind in zip(fields, kinds, strict=True)])
    if types.is_map(nanos):
        keys = text_type(nanos.key_type, micros.key_type)
        return pa.map_(keys, text_type(nanos.item_type, micros.item_type))
    if types.is_list(nanos) or types.is_large_list(nanos) or types.is_fixed_size_list(nanos):
        return pa.list_(text_type(nanos.value_type, micros.value_type))
    raise UnfitError(f"the type {nanos} of times of INT96, which has no JSON form")


def with_texts(nanos: Any, micros: Any) -> Any:
    """Return an array with RFC 3339 texts, without an offset, instead of the times of INT96.

    Args:
        nanos: the column read as nanoseconds, modulo 2**64.
        micros: the column read as microseconds.

    Raises:
        UnfitError: a time is outside the years 1 to 9999.
    """
    kind = nanos.type
    if kind == micros.type:
        return nanos
    if types.is_timestamp(kind):
        return _texts(nanos, micros)
    if types.is_struct(kind):
        parts = [with_texts(*pair) for pair in zip(nanos.flatten(), micros.flatten(), strict=True)]
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, names=names, mask=nanos.is_null())
    if types.is_map(kind):
        first, count = nanos.offsets[0].as_py(), nanos.offsets[-1].as_py() - nanos.offsets[0].as_py()
        keys, items = (
            with_texts(ours.slice(first, count), others.slice(micros.offsets[0].as_py(), count))
            for ours, others in ((nanos.keys, micros.keys), (nanos.items, micros.items))
        )
        return pa.MapArray.from_arrays(_offsets(nanos, pc.subtract(nanos.offsets, first)), keys, items)
    lengths = pc.fill_null(pc.list_value_length(nanos), 0).cast(pa.int32())
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(_offsets(nanos, ends), with_texts(nanos.flatten(), micros.flatten()))


def _offsets(array: Any, offsets: Any) -> Any:
    """Return the offsets of items, null where the array is null."""
    is_valid = pa.concat_arrays([array.is_valid(), pa.array([True])])
    return pc.if_else(is_valid, offsets, None)


def _texts(nanos: Any, micros: Any) -> Any:
    valid = np.asarray(micros.is_valid())
    counted = np.asarray(pc.fill_null(micros.view(pa.int64()), 0))
    wrapped = np.asarray(pc.fill_null(nanos.view(pa.int64()), 0))
    seconds = counted // _MICROS
    if seconds.size and not (seconds.min() >= FIRST_SECOND and seconds.max() <= LAST_SECOND):
        raise UnfitError("a time beyond the years 1 to 9999")
    rest = wrapped.view(np.uint64) - counted.view(np.uint64) * np.uint64(1_000)  # modulo 2**64, and below 1,000
    texts = np.datetime_as_string(counted.astype("datetime64[us]")).tolist()
    exact = [f"{text}{digits:03}" for text, digits in zip(texts, rest.tolist(), strict=True)]
    return pa.array(exact, pa.string(), mask=~valid)
