"""A script of a gang: it trains a small model with DistributedDataParallel over gloo and prints each loss as
it is, with a checkpoint after each second step. With ``HELD`` set its first leg waits in the fifth step for
its end."""

import os
import pathlib
import socket
import time

import torch
import torch.distributed

import determined as det

STEPS = 10


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    torch.distributed.init_process_group("gloo")
    distributed = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=distributed) as core:
        info = det.get_cluster_info()
        start = None if info is None else info.latest_checkpoint
        rank, size = distributed.rank, distributed.size
        model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        step = 0
        if start is not None:
            with core.checkpoint.restore_path(start) as path:
                state = torch.load(path / "state.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            step = state["step"]
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        print("rank", rank, "of", size, "chief", os.environ["MASTER_ADDR"], socket.gethostname())
        while step < STEPS:
            step += 1
            while "HELD" in os.environ and start is None and step == 5:
                print("held", step, flush=True)
                time.sleep(0.2)
            random = torch.Generator().manual_seed(step)
            x = torch.randn(32, 16, generator=random)[rank::size]
            loss = (wrapped(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.distributed.all_reduce(both := loss.detach())
            if rank == 0:
                print("loss", step, float(both).hex(), flush=True)
                core.train.report_training_metrics(step, {"loss": float(both)})
                if step % 2 == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                        torch.save({**state, "step": step}, pathlib.Path(path) / "state.pt")
        if rank == 0:
            core.train.report_validation_metrics(step, {"loss": float(both)})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
