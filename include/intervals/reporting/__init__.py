"""What is reported about an interval: about each step that was taken, and about a dry run."""
