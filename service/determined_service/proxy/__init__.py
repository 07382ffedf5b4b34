"""The proxy to tasks: a separate process that passes connections on, and the service's decisions for it.

`server` and the modules of this room that it imports run in that process and see nothing else of the
service: no database, no secret of the cluster. Of these, `visitor` and `task_connection` are the two ends of
a request, `arrivals` and `entering` read who wants to go where, and `passing` and `answers` write heads.
`decisions`, `process` and `http_protocol` are the service's side.
"""
