"""State changes: the transaction, the tables of moves, events for the search, messages for Prefect."""
