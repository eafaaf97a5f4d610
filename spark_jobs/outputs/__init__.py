"""Outputs: where committed archive rows, or what a transform makes of them, are sent on."""
