"""The other tools, each driven in-process by hand, in an interpreter that has them installed."""
