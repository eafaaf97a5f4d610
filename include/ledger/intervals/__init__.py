"""The ledger of intervals: pins, attempts, revisions, and the evidence that reconciliation asks for."""
