"""The typed messages between service, agents, supervisors and flows under ``/internal/v1``.

The one package that both sides of the wire import. It knows JSON and nothing else: no HTTP, no database, no
Prefect, no pydantic. Supervisors are forked with it, so its import stays cheap; training processes import
`paths`, `times` and `last_words` only, which are constants.

version     the number that an agent sends, and which numbers a service understands
message     how a message reads and writes JSON
paths       addresses and the cookie
agents      registration, work, claims
legs        the order to start a leg, and the reports of its supervisor
search      requests and commits of the flow that drives a search
deletions   requests and reports of the flow that deletes from checkpoint storage
states      states of experiments and trials
last_words  the words and codes that tell of a leg's end
no_telemetry  variables that keep libraries from reporting their use
prefect     names of deployments and states in Prefect
times       seconds that both sides must agree on
"""
