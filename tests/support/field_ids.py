"""Numbers of fields in Parquet files, as pyarrow reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def numbers_in(file: Path) -> dict[str, int | None]:
    """The numbers of a file's fields by their paths; None without one."""
    return dict(_numbers("", pq.read_schema(file)))


def _numbers(above: str, fields: Any) -> Iterator[tuple[str, int | None]]:
    for each in fields:
        path = f"{above}{each.name}"
        number = (each.metadata or {}).get(b"PARQUET:field_id")
        yield path, int(number) if number is not None else None
        if pa.types.is_struct(each.type):
            yield from _numbers(f"{path}.", [each.type.field(n) for n in range(each.type.num_fields)])
        elif pa.types.is_list(each.type):
            yield from _numbers(f"{path}.", [each.type.value_field.with_name("element")])
        elif pa.types.is_map(each.type):
            yield from _numbers(f"{path}.", [each.type.key_field, each.type.item_field.with_name("value")])
