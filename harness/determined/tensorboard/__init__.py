"""Determined's older way to TensorBoard; see ``core_context.train.get_tensorboard_path()`` for today's."""
