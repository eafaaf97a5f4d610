"""The examination of machine, ledger, catalog and files, and the repair of what disagrees."""
