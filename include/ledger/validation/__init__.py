"""What a publication is judged by besides its suite: what was usual before, and what a person decided."""
