"""Generated messages, a module per pipeline: `messages(...)` yields them in the order of their times."""
