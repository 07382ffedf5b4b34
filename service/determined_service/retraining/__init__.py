"""Models that are trained again: docs/automate/retraining.md.

* :mod:`.plans`: what a user asks for, checked
* :mod:`.live`: what users report
* :mod:`.runs`: each time, its states, its beginning and its end
* :mod:`.steps`: what is done, one transaction for each step
* :mod:`.people`: what people do: approve, reject, roll back, cancel
"""
