"""An interval's way: pinned, built, reconciled, published, announced; explained and rebuilt afterwards."""
