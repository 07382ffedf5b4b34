"""Trains a small network on the present month's digits, through the Core API."""

import pathlib

import data
import torch

import determined as det


def build_model(hparams):
    """64 pixels in, 10 class scores out."""
    hidden = int(hparams["hidden_size"])
    return torch.nn.Sequential(
        torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
    )


def main(core_context, info):
    torch.manual_seed(info.trial.trial_seed)
    (images, labels), (held_out, truth) = data.load(data.month())
    model = build_model(info.trial.hparams)
    if info.latest_checkpoint is not None:  # the champion, where the plan says warm_start
        with core_context.checkpoint.restore_path(info.latest_checkpoint) as path:
            model.load_state_dict(torch.load(pathlib.Path(path) / "model.pt"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for operation in core_context.searcher.operations():
        for epoch in range(1, operation.length + 1):
            for batch in torch.randperm(len(labels)).split(32):
                loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            accuracy = (model(held_out).argmax(dim=1) == truth).float().mean().item()
            core_context.train.report_validation_metrics(epoch, {"accuracy": accuracy})
        with core_context.checkpoint.store_path({"steps_completed": operation.length}) as (path, _):
            torch.save(model.state_dict(), pathlib.Path(path) / "model.pt")
        operation.report_completed(accuracy)


if __name__ == "__main__":
    with det.core.init() as context:
        main(context, det.get_cluster_info())
