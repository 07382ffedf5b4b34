"""One search on real processes, by this project and by others: `python -m benchmarks.search.digits`."""
