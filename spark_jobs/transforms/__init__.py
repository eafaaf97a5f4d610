"""Pure DataFrame to DataFrame functions, one file per pipeline, used unchanged by stream and batch."""
