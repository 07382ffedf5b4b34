"""When something begins again by itself: retrainings and pipelines.

* :mod:`.schedules`: cron, intervals, RRULE
* :mod:`.triggers`: events that a user names, read and checked
* :mod:`.events`: whether one of them has happened
* :mod:`.best`: an experiment's best checkpoint, which one of the events is about
"""
