"""Models that are trained again: docs/retraining.md.

* :mod:`.plans`: what a user asks for, checked; :mod:`.schedules`: when
* :mod:`.runs`: each time, its states, its beginning and its end
* :mod:`.steps`: what is done, one transaction for each step
* :mod:`.people`: what people do: approve, reject, roll back, cancel
"""
