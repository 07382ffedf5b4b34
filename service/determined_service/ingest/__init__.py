"""The hot paths: metrics and task logs into Postgres, many requests per transaction."""
