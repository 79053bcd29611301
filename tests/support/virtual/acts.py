"""What happens in a world: users' requests and faults, made from a seed, printed as Python."""

from __future__ import annotations

import random
from math import inf

import msgspec

from virtual.policy import FAULTS, composed

POLICIES = (
    "fifo",
    "array-share",
    "backfill-share",
    "easy-share",
    "conservative",
    "easy",
)
STRATEGIES = ("warm", "merge", "restart", "spawn")


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A launcher line: so many steps, and their time on one rank.

    Attributes:
        saves: whether it writes checkpoints and goes on from them.
        dies_at: the step at which a rank dies, 0 for none.
        code: the program's exit code.
    """

    steps: int
    step_s: float
    strategy: str = "warm"
    saves: bool = False
    dies_at: int = 0
    code: int = 0


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a script does, in order: it sleeps, or runs a launcher line; then its own exit code.

    Attributes:
        stubborn: whether the script ignores SIGTERM.
    """

    parts: tuple[float | Line, ...]
    code: int = 0
    stubborn: bool = False


class Act(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that happens at a time, in seconds from the beginning."""

    at_s: float


# --- users ----------------------------------------------------------------------------------------


class Submit(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A submission, repeated until it is answered; its key names its jobs in other acts."""

    key: str
    nodes: tuple[int, int]
    plan: Plan
    mode: str = "flexible"
    tasks: int = 1
    requeue: bool | None = None
    hold: bool = False
    time_s: float | None = None
    after: str = ""
    survive: str = ""


class Ask(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A request about a job of a submission (its first, second, ...), sent once.

    Without a submission it is about one of the jobs for which it has a sense at that time.
    """

    what: str
    key: str = ""
    task: int = 0
    size: int | None = None
    strategy: str | None = None


class Node(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A node is drained or given back."""

    what: str
    node: int


class SetPolicy(Act, frozen=True, omit_defaults=True, kw_only=True):
    """Another policy decides."""

    policy: str


class SetCap(Act, frozen=True, omit_defaults=True, kw_only=True):
    """The power of the cluster is bounded, or no longer (None)."""

    watts: float | None


class Look(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A user reads all jobs and nodes."""


class Wait(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A user waits until the jobs of a submission have ended."""

    key: str


# --- faults ---------------------------------------------------------------------------------------


class Kill(Act, frozen=True, omit_defaults=True, kw_only=True):
    """The daemon is killed so many of its points later, and started again after a time.

    Attributes:
        again: at which point of their starts the next daemons are killed.
        power: whether the machine loses its power: no process goes on, and what was not on disk
            may be lost.
    """

    points: int
    away_s: float
    again: tuple[int, ...] = ()
    power: bool = False


class Freeze(Act, frozen=True, omit_defaults=True, kw_only=True):
    """The daemon is stopped for a time (SIGSTOP)."""

    for_s: float


class Process(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A process dies (with its shell), or is stopped for a time, which may be infinite."""

    which: int
    how: str
    for_s: float = 0.0


class Victim(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A process of a job with copies in memory dies: a ``rank``, a ``keeper`` or a ``script``."""

    which: int
    what: str = "rank"


class Network(Act, frozen=True, omit_defaults=True, kw_only=True):
    """For a time messages are lost, answered in vain, late or sent twice, by these chances."""

    for_s: float
    lost: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    twice: float = 0.0


class Disk(Act, frozen=True, omit_defaults=True, kw_only=True):
    """For a time the disk is full, or flushes take longer."""

    for_s: float
    full: bool = False
    slow_s: float = 0.0


class Clock(Act, frozen=True, omit_defaults=True, kw_only=True):
    """The time of day is set."""

    by_s: float


class Forks(Act, frozen=True, omit_defaults=True, kw_only=True):
    """For a time no process can be started."""

    for_s: float


class Meter(Act, frozen=True, omit_defaults=True, kw_only=True):
    """The agent of a node is silent for a time, or is started anew."""

    node: int
    for_s: float


class Controller(Act, frozen=True, omit_defaults=True, kw_only=True):
    """For a time Slurm's commands fail, by these chances.

    Attributes:
        refuses: the controller cannot be reached.
        mute: it does what it is asked, and its answer is lost.
        hangs: the command does not end; the controller may have done it.
    """

    for_s: float
    refuses: float = 0.0
    mute: float = 0.0
    hangs: float = 0.0


class SlurmJob(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A job of Slurm's, a donor too, is cancelled from outside."""

    which: int


class Taken(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A job of another user has a node for a time, as soon as it is free."""

    node: int
    for_s: float


class Host(Act, frozen=True, omit_defaults=True, kw_only=True):
    """A host fails, and is back after a time.

    Attributes:
        how: it loses its ``power``, is ``cut`` off, or ``paused``; its ``agent`` dies.
    """

    node: int
    for_s: float
    how: str = "power"


class Setup(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cluster, and the options of its daemon.

    Attributes:
        engine: where jobs run: "" for one machine, ``slurm``, ``hosts`` for others by ssh.
        survivors: whether jobs have copies in memory.
        mild: whether faults are those after which every such job goes on.
    """

    nodes: int
    policy: str = "fifo"
    keep: int | None = None
    stall_s: float | None = None
    meters: bool = False
    slots: int = 1
    engine: str = ""
    survivors: bool = False
    mild: bool = False


ENGINES = ("", "slurm", "hosts")


def made(seed: int, hours: float, faults: bool = True) -> tuple[Setup, list[Act]]:
    """Return a cluster and what happens there."""
    rng = random.Random(f"world {seed}")
    setup = Setup(
        nodes=rng.choice((2, 3, 4, 4, 8)),
        policy=rng.choice(POLICIES),
        keep=rng.choice((None, 300)),
        stall_s=rng.choice((None, 60.0)),
        meters=rng.random() < 0.4,
    )
    engine = ENGINES[seed % len(ENGINES)]
    if engine:
        setup = msgspec.structs.replace(setup, engine=engine, meters=False)
    acts: list[Act] = _users(rng, setup, 3600.0 * hours)
    if faults:
        acts += _faults(rng, setup, 3600.0 * hours, acts)
    if faults and engine:
        acts += _engine_faults(rng, setup, 3600.0 * hours)
    if engine:
        acts += _elastic(rng, setup, 3600.0 * hours)
    return setup, sorted(acts, key=lambda act: act.at_s)


def survivors(seed: int, hours: float) -> tuple[Setup, list[Act]]:
    """Return a cluster whose jobs have copies in memory, and what happens there.

    After the faults of every other seed all jobs go on.
    """
    rng = random.Random(f"survivors {seed}")
    setup = Setup(
        nodes=rng.choice((3, 4, 4, 6, 8)),
        policy=rng.choice(POLICIES),
        keep=rng.choice((None, 300)),
        engine=("hosts", "hosts", "")[seed // 2 % 3],
        survivors=True,
        mild=seed % 2 == 0,
    )
    acts = _survivors(rng, setup, 3600.0 * hours)
    times = [act.at_s for act in acts if isinstance(act, Ask)]
    faults = _mild_faults if setup.mild else _deaths
    acts += faults(rng, setup, 3600.0 * hours, times)
    return setup, sorted(acts, key=lambda act: act.at_s)


def _survivors(rng: random.Random, setup: Setup, until_s: float) -> list[Act]:
    acts, at_s, every_s = list[Act](), 0.0, rng.choice((20.0, 60.0, 150.0))
    while (at_s := at_s + rng.expovariate(1.0 / every_s)) < until_s:
        key, most = f"k{len(acts)}", rng.randint(2, setup.nodes)
        line = Line(
            rng.choice((100, 400, 1000)),
            rng.choice((0.2, 0.5)),
            rng.choice(STRATEGIES[:3] if setup.mild else STRATEGIES),
            saves=rng.random() < 0.4,
            dies_at=0 if setup.mild else rng.choice((0, 0, 0, 0, 0, 0, 40)),
        )
        parts: tuple[float | Line, ...] = rng.choice(((line,), (line,), (2.0, line), (line, line)))
        mode = rng.choice(("malleable", "flexible"))
        wide = setup.mild or rng.random() < 0.8
        submit = Submit(
            at_s=at_s,
            key=key,
            nodes=(1 if wide else most, most),
            plan=Plan(parts),
            mode=mode if wide else rng.choice(("fixed", "moldable", mode)),
            requeue=True if setup.mild else rng.choice((None, True, False)),
            survive=rng.choice(("1", "auto")) if setup.mild or rng.random() < 0.9 else "",
        )
        acts.append(submit)
        for _ in range(rng.choice((0, 1, 2, 4))):
            later_s, size = rng.uniform(2.0, 90.0), rng.choice((None, *range(1, setup.nodes + 1)))
            acts.append(Ask(at_s=at_s + later_s, what="resize", key=key, size=size))
        if rng.random() < 0.2:
            later_s = rng.uniform(2.0, 60.0)
            acts.append(Ask(at_s=at_s + later_s, what="suspend", key=key))
            later_s += rng.choice((0.5, 5.0, 30.0))
            acts.append(Ask(at_s=at_s + later_s, what="continue", key=key))
        if rng.random() < 0.2:
            what, later_s = rng.choice(("cancel", "cancel", "requeue")), rng.uniform(2.0, 90.0)
            acts.append(Ask(at_s=at_s + later_s, what=what, key=key))
        if rng.random() < 0.1:
            node, later_s = rng.randrange(setup.nodes), rng.uniform(0.0, 90.0)
            acts.append(Node(at_s=at_s + later_s, what="drain", node=node))
            acts.append(Node(at_s=at_s + later_s + 60.0, what="resume", node=node))
        acts.append(Look(at_s=at_s + rng.uniform(0.0, 60.0)))
    return acts


SOON_S = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0)
"""Times after a request, or after another fault, at which a fault happens."""


def _mild_faults(rng: random.Random, setup: Setup, until_s: float, times: list[float]) -> list[Act]:
    """Return deaths of ranks, of keepers and of one host, and kills of the daemon in between."""
    acts, at_s, every_s = list[Act](), 20.0, rng.choice((10.0, 40.0))
    while (at_s := at_s + 20.0 + rng.expovariate(1.0 / every_s)) < until_s:
        near = [time_s for time_s in times if at_s <= time_s < at_s + 60.0]
        if near and rng.random() < 0.7:
            at_s = near[0] + rng.choice(SOON_S)
        kind, which = rng.random(), rng.randrange(100)
        if kind < 0.45:
            acts.append(Victim(at_s=at_s, which=which))
            if rng.random() < 0.3:
                acts.append(Victim(at_s=at_s + rng.choice(SOON_S), which=which))
        elif kind < 0.65:
            acts.append(Victim(at_s=at_s, which=which, what="keeper"))
            at_s += 60.0
        elif setup.engine and kind < 0.9:
            for_s = rng.choice((40.0, 60.0, 120.0))
            how, node = rng.choice(("power", "power", "cut")), rng.randrange(setup.nodes)
            acts.append(Host(at_s=at_s, node=node, for_s=for_s, how=how))
            if rng.random() < 0.4:
                acts.append(Victim(at_s=at_s + rng.choice(SOON_S), which=which))
        if rng.random() < 0.4:
            points = rng.choice((1, 2, 5, 20)) * rng.randint(1, 5)
            near_s, away_s = at_s + rng.choice((-0.1, *SOON_S)), rng.choice((0.0, 0.0, 1.0))
            acts.append(Kill(at_s=near_s, points=points, away_s=away_s))
        if (acts and isinstance(acts[-1], Host)) or kind >= 0.65:
            at_s += 240.0
    return acts


def _deaths(rng: random.Random, setup: Setup, until_s: float, times: list[float]) -> list[Act]:
    """Return deaths of ranks, keepers, scripts and hosts, close to each other, and other faults."""
    acts, every_s, last_s = list[Act](), rng.choice((8.0, 20.0, 60.0)), 0.0
    begun_s = 0.0
    while (begun_s := begun_s + rng.expovariate(1.0 / every_s)) < until_s:
        at_s, kind, which = begun_s, rng.random(), rng.randrange(100)
        if times and kind < 0.3:
            at_s = rng.choice(times) + rng.choice(SOON_S)
        elif last_s and kind < 0.6:
            at_s = last_s + rng.choice(SOON_S)
        last_s, for_s = at_s, rng.choice((0.5, 2.0, 8.0, 20.0, 100.0))
        match rng.randrange(12):
            case 0 | 1 | 2:
                acts.append(Victim(at_s=at_s, which=which))
            case 3 | 4:
                acts.append(Victim(at_s=at_s, which=which, what=rng.choice(("keeper", "script"))))
            case 5 | 6 | 7 if setup.engine:
                for _ in range(rng.choice((1, 1, 2))):
                    how = rng.choice(("power", "power", "cut", "paused", "agent"))
                    node = rng.randrange(setup.nodes)
                    acts.append(Host(at_s=at_s, node=node, for_s=4 * for_s, how=how))
            case 8 | 9:
                kill = Kill(
                    at_s=at_s,
                    points=rng.choice((1, 2, 5, 20, 100)) * rng.randint(1, 5),
                    away_s=rng.choice((0.0, 0.0, 1.0, 8.0, 20.0)),
                    again=tuple(rng.randint(1, 40) for _ in range(rng.choice((0, 0, 1)))),
                    power=rng.random() < 0.1,
                )
                acts.append(kill)
            case 10:
                chances = {name: rng.choice((0.0, 0.1, 0.5)) for name in ("lost", "late", "twice")}
                acts.append(Network(at_s=at_s, for_s=for_s, **chances))
            case _:
                acts.append(
                    rng.choice(
                        (
                            Freeze(at_s=at_s, for_s=for_s),
                            Forks(at_s=at_s, for_s=for_s),
                            Disk(at_s=at_s, for_s=min(for_s, 8.0), full=True),
                            Process(at_s=at_s, which=which, how="stops", for_s=for_s),
                        )
                    )
                )
    return acts


def _users(rng: random.Random, setup: Setup, until_s: float) -> list[Act]:
    acts, at_s, keys = list[Act](), 0.0, list[str]()
    every_s = rng.choice((8.0, 15.0, 30.0))
    while (at_s := at_s + rng.expovariate(1.0 / every_s)) < until_s:
        if rng.random() < 0.002:
            at_s += rng.uniform(600.0, 20_000.0)  # a night
        key = rng.choice(keys[-6:]) if keys else ""
        kind = rng.random()
        if kind < 0.45 or not key:
            keys.append(f"s{len(keys) + 1}")
            acts.append(_submission(rng, setup, at_s, keys))
        elif kind < 0.62:
            size = rng.choice((None, *range(1, setup.nodes + 1)))
            strategy = None if size is None else rng.choice((None, *STRATEGIES))
            own = key if rng.random() < 0.2 else ""
            task = rng.randrange(12)
            acts.append(
                Ask(at_s=at_s, what="resize", key=own, task=task, size=size, strategy=strategy)
            )
        elif kind < 0.80:
            what = rng.choice(("cancel", "hold", "release", "requeue", "suspend", "continue"))
            own = key if rng.random() < 0.3 else ""
            acts.append(Ask(at_s=at_s, what=what, key=own, task=rng.randrange(12)))
        elif kind < 0.86:
            acts.append(
                Node(
                    at_s=at_s,
                    what=rng.choice(("drain", "resume", "resume")),
                    node=rng.randrange(setup.nodes),
                )
            )
        elif kind < 0.88:
            acts.append(SetPolicy(at_s=at_s, policy=_policy(rng)))
        elif kind < 0.90:
            acts.append(
                SetCap(
                    at_s=at_s,
                    watts=rng.choice(
                        (None, 6.0 * setup.nodes, 7.5 * setup.nodes, 9.0 * setup.nodes)
                    ),
                )
            )
        elif kind < 0.95:
            acts.append(Wait(at_s=at_s, key=key))
        else:
            acts.append(Look(at_s=at_s))
    return acts


def _elastic(rng: random.Random, setup: Setup, until_s: float) -> list[Act]:
    """Return long jobs, and their users' resizes."""
    acts, at_s = list[Act](), 0.0
    every_s = rng.choice((100.0, 300.0, 1000.0))
    while (at_s := at_s + rng.expovariate(1.0 / every_s)) < until_s:
        key, strategy = f"e{len(acts)}", rng.choice(STRATEGIES)
        line = Line(400, 0.4, strategy, saves=rng.random() < 0.7)
        acts.append(Submit(at_s=at_s, key=key, nodes=(1, setup.nodes), plan=Plan((line,))))
        for _ in range(rng.randint(1, 4)):
            size, later_s = rng.randint(1, setup.nodes), rng.uniform(5.0, 120.0)
            acts.append(Ask(at_s=at_s + later_s, what="resize", key=key, size=size))
    return acts


def _submission(rng: random.Random, setup: Setup, at_s: float, keys: list[str]) -> Submit:
    most = rng.randint(1, setup.nodes)
    return Submit(
        at_s=at_s,
        key=keys[-1],
        nodes=(rng.randint(1, most), most),
        plan=_plan(rng),
        mode=rng.choice(("fixed", "moldable", "malleable", "flexible", "flexible")),
        tasks=rng.choice((1, 1, 1, 3)),
        requeue=rng.choice((None, True, True, False)),
        hold=rng.random() < 0.1,
        time_s=rng.choice((None, None, 3600.0, 60.0)),
        after=rng.choice(keys[-4:-1]) if len(keys) > 1 and rng.random() < 0.1 else "",
    )


def _policy(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(POLICIES)
    admission = rng.choice(("in-order", "easy"))
    return composed(rng.choice(FAULTS), rng.choice((1, 2, 4)), admission)


def _plan(rng: random.Random) -> Plan:
    if rng.random() < 0.4:
        sleeps_s, code = rng.choice((0.5, 5.0, 5.0, 40.0)), rng.choice((0, 0, 0, 3))
        return Plan((sleeps_s,), code, stubborn=rng.random() < 0.2)
    lines = tuple(
        Line(
            rng.choice((10, 100, 400)),
            rng.choice((0.02, 0.05, 0.2)),
            rng.choice(STRATEGIES),
            rng.random() < 0.5,
            rng.choice((0, 0, 0, 0, 0, 50)),
            rng.choice((0, 0, 0, 0, 4)),
        )
        for _ in range(rng.choice((1, 1, 2)))
    )
    return Plan(lines, rng.choice((0, 0, 0, 0, 3)))


def _faults(rng: random.Random, setup: Setup, until_s: float, requests: list[Act]) -> list[Act]:
    acts, at_s, every_s = list[Act](), 0.0, rng.choice((60.0, 300.0, 1200.0))
    ends = [act for act in requests if isinstance(act, Ask) and act.what in ("cancel", "requeue")]
    while (at_s := at_s + rng.expovariate(1.0 / every_s)) < until_s:
        for_s = rng.choice((0.5, 5.0, 30.0, 120.0))
        match rng.randrange(12):
            case 0 | 1 | 2:
                some = ends if ends and rng.random() < 0.3 else requests
                near_s = rng.choice(some).at_s + rng.choice((0.001, 0.01, 0.1, 2.0))
                kill = Kill(
                    at_s=near_s if rng.random() < 0.6 else at_s,
                    points=rng.choice((1, 2, 5, 20, 100)) * rng.randint(1, 5),
                    away_s=rng.choice((0.0, 0.0, 1.0, 20.0, 200.0)),
                    again=tuple(rng.randint(1, 40) for _ in range(rng.choice((0, 0, 1, 3)))),
                    power=rng.random() < 0.4,
                )
                acts.append(kill)
                if kill.away_s >= 20.0 and rng.random() < 0.5:
                    acts.append(_death(rng, kill.at_s + kill.away_s / 2.0))
            case 3:
                acts.append(Freeze(at_s=at_s, for_s=for_s))
            case 4 | 5 | 6:
                if rng.random() < 0.67:
                    acts.append(_death(rng, at_s))
                else:
                    stops_s = rng.choice((1.0, 20.0, 100.0, inf))
                    which = rng.randrange(100)
                    acts.append(Process(at_s=at_s, which=which, how="stops", for_s=stops_s))
            case 7 | 8:
                chances = {
                    name: rng.choice((0.0, 0.1, 0.5))
                    for name in ("lost", "unanswered", "late", "twice")
                }
                acts.append(Network(at_s=at_s, for_s=for_s, **chances))
            case 9:
                full = rng.random() < 0.6
                acts.append(Disk(at_s=at_s, for_s=for_s, full=full, slow_s=0.0 if full else 0.5))
            case 10:
                acts.append(
                    Clock(at_s=at_s, by_s=rng.choice((-86_400.0, -3600.0, -5.0, 5.0, 3600.0)))
                )
            case _:
                acts.append(
                    Forks(at_s=at_s, for_s=for_s)
                    if rng.random() < 0.3
                    else Meter(at_s=at_s, node=rng.randrange(setup.nodes), for_s=for_s * 3)
                )
    return acts


def _death(rng: random.Random, at_s: float) -> Process:
    how = rng.choice(("dies", "its shell dies"))
    return Process(at_s=at_s, which=rng.randrange(100), how=how)


def _engine_faults(rng: random.Random, setup: Setup, until_s: float) -> list[Act]:
    acts, at_s, every_s = list[Act](), 0.0, rng.choice((60.0, 300.0, 1200.0))
    while (at_s := at_s + rng.expovariate(1.0 / every_s)) < until_s:
        node, for_s = rng.randrange(setup.nodes), rng.choice((2.0, 8.0, 20.0, 100.0, 400.0))
        if setup.engine == "hosts":
            how = rng.choice(("power", "cut", "cut", "paused", "agent"))
            acts.append(Host(at_s=at_s, node=node, for_s=for_s, how=how))
            continue
        match rng.randrange(5):
            case 0 | 1:
                names = "refuses", "mute", "hangs"
                chances = {name: rng.choice((0.0, 0.0, 0.2, 1.0)) for name in names}
                acts.append(Controller(at_s=at_s, for_s=for_s, **chances))
            case 2:
                acts.append(SlurmJob(at_s=at_s, which=rng.randrange(100)))
            case 3:
                acts.append(Taken(at_s=at_s, node=node, for_s=for_s))
            case _:
                acts.append(Host(at_s=at_s, node=node, for_s=for_s))
    return acts
