"""Decides which request gets which slots, and explains why the others wait."""
