"""Power over time, out of what scripts/gpu has found."""

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

METERS = ("nvidia-smi", "nvml-power", "nvml-power (instant)")
"""By which the ranks are drawn: the first that there is, nvidia-smi as in the paper."""


def draw(found, name, path):
    """Draw P(t) of each length of time by every meter, and one of all numbers of ranks.

    The last as figures 9 and 10 of Iserte & Rojek, there for numbers of nodes.
    """
    panels = [
        (f"the kernel for {row['seconds']:.3g} s", row["curves"])
        for row in found["windows"]
        if "curves" in row
    ]
    ranks = {row["ranks"]: row["curves"] for row in found["ranks"] if "curves" in row}
    if ranks:
        meter = next(one for one in METERS if all(one in curves for curves in ranks.values()))
        curves = {f"ranks: {number}": curves[meter] for number, curves in ranks.items()}
        panels.append((f"mpdata run, all ranks on this GPU, by {meter}", curves))
    if not panels:
        return
    size = (7, 2.5 * len(panels))
    figure, axes = pyplot.subplots(len(panels), 1, figsize=size, squeeze=False)
    for axis, (title, curves) in zip(axes[:, 0], panels, strict=True):
        for label, curve in curves.items():
            axis.plot(*zip(*curve, strict=True), label=label, linewidth=0.8)
        axis.set(title=title, ylabel="W", ylim=(0, None))
        axis.legend(fontsize="small")
    axes[-1, 0].set_xlabel("s")
    figure.suptitle(name)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
