"""`det cluster doctor`: :mod:`.examine` collects facts, :mod:`.judge` makes findings of them (no I/O)."""
