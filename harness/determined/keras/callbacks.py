"""Not in this release: these callbacks were TFKerasTrial's."""

raise ImportError(
    "determined.keras.callbacks is not in this release: use keras.callbacks, with "
    "determined.keras.DeterminedCallback"
)
