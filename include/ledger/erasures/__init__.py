"""Erasures in the ledger: what was asked for, which records are erased, and what is left to do."""
