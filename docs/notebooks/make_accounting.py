"""Write accounting.txt: 300 invented jobs of a cluster of 32 nodes, in the format of sacct.

Usage: python make_accounting.py > accounting.txt
"""

import heapq

import numpy as np

NODES, JOBS, BEGIN = 32, 300, 1_700_000_000
HEAD = (
    "JobID|User|Account|Partition|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|AllocNodes|"
    "NNodes|AllocCPUS|State|JobName"
)
USERS = ["ana", "ben", "cleo", "dan", "eva"]


def main() -> None:
    """Print the table: jobs start in order, each as soon as its nodes are free."""
    rng = np.random.default_rng(34)
    submit, start, free, ends = float(BEGIN), float(BEGIN), NODES, list[tuple[float, int]]()
    print(HEAD)
    for job in range(1, JOBS + 1):
        submit += rng.exponential(500)
        nodes = int(rng.choice([1, 2, 4, 8, 16], p=[0.3, 0.2, 0.25, 0.15, 0.1]))
        run = int(np.clip(rng.lognormal(7.6, 1.0), 60, 36_000))
        limit = -(-int(run * rng.uniform(1.1, 4.0)) // 60)
        start = max(start, submit)
        while ends and (ends[0][0] <= start or free < nodes):
            end, back = heapq.heappop(ends)
            start, free = max(start, end), free + back
        free -= nodes
        heapq.heappush(ends, (start + run, nodes))
        user = USERS[int(rng.integers(len(USERS)))]
        begin = int(start)
        times = f"{int(submit)}|{int(submit)}|{begin}|{begin + run}|{run}|{limit}"
        sizes = f"{nodes}|{nodes}|{nodes * 16}"
        print(f"{job}|{user}|{user}|batch|{times}|{sizes}|COMPLETED|job{job % 7}")


if __name__ == "__main__":
    main()
