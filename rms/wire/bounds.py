"""Numbers and texts that messages may hold, so that no sum, loop or file grows out of hand."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=10**9)]
"""Ranks, nodes, launches, resizes."""

Nodes = Annotated[int, Meta(ge=1, le=100_000)]
"""That a job asks for."""

Priority = Annotated[int, Meta(ge=-2_147_483_645, le=2_147_483_645)]
"""Priority of a job, within the bounds of sbatch --nice."""

Steps = Annotated[int, Meta(ge=0, le=2**53)]
"""Steps, bytes: whole numbers that JSON's readers keep."""

Seconds = Annotated[float, Meta(ge=0.0, le=1e11)]
"""Spans, and times since 1970."""

Figure = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""What a job has measured, by clocks that may be set back."""

Amount = Annotated[float, Meta(ge=0.0, le=1e12)]
"""Watts, GB/s."""

NODE_LIMIT_W = 15_000.0
"""Default power limit of a node: more than eight of the largest GPUs and their host draw."""

Joules = Annotated[float, Meta(ge=0.0, le=1e18)]

Name = Annotated[str, Meta(max_length=1024)]
"""Names, ids, words that select."""

Text = Annotated[str, Meta(max_length=10_000)]
"""Paths, and what stands in a line."""

Selection = Annotated[str, Meta(max_length=1 << 18)]
"""Lists of nodes, of an array's tasks."""

Words = Annotated[tuple[Text, ...], Meta(max_length=10_000)]
"""Of a command line."""

Environment = Annotated[dict[str, str], Meta(max_length=10_000)]

Script = Annotated[str, Meta(max_length=1 << 22)]
"""A file: as long as Slurm's own may be (``max_script_size``)."""
