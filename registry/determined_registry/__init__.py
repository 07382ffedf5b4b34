"""The database: everything that the platform keeps in Postgres."""
