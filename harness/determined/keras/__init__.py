"""Keras on the cluster: ``model.fit(callbacks=[DeterminedCallback(core_context, ...)])``.

For Keras 3 with any of its backends; ``KERAS_BACKEND=torch`` needs no TensorFlow.
"""

from determined._absent import absent
from determined._optional import require

try:
    require("keras", "keras", "determined.keras")
except ModuleNotFoundError as error:
    if error.name not in ("jax", "tensorflow", "torch"):
        raise
    raise ImportError(
        f"keras uses the backend {error.name}, which is not installed: install it, or choose another backend "
        "before keras is imported, e.g. KERAS_BACKEND=torch in the environment",
        name=error.name,
    ) from error

from determined.keras._callback import DeterminedCallback
from determined.keras._tensorboard import TensorBoard

__all__ = ["DeterminedCallback", "TensorBoard"]

_FIT = "write a script with model.fit(callbacks=[determined.keras.DeterminedCallback(...)])"

# Of the trial classes for TensorFlow 2.
__getattr__ = absent(
    "determined.keras",
    {
        "TFKerasTrial": _FIT,
        "TFKerasTrialContext": _FIT,
        "TFKerasTrialController": _FIT,
        "TFKerasTrainConfig": _FIT,
        "TFKerasTensorBoard": "use determined.keras.TensorBoard(core_context, ...)",
        "callbacks": "use keras.callbacks, with determined.keras.DeterminedCallback",
        "InputData": "give model.fit() the data itself",
        "SequenceAdapter": "give model.fit() a keras.utils.PyDataset",
        "load_model_from_checkpoint_path": (
            "build the model, and model.load_weights('model_checkpoint.weights.h5') from the "
            "downloaded checkpoint"
        ),
    },
)
