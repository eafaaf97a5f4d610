"""The doctor: examines machine, services, ledger, catalog and files, and repairs what disagrees."""
