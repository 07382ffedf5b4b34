"""Models that are trained again: docs/automate/retraining.md.

* :mod:`.plans`: what a user asks for, checked
* :mod:`.live`: what users report
* :mod:`.runs`: each time, which is a pipeline; :mod:`.as_pipeline`: its plan
* :mod:`.people`: what people do: approve, reject, roll back, cancel
"""
