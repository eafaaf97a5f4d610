"""The command `./tidemark`: one module per group of verbs, all errors turned into one line and an exit code."""
