"""Comparisons of two sides that should agree, each difference with its class."""
