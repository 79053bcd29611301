"""Power over time, as figures 9 and 10 of Iserte & Rojek, out of what scripts/gpu has found."""

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def draw(found, name, path):
    """Draw P(t) of each length of time, and of each number of ranks, by every meter."""
    windows = [row for row in found["windows"] if "curves" in row]
    ranks = [row for row in found["ranks"] if "curves" in row]
    panels = [(f"the kernel for {row['seconds']:.3g} s", row["curves"]) for row in windows]
    panels += [(f"mpdata run, ranks on the GPU: {row['ranks']}", row["curves"]) for row in ranks]
    if not panels:
        return
    size = (7, 2.2 * len(panels))
    figure, axes = pyplot.subplots(len(panels), 1, figsize=size, squeeze=False)
    for axis, (title, curves) in zip(axes[:, 0], panels, strict=True):
        for meter, curve in curves.items():
            axis.plot(*zip(*curve, strict=True), label=meter, linewidth=0.8)
        axis.set(title=title, ylabel="W", ylim=(0, None))
    axes[-1, 0].set_xlabel("s")
    axes[0, 0].legend(fontsize="small")
    figure.suptitle(name)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
