"""State changes, scheduling, the mirror to Prefect."""
