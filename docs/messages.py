"""The page of all messages: each sentence that the code raises, read from its source.

A sentence has a place in the code, so its package and topic are known (:data:`TOPICS`); a kind of
error has an exit status (:data:`KINDS`). Where the sentence itself does not say what to do,
:data:`REMEDIES` does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

PACKAGES = ("dmr", "mpdata", "rms")
SHORTEST = 6
"""Least length of a sentence; shorter texts are parts of one."""

ROLLBACK, REASON, INSIDE = "rollback", "reason", "internal"
KINDS = {
    **dict.fromkeys(
        ["UsageError", "InputError", "FileError", "ScriptError", "ProfileError", "CommandError"],
        "2",
    ),
    **dict.fromkeys(["ServerError", "PolicyError", "MissingPartError", "NoProgramError"], "2"),
    **dict.fromkeys(["ArgumentTypeError", "ServeError", "JournalError", "StrategyError"], "2"),
    **dict.fromkeys(["GridError", "ProtocolError", "UnknownJobError", "ExchangeError"], "2"),
    **dict.fromkeys(["SandboxError", "DamagedError", "JournalFullError", "ValueError"], "2"),
    **dict.fromkeys(["CollectiveError", "TerminatedError", "BenchError", "CheckError"], "1"),
    **dict.fromkeys(["ProfilingError", "UnreachableError", "OutputError", "OSError"], "1"),
    **dict.fromkeys(["RolledBackError", "ChannelError", "PeerGoneError"], ROLLBACK),
    **dict.fromkeys(["TransferError", "OwnerError", "ValuesError"], ROLLBACK),
    **dict.fromkeys(["SlurmError", "LaunchError", "MeterError", "FrequencyError"], REASON),
    **dict.fromkeys(["BrokenCheckpointError", "RemoteError", "TaskDroppedError"], REASON),
    **dict.fromkeys(["RuleError", "TransitionError", "BalanceError", "SnapshotError"], INSIDE),
    **dict.fromkeys(["RuntimeError", "ReplacedAgentError", "StateError"], INSIDE),
}
"""Exit status of a command that ends with such an error, or what happens instead."""

LEFT_OUT = {
    "AttributeError",
    "KeyError",
    "TypeError",
    "AssertionError",
    "SystemExit",
    "Left",
    "outside_block",
}
"""Errors of Python's own protocols and ends of processes; they have no sentence for a user."""


@dataclass(frozen=True)
class Topic:
    """Messages of one part of the code, with their usual cause and what to do."""

    title: str
    places: tuple[str, ...]
    cause: str
    remedy: str


TOPICS = (
    Topic(
        "Command and program of dmr",
        ("dmr/cli", "dmr/api", "dmr/application", "dmr/errors", "dmr/bench", "dmr/check"),
        "A program calls dmr in another order than the library expects, or an option of `dmr` has "
        "a wrong value.",
        "Compare the program with the tutorial; `dmr check` runs it plain and resized.",
    ),
    Topic(
        "Plan, sizes and steps",
        ("dmr/plan", "dmr/loop"),
        "The plan of a run (`dmr.Plan`, `DMR_RESIZE_AT`, `mpdata run --resize-at`) contradicts "
        "itself or the world that runs.",
        "Correct the plan; both worlds of a resize need the same fields and options.",
    ),
    Topic(
        "Fields, lists and state",
        ("dmr/data", "dmr/state", "dmr/world"),
        "Data cannot be cut, moved or stored as declared.",
        "Correct the declaration in `fields()`, or keep the value out of `run.state`.",
    ),
    Topic(
        "Resizes",
        ("dmr/resize", "dmr/boot", "dmr/wire"),
        "A new world could not start, or did not answer in time. The old world continues.",
        "`dmr probe` shows what MPI can do here; `Plan.deadlines` sets the deadlines.",
    ),
    Topic(
        "Checkpoints",
        ("dmr/checkpoint",),
        "A file of a checkpoint is missing, changed or of another run.",
        "Keep `checkpoint-STEP.h5` and its folder together; an older whole checkpoint is used.",
    ),
    Topic("Other messages of dmr", ("dmr",), "See the sentence.", "See the sentence."),
    Topic(
        "Options of mpdata",
        ("mpdata/cli", "mpdata/options", "mpdata/backends", "mpdata/study", "mpdata/parallel"),
        "An option has a wrong value, or two options exclude each other.",
        "`mpdata run --help` lists the options, `mpdata cases` the cases.",
    ),
    Topic(
        "Fields, flows and cases of mpdata",
        ("mpdata/cases", "mpdata/flow", "mpdata/solver", "mpdata/grid"),
        "An array has another shape than the grid requires, a value is not finite, or the flow is "
        "not stable.",
        "Correct the array ([your own arrays](../mpdata/own-arrays.md)); use a smaller time step "
        "where the outgoing Courant numbers are too large.",
    ),
    Topic(
        "Kernels and GPUs of mpdata",
        ("mpdata/numerics",),
        "CuPy or a GPU is missing, or a block does not fit the kernel.",
        "Install the extra `cuda12` or `cuda13`, or choose `--backend numba`.",
    ),
    Topic("Other messages of mpdata", ("mpdata",), "See the sentence.", "See the sentence."),
    Topic(
        "Options of rms",
        ("rms/cli", "rms/client", "rms/plots"),
        "An option has a wrong value, or the daemon does not answer.",
        "`rms COMMAND --help` lists the options; `rms serve` starts the daemon, `RMS_SERVER` and "
        "`RMS_STATE` name another one.",
    ),
    Topic(
        "Job scripts and submission",
        ("rms/formats/jobscript", "rms/formats/values", "rms/daemon/jobs"),
        "A line `#RMS` or `#SBATCH`, or an option of `rms submit`, cannot be met.",
        "Correct the line; `rms nodes` shows what the cluster has.",
    ),
    Topic(
        "Cluster, workload and price files",
        ("rms/formats/config", "rms/formats/prices", "rms/formats/energy"),
        "A key or value of a TOML or CSV file is not one of the format.",
        "The message names file and line; the keys are in [files](files.md).",
    ),
    Topic(
        "Logs of jobs and traces",
        ("rms/formats/joblog", "rms/formats/swf"),
        "A row of an accounting file has not the expected columns.",
        "Print the log with the line that `rms simulate --help` shows.",
    ),
    Topic(
        "Profiles",
        ("rms/formats/profiles", "rms/studies/profile", "rms/studies/bandwidth"),
        "A profile is missing or of other nodes, or a command could not be measured.",
        "Measure it again with `rms profile`, or submit with `--profile none`.",
    ),
    Topic(
        "Policies and rules",
        ("rms/core/policies", "rms/core/rules", "rms/core/scheduler", "rms/core"),
        "A policy file names an unknown part or parameter, or a policy decided what no policy may.",
        "Compare the file with those of `rms/core/policies`; a decision that breaks a rule is "
        "replaced by the default policy and logged.",
    ),
    Topic(
        "The daemon and its journal",
        ("rms/daemon",),
        "Another daemon uses the state folder, the folder is open to others, or the journal cannot "
        "be read or written.",
        "Follow the message; `rms serve --state DIR` takes another folder.",
    ),
    Topic(
        "Slurm",
        ("rms/launch/slurm",),
        "Slurm refuses a command or does not answer.",
        "`rms serve --engine slurm --check` states what the site allows; `rms explain ID` repeats "
        "Slurm's words.",
    ),
    Topic(
        "Processes",
        ("rms/launch",),
        "A program could not be started on this machine.",
        "Check that the program exists on `PATH` and may be executed.",
    ),
    Topic(
        "Meters and frequencies",
        ("rms/power",),
        "A meter cannot be read, or clocks cannot be set. The model is used instead.",
        "`rms serve --meters NAME` chooses a meter; RAPL needs read access to "
        "`/sys/class/powercap`.",
    ),
    Topic(
        "Kernels and tasks",
        ("rms/kernels",),
        "A task does not fit the devices, or its program has lost the daemon.",
        "Correct the task; without a daemon a collection runs its tasks by itself.",
    ),
    Topic(
        "Simulator and published experiments",
        ("rms/sim", "rms/studies"),
        "Data of an experiment is missing, or an input has not what the simulation needs.",
        "`--data DIR` or `MALLEABLE_DATA` names the folder of data that is not shipped.",
    ),
    Topic(
        "Files, pages and connections",
        ("rms/wire", "rms/web"),
        "A file cannot be written, or a message is not of this version.",
        "Install one version on both sides; choose another file.",
    ),
    Topic("Other messages of rms", ("rms",), "See the sentence.", "See the sentence."),
)

REMEDIES = (
    (r"mpiexec on PATH", "Install the extra `mpich` or load the module of your MPI."),
    (
        r"not ready within",
        "Raise `Deadlines.boot_s` (`rms serve --boot-deadline`); keep what a program compiles in a "
        "folder that all nodes share.",
    ),
    (r"MPI_Comm_spawn failed", "Use MPICH, or an RMS and the strategy `warm`; see `dmr probe`."),
    (r"new world ended with|world is gone", "Read the output of the new ranks above the message."),
    (r"did not answer|no connection within|have not sent|nothing moved", "Raise `Plan.deadlines`."),
    (r"MPI_Comm_connect", "The run uses `restart` from then on; nothing is to do."),
    (r"cannot be (pickled|copied|merged|split)", "Store plain values in `run.state`, or a field."),
    (r"nested too deep", "Flatten the value."),
    (r"not trusted", "The checkpoint must belong to this user and not be writable by others."),
    (r"not enough memory", "Use `merge`, or more nodes."),
    (r"ended by SIGTERM", "Continue with `--restart` if the run writes checkpoints."),
    (r"data did not arrive whole", "A hash differs: check memory and network; the run continues."),
    (r"has another shape|changed since", "Delete the broken checkpoint."),
    (r"ffmpeg", "Install ffmpeg, or write a `.gif`."),
    (r"backend cupy", "Choose `--backend numba`, or install a GPU's extra and driver."),
    (r"cannot listen on", "Choose another port or path."),
    (r"cannot write a report", "Choose another folder."),
    (r"GRES", "The job keeps its size; use `--checkpoint-dir D --restart` to be relaunched."),
    (r"no longer RUNNING", "Nothing is to do: Slurm has ended the job."),
    (r"controller does not answer", "Nothing is to do: it is tried again."),
    (r"recording .* has ended", "Nothing is to do: the model follows."),
    (r"meter command", "Run the command by hand and compare its output with `rms serve --help`."),
    (r"earlier limits could not be restored", "Restore them by hand; the file names them."),
    (r"another process holds it", "End the other daemon or profile that sets frequencies."),
    (r"no answer from|does not answer", "Start `rms serve`, or name its address by `RMS_SERVER`."),
    (r"chmod 700", "Run the command that the message names."),
    (r"cells of the field arrived wrong", "A defect: report it with `dmr probe --json -`."),
)
"""What to do, by words of a message."""


@dataclass(frozen=True)
class Message:
    """A sentence of the code, with {names} for what is filled in."""

    sentence: str
    kind: str
    status: str
    file: str

    @property
    def anchor(self) -> str:
        """Return a name that lasts as long as the sentence."""
        return "m-" + sha256(self.sentence.encode()).hexdigest()[:8]

    @property
    def remedy(self) -> str:
        """Return what to do where a table states it, else "" ."""
        return next((text for words, text in REMEDIES if re.search(words, self.sentence)), "")


def messages(root: Path) -> list[Message]:
    """Return all sentences of the packages, in the order of their files; each once."""
    trees = {
        path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }
    everywhere: dict[str, str] = {}
    for tree in trees.values():
        everywhere |= {name: "" if name in everywhere else text for name, text in _constants(tree)}
    seen: dict[str, Message] = {}
    for file, tree in trees.items():
        for message in _of_file(tree, file, everywhere | dict(_constants(tree))):
            seen.setdefault(message.sentence, message)
    return list(seen.values())


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the constants of a module that are texts or numbers."""
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, value = node.targets[0].id, node.value
        number = isinstance(value, ast.Constant) and isinstance(value.value, int | float)
        text = ast.unparse(value) if number else sentence_of(value, {})
        if name.isupper() and text:
            yield name, text


def _of_file(tree: ast.Module, file: str, texts: dict[str, str]) -> Iterator[Message]:
    raised = set()
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
            continue
        kind = ast.unparse(node.exc.func).rpartition(".")[2]
        for argument in node.exc.args:
            raised |= {id(child) for child in ast.walk(argument)}
        if kind in LEFT_OUT:
            continue
        sentences = [sentence_of(argument, texts) for argument in node.exc.args]
        for sentence in filter(None, sentences):
            if len(sentence) >= SHORTEST and not re.fullmatch(
                r"[^a-z]*(\{\w+\}[^a-z]*)+", sentence
            ):
                yield Message(sentence, kind, _status(kind, node.exc), file)
    # Refusals that a function returns, and another one raises.
    inside = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr | ast.BinOp)
        for child in ast.walk(node)
        if child is not node
    }
    for node in ast.walk(tree):
        if id(node) in raised or id(node) in inside:
            continue
        sentence = sentence_of(node, texts) if not isinstance(node, ast.Name) else ""
        if sentence and re.search(r"(^|: )expected .* got ", sentence) and "\n" not in sentence:
            yield Message(sentence, "", "2", file)


def _status(kind: str, call: ast.Call) -> str:
    """Return the exit status of an error, which a command's may state itself."""
    numbers = [a.value for a in call.args[1:] if isinstance(a, ast.Constant)]
    numbers += [k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)]
    if kind == "RefusedError":
        return "1" if ast.unparse(call.args[0]) == "503" else "2"
    return next((str(n) for n in numbers if n in (1, 2)), KINDS.get(kind, "1"))


def sentence_of(node: ast.AST, texts: dict[str, str]) -> str:
    """Return a text of the code with {names} for what is filled in; "" for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.Name):
        return texts.get(node.id, "")
    if isinstance(node, ast.JoinedStr):
        return "".join(_part(value, texts) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = sentence_of(node.left, texts), sentence_of(node.right, texts)
        return left + (right or "{...}") if left else ""
    if isinstance(node, ast.IfExp):
        return sentence_of(node.body, texts) or sentence_of(node.orelse, texts)
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".format"):
        whole = sentence_of(getattr(node.func, "value", node), texts)
        return whole.replace("{{", "{").replace("}}", "}")
    return ""


def _part(value: ast.expr, texts: dict[str, str]) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    assert isinstance(value, ast.FormattedValue)
    if isinstance(value.value, ast.Name) and texts.get(value.value.id):
        return texts[value.value.id]
    return "{" + name_of(value.value) + "}"


def name_of(node: ast.expr) -> str:
    """Return a name for a value: the last one of its expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript | ast.Starred):
        return name_of(node.value)
    if isinstance(node, ast.BoolOp):
        return name_of(node.values[0])
    if isinstance(node, ast.BinOp):
        return name_of(node.left)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and not node.args:
            return name_of(node.func.value)
        return name_of(node.args[0]) if node.args else name_of(node.func)
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return name_of(node.generators[0].iter)
    return "..."


def page(root: Path) -> str:
    """Return the page: messages by package and topic."""
    of_topic: dict[str, list[Message]] = {topic.title: [] for topic in TOPICS}
    for message in messages(root):
        best = max(
            (place, topic.title)
            for topic in TOPICS
            for place in topic.places
            if message.file.startswith((f"{place}/", f"{place}.py"))
        )
        of_topic[best[1]].append(message)
    count = sum(map(len, of_topic.values()))
    lines = [
        "# Messages",
        "",
        f"Every sentence with which a command or a library call refuses, {count} in all, read from "
        "the source. A word in braces is filled in. Search this page (Ctrl-F) for the words of a "
        "message that contain no value. A sentence *expected ..., got ...* states what to change.",
        "",
        "| exit | meaning |",
        "|---|---|",
        "| 2 | wrong usage or a wrong file: a command ends with status 2, a call raises |",
        "| 1 | the run or the command failed: status 1 |",
        f"| {ROLLBACK} | a resize is rolled back and the run continues at its old size |",
        f"| {REASON} | it is logged, or the reason of a job (`rms explain ID`) |",
        f"| {INSIDE} | a check inside the program; if you see it, report it |",
        "",
    ]
    for package in PACKAGES:
        lines += [f"## {package}", ""]
        for topic in TOPICS:
            rows = of_topic[topic.title]
            if topic.places[0].partition("/")[0] != package or not rows:
                continue
            lines += [f"### {topic.title}", ""]
            if topic.cause != topic.remedy:
                lines += [f"*Cause.* {topic.cause}", "", f"*What to do.* {topic.remedy}", ""]
            lines += ["| message | exit |", "|---|---|", *map(_row, rows), ""]
    return "\n".join(lines)


def _row(message: Message) -> str:
    text = " ".join(message.sentence.split()).replace("|", "\\|")
    ticks = "``" if "`" in text else "`"
    space = " " if ticks == "``" else ""
    cell = f'<a id="{message.anchor}"></a>{ticks}{space}{text}{space}{ticks}'
    remedy = f"<br>{message.remedy}" if message.remedy else ""
    return f"| {cell}{remedy} | {message.status} |"
