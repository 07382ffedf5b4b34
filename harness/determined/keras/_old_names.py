"""Names of Determined's trial classes for TensorFlow 2, and what has their place."""

from __future__ import annotations

NAMES = {
    "TFKerasTrial": "a script with model.fit(callbacks=[determined.keras.DeterminedCallback(...)])",
    "TFKerasTrialContext": "core_context of determined.core.init()",
    "TFKerasTrialController": "model.fit(callbacks=[determined.keras.DeterminedCallback(...)])",
    "TFKerasTrainConfig": "the arguments of model.fit()",
    "TFKerasTensorBoard": "determined.keras.TensorBoard(core_context, ...)",
    "callbacks": "keras.callbacks, and determined.keras.DeterminedCallback",
    "InputData": "what model.fit() takes",
    "SequenceAdapter": "keras.utils.PyDataset",
    "load_model_from_checkpoint_path": (
        "model.load_weights(path + '/model_checkpoint.weights.h5') of a downloaded checkpoint"
    ),
}


def refusal(name: str) -> ImportError:
    """Says what to use instead of ``name``."""
    return ImportError(
        f"determined.keras.{name} belongs to Determined's trial classes for TensorFlow 2, which this "
        f"release does not have. Use {NAMES[name]}; see docs/frameworks.md",
        name=f"determined.keras.{name}",
    )
