"""A small training that goes on from its checkpoint on any number of ranks (see agents.py).

The batch of a step is the same on any number of ranks, so a run that is resized has the loss of one
that is not, to rounding. Rank 0 prints what a resize has cost: the time without a step, and the
steps since the last checkpoint, which are done again.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCH, FEATURES = 120, 16


def batch(step):
    """Return inputs and targets of a step."""
    numbers = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, FEATURES, generator=numbers, dtype=torch.float64)
    return x, torch.sin(x.sum(dim=1, keepdim=True))


def replaced(path, write):
    """Write a file so that a rank that is killed leaves the old one or the new one."""
    part = path.with_suffix(".part")
    write(part)
    part.replace(path)


def main():
    """Train."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=600)
    options.add_argument(
        "--every", type=int, default=20, help="steps from checkpoint to checkpoint"
    )
    options.add_argument("--pace", type=float, default=0.05, help="seconds that a step takes more")
    options.add_argument("--checkpoint", type=Path, default=Path("train.pt"))
    args = options.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    layers = torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first, progress = 0, args.checkpoint.with_suffix(".progress")
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    before = progress.read_text().split() if progress.exists() else None
    loss = torch.zeros(1)
    for step in range(first, args.steps):
        x, y = batch(step)
        squares = (model(x[rank::ranks]) - y[rank::ranks]).square().sum()
        optimizer.zero_grad()
        (squares * ranks / BATCH).backward()  # of which the gradients' mean over ranks is taken
        optimizer.step()
        loss = squares.detach() / BATCH
        time.sleep(args.pace)
        if rank == 0:
            now_s = time.time()
            if step == first and "WORLD_FILE" in os.environ:
                world = Path(os.environ["WORLD_FILE"])
                replaced(world, lambda part: part.write_text(str(ranks)))
            if step == first and before is not None:
                at_s, again, size = float(before[0]), int(before[1]) - first, before[2]
                words = f"{now_s - at_s:.1f} s without a new step, {again} steps done again"
                print(f"restart at step {first}: {size} -> {ranks} ranks, {words}", flush=True)
            done = f"{now_s} {step + 1} {ranks}\n"
            replaced(progress, lambda part, done=done: part.write_text(done))
            if (step + 1) % args.every == 0:
                state = {"model": model.module.state_dict(), "step": step + 1}
                state["optimizer"] = optimizer.state_dict()
                replaced(args.checkpoint, lambda part, state=state: torch.save(state, part))
    dist.all_reduce(loss)
    if rank == 0:
        print(f"loss {loss.item():.12f} after {args.steps} steps on {ranks} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
