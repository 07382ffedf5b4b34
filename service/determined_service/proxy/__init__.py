"""The proxy to tasks: a separate process that passes connections on, and the service's decisions for it.

`server` and what it imports (`connection`, `http1`, `passing`, `answers`, `names`) run in that process and
see nothing else of the service: no database, no secret of the cluster. `decisions`, `process` and
`http_protocol` are the service's side.
"""
