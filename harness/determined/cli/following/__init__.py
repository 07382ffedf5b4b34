"""How commands watch work until it ends, and explain the end: the live view, failed trials, Ctrl-C."""
