"""Code that the SDK, the CLI and the training process share."""
