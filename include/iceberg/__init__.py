"""Iceberg tables over the files of registered revisions: the catalog, the columns, the commit of an interval."""
