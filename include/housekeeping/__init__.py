"""What is no longer needed goes: landing of registered intervals, old revisions, small files."""
