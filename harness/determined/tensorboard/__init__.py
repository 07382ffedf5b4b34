"""Determined's older interface to TensorBoard; see ``core_context.train.get_tensorboard_path()`` instead."""
