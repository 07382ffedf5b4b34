"""Exchange between Prefect and the service: the states that Prefect gets, and the changes that users make
there.
"""
