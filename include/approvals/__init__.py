"""What only a person may decide: what is known before, and carrying out what was approved."""
