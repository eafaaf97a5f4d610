"""Types as declarations write them: those that Spark has, and words that it refuses."""

from __future__ import annotations

SPARK_HAS = (
    "BOOLEAN",
    "byte",
    "TinyInt",
    "SHORT",
    "SMALLINT",
    "INT",
    "INTEGER",
    "LONG",
    "BIGINT",
    "FLOAT",
    "REAL",
    "DOUBLE",
    "DATE",
    "TIME",
    "TIME(3)",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "TIMESTAMP_LTZ",
    "TIMESTAMP WITHOUT TIME ZONE",
    "TIMESTAMP WITH LOCAL TIME ZONE",
    "STRING",
    "STRING COLLATE UTF8_LCASE",
    "BINARY",
    "DEC",
    "DECIMAL",
    "decimal(5)",
    "DECIMAL(38,9)",
    "NUMERIC(5, 2)",
    "VOID",
    "VARIANT",
    "INTERVAL",
    "INTERVAL YEAR TO MONTH",
    "INTERVAL DAY TO SECOND",
    "INTERVAL HOUR",
    "GEOMETRY(4326)",
    "GEOGRAPHY(ANY)",
    "ARRAY<INT>",
    "MAP<STRING, ARRAY<DECIMAL(5,2)>>",
    "STRUCT<a: INT, b: STRUCT<c STRING COMMENT 'of, it'>>",
    "INT NOT NULL",
    "INT COMMENT 'TEXT'",
)

SPARK_HAS_NOT = (
    "STRNG",
    "TEXT",
    "BOOL",
    "DATETIME",
    "UUID",
    "TIMESTAMP(6)",
    "TIMESTAMP WITH TIME ZONE",
    "DOUBLE PRECISION",
    "BIGINT UNSIGNED",
    "INT(3)",
    "INT NULL",
    "STRING(3)",
    "VARCHAR",
    "DECIMAL(39,0)",
    "ARRAY",
    "MAP",
    "ARRAY<TEXT>",
    "MAP<STRING, TEXT>",
    "STRUCT<a: STRUCT<b: TEXT>>",
)

OF_TABLES_ALONE = ("CHAR(3)", "CHARACTER(3)", "varchar(3)", "ARRAY<VARCHAR(3)>", "STRUCT<a: MAP<STRING, CHAR(3)>>")
"""Those that Spark has in tables alone."""

NOT_STORED = (
    "TIME",
    "TIME(3)",
    "VARIANT",
    "INTERVAL",
    "GEOGRAPHY(ANY)",
    "ARRAY<VARIANT>",
    "STRUCT<a: INTERVAL>",
    "MAP<STRING COLLATE UTF8_LCASE, INT>",
)
"""Those that cannot be written to Parquet, or hashed."""

NOT_IN_JSON = (
    "GEOMETRY(4326)",
    "GEOGRAPHY(ANY)",
    "MAP<INT, STRING>",
    "STRUCT<b: ARRAY<MAP<DATE, INT>>>",
)
"""Those that `from_json` does not read."""

OTHERWISE_IN_JSON = ("byte", "TinyInt", "STRUCT<b: TINYINT>", "INTERVAL", "STRUCT<b: ARRAY<INTERVAL>>")
"""Those of which `from_json` reads some values as others."""

OTHERWISE_IN_CSV = ("INTERVAL",)
"""Those of which `from_csv` reads some texts as null."""

NOT_IN_CSV = ("VOID", "GEOMETRY(4326)", "GEOGRAPHY(ANY)", "ARRAY<INT>", "MAP<STRING, INT>", "STRUCT<a: INT>")
"""Those that `from_csv` does not read."""
