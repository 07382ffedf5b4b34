"""Background loops, which only the leading service process runs."""
