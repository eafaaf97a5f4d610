"""Erasure: what is kept about a person or thing is found, its records get the fate `erased`, and its bytes go."""
