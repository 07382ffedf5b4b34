"""The kinds of task: what each starts, when it is ready, what its end means. The core knows none by name."""
