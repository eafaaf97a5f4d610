"""What is said of an interval: of each step that was taken, and of a run that only asks."""
