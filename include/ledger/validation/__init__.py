"""What a publication is judged by beside its suite: what was usual before, and what a person decided."""
