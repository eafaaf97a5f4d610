"""Great Expectations: the checkpoint mechanics and one suite file per pipeline."""
