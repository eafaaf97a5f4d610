"""The ledger of outputs of rows: what their targets have, against what it says was sent, and which cannot send."""
