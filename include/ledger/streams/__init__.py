"""The ledger of streams: leases, launches, generations, incarnations of topics, losses, flags, lines."""
