"""Shared by all other packages of the service: the database, announcements, settings, refusals, JSON."""
