"""The searcher's side of an experiment: events, operations, drivers."""
