"""Scores checkpoints by a function of the user's, in a trial: ``python3 -m determined.evaluation``.

The platform submits such a trial for each evaluation of a retraining, and the block ``evaluate`` of flows
does. The trial's hyperparameters say what to do:

* ``evaluate: module:function``, called as ``function(checkpoint: pathlib.Path, hparams: dict)`` for each of
  ``checkpoints``; it returns a mapping of names to numbers, or to lists of one number for each example;
* or ``data_version: module:function``, called without arguments, or ``data_files: [pattern, …]``, whose
  contents are hashed.

The results are reported as metrics of the group ``evaluation``.
"""
