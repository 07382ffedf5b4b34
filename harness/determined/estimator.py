"""Not in this release: TensorFlow itself has removed estimators."""

raise ImportError(
    "determined.estimator is not in this release, because TensorFlow has removed estimators: train "
    "by the Core API (determined.core), or with Keras by determined.keras.DeterminedCallback"
)
