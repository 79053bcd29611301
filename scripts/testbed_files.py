"""What the local Slurm test bed consists of: packages, ports, configuration, command lines."""

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import bootstrap

PACKAGES = {  # which has the tool
    "munged": "munge",
    "mariadbd": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",  # mariadb-install-db calls it
    "slurmdbd": "slurmdbd",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
}
SERVICES = ("munge", "slurmdbd", "slurmctld", "slurmd")
POLICY = Path("/usr/sbin/policy-rc.d")  # what Debian's packages ask before they start a service
RECORD = "testbed.json"  # the first file made, the last removed: what makes a folder ours
CPUS = 2  # of each node, whatever the machine has

SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={slurmctld_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
PlugStackConfig={folder}/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={slurmdbd_port}
AccountingStoragePass={folder}/munge.sock
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
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
AuthInfo=socket={folder}/munge.sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={slurmdbd_port}
SlurmUser={user}
PidFile={folder}/run/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={mariadb_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""

MARIADB_SQL = """\
CREATE DATABASE IF NOT EXISTS slurm;
CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON slurm.* TO slurm@'127.0.0.1';
"""

MARIADB = "--no-defaults --datadir={folder}/db --tmpdir={folder}/tmp --user={user}"
# In the order in which they start; words are split at spaces.
COMMANDS = {
    "munged": "munged --foreground --force --socket={folder}/munge.sock"
    " --key-file={folder}/munge.key --log-file={folder}/log/munged.log"
    " --pid-file={folder}/run/munged.pid --seed-file={folder}/run/munged.seed",
    "tables": f"mariadb-install-db {MARIADB} --skip-test-db"
    " --auth-root-authentication-method=socket",
    "mariadbd": f"mariadbd {MARIADB} --socket={{folder}}/db.sock --bind-address=127.0.0.1"
    " --port={mariadb_port} --pid-file={folder}/run/mariadbd.pid --skip-name-resolve"
    " --init-file={folder}/init.sql --innodb-lock-wait-timeout=900 --innodb-use-native-aio=0"
    " --innodb-flush-log-at-trx-commit=0 --innodb-buffer-pool-size=64M",
    "slurmdbd": "slurmdbd -D",
    "slurmctld": "slurmctld -D -f {folder}/slurm.conf",
    "slurmd": "slurmd -D -N {node} -f {folder}/slurm.conf",
}


def cluster_of(folder):
    return "testbed_" + hashlib.sha256(str(folder).encode()).hexdigest()[:8]


def install_missing():
    """Have Debian's packages here, or say which are missing; one of us at a time."""
    if not missing():
        return
    with (Path(tempfile.gettempdir()) / "slurm-testbed-packages.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if packages := missing():
            install(packages)


def missing():
    """Return the packages that are not here."""
    return sorted({package for tool, package in PACKAGES.items() if not shutil.which(tool)})


def install(packages):
    """Install packages without a service of theirs being started."""
    if os.getuid() != 0 or not shutil.which("apt-get"):
        bootstrap.fail(
            f"expected Slurm's tools on this machine; install Debian's packages: "
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
    for service in set(SERVICES) & set(packages):
        # systemd's links, and by them those of the older init.
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
    kept = POLICY.with_name(f"{POLICY.name}.before-slurm-testbed")
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


def make_plan(folder, nodes, select, tokens, no_expand):
    """Choose all that another Slurm, or another of these, may have too."""
    ports = free_ports(3 + nodes)
    names = [f"n{i + 1}" for i in range(nodes)]
    return {
        "folder": str(folder),
        "cluster": cluster_of(folder),
        "nodes": nodes,
        "select": select,
        "tokens": tokens,
        "no_expand": no_expand,
        "host": socket.gethostname().partition(".")[0],
        "user": getpass.getuser(),
        "mariadb_port": ports[0],
        "slurmdbd_port": ports[1],
        "slurmctld_port": ports[2],
        "slurmd_ports": dict(zip(names, ports[3:], strict=True)),
    }


def free_ports(count):
    """Return so many ports in a row that nobody listens on, from below the ephemeral ones."""
    for _ in range(100):
        ports = range(first := random.randrange(20000, 32000), first + count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in ports:
                held.enter_context(socket.socket()).bind(("", port))
            return list(ports)
    return bootstrap.fail(f"expected {count} free ports in a row between 20000 and 32000, got none")


def write_files(folder, plan):
    """Write the record first: what follows can then be cleaned up."""
    write_private(folder / RECORD, json.dumps(plan, indent=1))
    for name in ("state", "spool", "log", "run", "db", "tmp"):
        (folder / name).mkdir()
    linear = plan["select"] == "linear"
    gres = f" Gres=token:{plan['tokens']}" if plan["tokens"] else ""
    nodes = [
        f"NodeName={name} NodeHostname={plan['host']} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS}"
        f" RealMemory=1000{gres}"
        for name, port in plan["slurmd_ports"].items()
    ]
    secret = secrets.token_hex(16)
    write_private(folder / "munge.key", secrets.token_hex(64))
    write_private(folder / "slurmdbd.conf", SLURMDBD_CONF.format(**plan, password=secret))
    write_private(folder / "init.sql", MARIADB_SQL.format(password=secret))
    if plan["tokens"]:
        (folder / "gres.conf").write_text(f"Name=token Count={plan['tokens']}\n")
    (folder / "slurm.conf").write_text(
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
