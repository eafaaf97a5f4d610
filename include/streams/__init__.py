"""What a stream depends on: its start, its generations, the fingerprint of its queries, its line feeds."""
