"""Numbers of a table's fields: the ledger's, by which its files and the Iceberg table know them."""

from __future__ import annotations

from include.catalog.columns import paths_of
from include.catalog.renames import shown_columns, shown_names, written_columns
from include.ledger.columns import field_numbers
from include.pipelines.spec import Pipeline


def numbers_of(pipeline: Pipeline, table: str) -> dict[str, int]:
    """Return the numbers of the fields of one of the pipeline's Iceberg tables by their paths; new fields get numbers.

    A renamed column takes over the numbers of its former name once the table shows the new one; until then files have
    both. A table that exists without numbers in the ledger, made by earlier code, keeps its own. Raises
    ServiceUnreachable, UsageError when the Iceberg table is not the pipeline's, and MetadataGone.
    """
    shown = shown_names(pipeline, table)
    paths = paths_of(shown_columns(pipeline, table))
    paths += [path for path in paths_of(written_columns(pipeline, table)) if path not in paths]
    for name, before in pipeline.formerly(table).items():
        if name not in shown:
            field_numbers.take_over(table, name, before)
    given = field_numbers.numbers(table)
    if given.keys() >= set(paths):
        return given
    # PyIceberg is imported only when a field is new.
    from include.iceberg.catalog import find, opened

    with opened() as catalog:
        stored = find(catalog, pipeline, table)
    if stored is None:
        return field_numbers.give(table, paths, {})
    schema = stored.schema()
    known = {schema.find_column_name(number) or "": number for number in schema.field_ids}
    return field_numbers.give(table, paths, known, stored.metadata.last_column_id)


def numbers_of_tables(pipeline: Pipeline) -> dict[str, dict[str, int]]:
    """Return `numbers_of` for each of the pipeline's Iceberg tables. Raises the same errors."""
    return {table: numbers_of(pipeline, table) for table in pipeline.iceberg_tables}
