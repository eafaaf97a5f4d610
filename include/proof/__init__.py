"""Proofs of registered intervals: a signed JSON file each, chained per table, that anybody can check."""
