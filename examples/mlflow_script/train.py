"""A script that knows only MLflow: nothing here is ours.

    export MLFLOW_TRACKING_URI=http://127.0.0.1:8080/mlflow MLFLOW_TRACKING_TOKEN=… DO_NOT_TRACK=true
    python examples/mlflow_script/train.py

Without the first two it writes to MLflow's own store, as it always has.
"""

import mlflow
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

mlflow.set_experiment("digits by MLflow")
pixels, digits = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(pixels / 16, digits, random_state=0)

with mlflow.start_run(run_name="sgd") as run:
    mlflow.log_params({"alpha": 0.001, "epochs": 10})
    model = SGDClassifier(alpha=0.001, random_state=0)
    for epoch in range(10):
        model.partial_fit(train_x, train_y, classes=range(10))
        mlflow.log_metrics(
            {
                "accuracy": model.score(train_x, train_y),
                "val_accuracy": model.score(test_x, test_y),
            },
            step=epoch,
        )
    mlflow.log_text(str(model), "model.txt")
    mlflow.sklearn.log_model(model, name="classifier", registered_model_name="digits-by-mlflow")

print(f"run {run.info.run_id}")
