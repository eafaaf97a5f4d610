"""The web pages' queries of the ledger: read only, bounded by the time asked for, and answered from indexes."""
