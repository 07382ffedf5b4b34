"""Shared parts of all routes: the application's state, bodies, long polls."""
