"""The subject of a request, and its rights."""
