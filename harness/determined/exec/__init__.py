"""Programs that run in a task's container beside the user's program."""
