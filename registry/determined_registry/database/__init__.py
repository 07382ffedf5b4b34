"""The schema: tables, and the migrations that lead to them."""
