"""Not in this release: these callbacks belonged to TFKerasTrial."""

raise ImportError(
    "determined.keras.callbacks is not in this release: use keras.callbacks, with "
    "determined.keras.DeterminedCallback"
)
