"""Pure functions of columns and DataFrames, one file per pipeline, used unchanged by stream and batch."""
