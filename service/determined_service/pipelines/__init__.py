"""Pipelines of experiments: docs/automate/pipelines.md.

* :mod:`.machine`: which move comes next, pure
* :mod:`.rows`: a pipeline's rows: found, locked, changed
* :mod:`.results`: what a completed experiment has found
* :mod:`.submitting`: a new pipeline, checked and stored
* :mod:`.steps`: what is done, each thing once, in one transaction
* :mod:`.in_trials`: evaluations, and checks of the data
* :mod:`.promoting`: steps that promote; :mod:`.comparing`: those that compare first
* :mod:`.repeating`: pipelines that run again, on a schedule
* :mod:`.of_retraining`: pipelines that are the runs of retrainings; :mod:`.telling`: who is told of changes
* :mod:`.people`: what people do: approve, cancel, resume, delete
"""
