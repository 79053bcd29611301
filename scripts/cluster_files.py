"""What a cluster of namespaces consists of: packages, root folders, configuration, commands."""

import contextlib
import fcntl
import hashlib
import json
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import bootstrap

NETWORK = {"ip": "iproute2", "nsenter": "util-linux", "nft": "nftables", "sshd": "openssh-server"}
SLURM = {
    "munged": "munge",
    "mariadbd": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",  # mariadb-install-db calls it
    "slurmdbd": "slurmdbd",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
}
"""Each tool and the package that has it."""

GRIDENGINE = {
    "sge_qmaster": "gridengine-master",
    "sge_execd": "gridengine-exec",
    "qsub": "gridengine-client",
}

SERVICES = ("munge", "slurmdbd", "slurmctld", "slurmd", "ssh", "gridengine")
POLICY = Path("/usr/sbin/policy-rc.d")  # what Debian's packages ask before they start a service

SUITES = {"22.05": "bookworm", "24.11": "trixie", "newest": "sid"}
"""The release of Debian that has each version of Slurm."""

IN_A_ROOT = (
    *("munge", "slurmctld", "slurmd", "slurm-client", "slurmdbd", "mariadb-server-core"),
    *("mariadb-client-core", "openssh-server", "openssh-client", "iproute2", "procps"),
    *("python3", "python3-venv", "ca-certificates"),
)
"""Packages of a root folder; its content is named by these."""

RECORD = "cluster.json"  # the first file made, the last removed: what makes a folder ours
CPUS = 2  # of each node, whatever the machine has
CONTROLLER, LOGIN = "ctl", "login"

SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost=ctl({ctl})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd@%n.log
PlugStackConfig={folder}/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={ctl}
AccountingStoragePass={folder}/run/munge.sock
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
PropagateResourceLimits=NONE
# The nodes share this machine, so what they claim to have is not what slurmd finds.
SlurmdParameters=config_overrides
ReturnToService=2
# As fast as whole seconds allow: tests wait for these.
SchedulerType=sched/backfill
SchedulerParameters={permit}batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdTimeout=20
SlurmctldTimeout=20
KillWait=2
CompleteWait=0
MinJobAge=300
{gres_types}
SelectType=select/{select}
{select_parameters}
{node_lines}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
DbdHost=ctl
DbdAddr={ctl}
SlurmUser={user}
PidFile={folder}/run/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""

MARIADB_SQL = """\
CREATE DATABASE IF NOT EXISTS slurm;
CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON slurm.* TO slurm@'127.0.0.1';
"""

SSHD_CONFIG = """\
ListenAddress {address}
HostKey {folder}/etc/host_key
AuthorizedKeysFile {folder}/etc/user_key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
AcceptEnv *
Subsystem sftp internal-sftp
MaxStartups 100:30:200
MaxSessions 100
"""

SSH_CONFIG = """\
Host {name}
    HostName {address}
"""
SSH_CONFIG_ALL = """\
Host {names}
    User {user}
    IdentityFile {folder}/etc/user_key
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""

GRIDENGINE_SETUP = """\
set -e
cd "$(mktemp -d)"
qconf -am root > answers 2>&1 || qconf -sm | grep -qx root
qconf -sconf > global
sed -i 's/^min_uid.*/min_uid 0/; s/^min_gid.*/min_gid 0/
    s/^load_report_time.*/load_report_time 00:00:01/
    s/^max_unheard.*/max_unheard 00:00:20/; s#^mailer.*#mailer /bin/true#' global
qconf -Mconf global
qconf -ssconf > scheduler
sed -i 's/^schedule_interval.*/schedule_interval 0:0:1/
    s/^flush_submit_sec.*/flush_submit_sec 1/; s/^flush_finish_sec.*/flush_finish_sec 1/' scheduler
qconf -Msconf scheduler
for host in {nodes}; do qconf -ah $host; done
for host in ctl login {nodes}; do qconf -as $host; done
printf 'group_name @nodes\nhostlist {nodes}\n' > group
qconf -Ahgrp group
cat > environment << end
pe_name            mpi
slots              9999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    \\$round_robin
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
end
qconf -Ap environment
qconf -sq > queue
sed -i 's/^qname.*/qname all.q/; s/^hostlist.*/hostlist @nodes/; s/^pe_list.*/pe_list mpi/
    s/^slots.*/slots {cpus}/; s#^shell .*#shell /bin/bash#; s/^rerun.*/rerun TRUE/
    s/^shell_start_mode.*/shell_start_mode unix_behavior/
    s/^load_thresholds.*/load_thresholds NONE/' queue
qconf -Aq queue
"""
"""Grid Engine's queue all.q and parallel environment mpi; as fast as whole seconds allow."""

CLIENTS = ("sinfo", "squeue", "scontrol", "salloc", "sbatch", "srun", "scancel", "sacct")
CLIENT = """\
#!/bin/sh
# A command of another release: on this machine it runs with the files of host login.
pid=$(cat {folder}/hosts/login/pid 2> /dev/null) || exec {command} "$@"
dir=$PWD; [ -d "/proc/$pid/root$dir" ] || dir=/
exec nsenter --target="$pid" -m -u -r -- env -C "$dir" {command} "$@"
"""

MARIADB = "--no-defaults --datadir={folder}/db --tmpdir={folder}/tmp --user={user}"
# Words are split at spaces.
COMMANDS = {
    "munged": "munged --foreground --force --socket={folder}/run/munge.sock"
    " --key-file={folder}/etc/munge.key --log-file={folder}/log/munged@{host}.log"
    " --pid-file={folder}/run/munged.pid --seed-file={folder}/run/munged.seed",
    "sshd": "/usr/sbin/sshd -D -e -f {folder}/etc/sshd@{host}",
    "tables": f"mariadb-install-db {MARIADB} --skip-test-db"
    " --auth-root-authentication-method=socket",
    "mariadbd": f"mariadbd {MARIADB} --socket={{folder}}/run/db.sock --bind-address=127.0.0.1"
    " --port=3306 --pid-file={folder}/run/mariadbd.pid --skip-name-resolve"
    " --init-file={folder}/etc/init.sql --innodb-lock-wait-timeout=900 --innodb-use-native-aio=0"
    " --innodb-flush-log-at-trx-commit=0 --innodb-buffer-pool-size=64M",
    "slurmdbd": "slurmdbd -D",
    "slurmctld": "slurmctld -D -f {folder}/etc/slurm.conf",
    "slurmd": "slurmd -D -N {host} -f {folder}/etc/slurm.conf",
    "sge_qmaster": "env SGE_ND=1 sge_qmaster",
    "sge_execd": "env SGE_ND=1 sge_execd",
}


def cluster_of(folder):
    """Return the name of the cluster in a folder; no other folder's has it."""
    return "cluster_" + hashlib.sha256(str(folder).encode()).hexdigest()[:8]


# --- packages and root folders ----------------------------------------------------------------


def own_suite():
    """Return the release of Debian that this machine runs, "" for another system."""
    with contextlib.suppress(OSError):
        words = dict(
            line.split("=", 1) for line in Path("/etc/os-release").read_text().split("\n") if line
        )
        if words.get("ID", "").strip('"') == "debian":
            return words.get("VERSION_CODENAME", "").strip('"')
    return ""


def install_missing(tools):
    """Install the packages that have these tools (tool: package), where they are missing."""
    if not missing(tools):
        return
    with (Path(tempfile.gettempdir()) / "rms-cluster-packages.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if packages := missing(tools):
            install(packages)


def missing(tools):
    """Return the packages that are not here."""
    return sorted({package for tool, package in tools.items() if not shutil.which(tool)})


def install(packages):
    """Install packages without a service of theirs being started."""
    if os.getuid() != 0 or not shutil.which("apt-get"):
        bootstrap.fail(
            "expected the tools of a cluster on this machine; install Debian's packages: "
            f"apt-get install --no-install-recommends {' '.join(packages)}"
        )
    print(f"installing {', '.join(packages)} (once) ...", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "-o", "DPkg::Use-Pty=0"]
    with no_service_starts():
        done = [
            subprocess.run([*apt, *words], env=environment, capture_output=True, text=True)
            for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages])
        ]
    for service in set(SERVICES):
        # systemd's links, and by them those of the older init.
        if any(service in package for package in packages):
            subprocess.run(["systemctl", "--quiet", "disable", service], capture_output=True)
    if done[-1].returncode:
        print("".join(step.stderr for step in done), file=sys.stderr)
        bootstrap.fail("apt-get could not install the packages (its words above)")


@contextlib.contextmanager
def no_service_starts():
    """Forbid packages to start their services, in the way Debian has for it."""
    if POLICY.exists() and subprocess.run([POLICY, "slurmd", "start"]).returncode == 101:
        yield  # as in most containers
        return
    kept = POLICY.with_name(f"{POLICY.name}.before-rms-cluster")
    if POLICY.exists() and not kept.exists():
        POLICY.rename(kept)
    try:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink(missing_ok=True)
        if kept.exists():
            kept.rename(POLICY)


def root_of(slurm, gridengine=False):
    """Return the root folder with a version of Slurm: this machine's own, or one that is kept.

    One of another release is made by debootstrap, in about two minutes, and kept by the names of
    its release and packages.
    """
    suite = SUITES.get(slurm, "")
    if slurm == "none" or suite == own_suite():
        install_missing((SLURM if slurm != "none" else {}) | (GRIDENGINE if gridengine else {}))
        return Path("/")
    if gridengine:
        bootstrap.fail(f"expected hosts with this machine's release for Grid Engine, got {suite}")
    install_missing({"debootstrap": "debootstrap"})
    made_of = hashlib.sha256(" ".join((suite, *IN_A_ROOT)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rms-cluster"
    cache.mkdir(parents=True, exist_ok=True)
    root = cache / f"{suite}-{made_of}"
    with (cache / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root
        print(f"making a root folder of Debian {suite} (once) ...", file=sys.stderr, flush=True)
        part = cache / f"{suite}.part"
        shutil.rmtree(part, ignore_errors=True)
        done = subprocess.run(
            [
                *["debootstrap", "--variant=minbase", f"--include={','.join(IN_A_ROOT)}"],
                *[suite, str(part), *mirror()],
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            bootstrap.fail(
                f"expected a root folder of Debian {suite} with Slurm, got none of debootstrap "
                "(its words above)"
            )
        part.rename(root)
    return root


def mirror():
    """Return the mirror that this machine's own packages come from, for debootstrap."""
    with contextlib.suppress(OSError):
        for line in Path("/etc/apt/sources.list.d/debian.sources").read_text().splitlines():
            if line.startswith("URIs:"):
                return line.split()[1:2]
    return []


# --- the plan and its files -------------------------------------------------------------------


def make_plan(folder, args, root):
    """Choose all that another cluster may have too."""
    names = [CONTROLLER, LOGIN, *(f"n{i + 1}" for i in range(args.hosts))]
    subnet = free_subnet()
    addresses = {name: f"{subnet}.{10 + i}" for i, name in enumerate(names)}
    addresses[LOGIN] = f"{subnet}.254"  # in this machine's own network
    return {
        "folder": str(folder),
        "cluster": cluster_of(folder),
        "nodes": args.hosts,
        "slurm": args.slurm,
        "select": args.select,
        "tokens": args.tokens,
        "no_expand": args.no_expand,
        "gridengine": args.gridengine,
        "shared_home": args.shared_home,
        "served_home": args.served_home,
        "share": [str(Path(path).resolve()) for path in args.share],
        "root": str(root),
        "user": "root",
        "machine": os.uname().nodename.partition(".")[0],
        "bridge": f"rms{cluster_of(folder)[-8:]}",
        "hosts": addresses,
        "ctl": addresses[CONTROLLER],
    }


def free_subnet():
    """Return the first three numbers of a network that this machine has no address in."""
    own = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True).stdout
    for _ in range(1000):
        subnet = f"10.{random.randrange(64, 128)}.{random.randrange(1, 255)}"
        if f"{subnet}." not in own:
            return subnet
    return bootstrap.fail("expected a free network among 10.64.0.0 to 10.127.255.0, got none")


def write_files(folder, plan):
    """Write the record first: what follows can then be cleaned up."""
    write_private(folder / RECORD, json.dumps(plan, indent=1))
    for name in ("etc", "state", "spool", "log", "run", "db", "tmp", "home", "hosts"):
        (folder / name).mkdir()
    etc = folder / "etc"
    for key in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", etc / key], check=True
        )
    lines = ["127.0.0.1 localhost"]
    for name, address in plan["hosts"].items():
        also = f" {plan['machine']}" if name == LOGIN else ""
        lines.append(f"{address} {name}{also}")
        (etc / f"sshd@{name}").write_text(SSHD_CONFIG.format(**plan, address=address))
    (etc / "hosts").write_text("\n".join(lines) + "\n")
    (etc / "ssh_config").write_text(
        "".join(SSH_CONFIG.format(name=n, address=a) for n, a in plan["hosts"].items())
        + SSH_CONFIG_ALL.format(**plan, names=" ".join((*plan["hosts"], *plan["hosts"].values())))
    )
    if plan["slurm"] != "none":
        write_slurm(folder, plan)


def write_slurm(folder, plan):
    """Write the files of Slurm, its database and munge."""
    etc = folder / "etc"
    linear = plan["select"] == "linear"
    gres = f" Gres=token:{plan['tokens']}" if plan["tokens"] else ""
    nodes = [
        f"NodeName={name} NodeAddr={address} CPUs={CPUS} RealMemory=1000{gres}"
        for name, address in plan["hosts"].items()
        if name not in (CONTROLLER, LOGIN)
    ]
    secret = secrets.token_hex(16)
    write_private(etc / "munge.key", secrets.token_hex(64))
    write_private(etc / "slurmdbd.conf", SLURMDBD_CONF.format(**plan, password=secret))
    write_private(etc / "init.sql", MARIADB_SQL.format(password=secret))
    if plan["tokens"]:
        (etc / "gres.conf").write_text(f"Name=token Count={plan['tokens']}\n")
    if plan["root"] != "/":
        (folder / "bin").mkdir()
        for name in CLIENTS:
            client = folder / "bin" / name
            client.write_text(CLIENT.format(**plan, command=f"/usr/bin/{name}"))
            client.chmod(0o755)
    (etc / "slurm.conf").write_text(
        SLURM_CONF.format(
            **plan,
            node_lines="\n".join(nodes),
            permit="" if plan["no_expand"] else "permit_job_expansion,",
            gres_types="GresTypes=token" if plan["tokens"] else "",
            select_parameters="" if linear else "SelectTypeParameters=CR_Core",
        )
    )


def write_private(path, text):
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(text)
