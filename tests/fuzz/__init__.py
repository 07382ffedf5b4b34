"""Hostile requests: none may be answered with a fault, with SQL, or hold up everybody else.

``python -m tests.fuzz.run N SEED`` sends N requests and prints what it found; `test_fuzz.py` sends a few.

hostile     values that no route expects
traffic     requests: valid ones for each route, and what becomes of them
guests      a service of its own, and whose tokens the requests carry
verdict     what an answer must not be or hold
health      how long `/health` takes meanwhile
loop_watch  what keeps it waiting, and where
by_schema   the same with schemathesis, which reads `/openapi.json`
run         all of it
"""
