"""What is looked at while it happens: the largest keys, and the shell's tables."""
