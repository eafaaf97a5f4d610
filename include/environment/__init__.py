"""What a shell exports for other programs, and how Tidemark's processes are kept from it."""
