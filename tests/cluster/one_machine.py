"""A Slurm of two nodes on this one machine, from Debian's packages: slurmctld, slurmd twice, munge; no database.

Two CUDA devices a node that are no devices at all: the setting that a job gets (CUDA_VISIBLE_DEVICES) needs no GPU.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CONFIG = Path("/etc/slurm/slurm.conf")  # srun of the executor plugin looks only here, for it drops SLURM_CONF
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol")
NODES = ("n1", "n2")
SLURM = """
ClusterName=parity
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=2
MinJobAge=300
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17001 CPUs=2 RealMemory=16000 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17002 CPUs=2 RealMemory=16000 Gres=gpu:2
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def find_obstacle() -> str:
    """Find why Slurm cannot run here; "" if it can."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")]:
        return f"no {missing[0]}: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
    if os.getuid():
        return "Slurm's daemons start jobs of other users: needs root"
    return f"{CONFIG} is there: this machine belongs to a cluster" if CONFIG.exists() else ""


def run_command(*command: str) -> str:
    """Run a program within a minute and return its output. Raises CalledProcessError if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def read_states() -> dict[str, str]:
    """Read the state of each node."""
    return dict(line.split() for line in run_command("sinfo", "-h", "-N", "-o", "%N %T").splitlines())


@contextlib.contextmanager
def run_slurm(folder: Path) -> Iterator[None]:
    """Write Slurm's configuration to /etc/slurm and run its daemons until the block ends; then stop them and remove it.
    Raises RuntimeError with the daemons' log if the nodes are not idle within a minute."""
    daemons: list[subprocess.Popen] = []
    log = (folder / "daemons.log").open("w")

    def start(*command: str) -> None:
        """Start a daemon, with its output in the log."""
        daemons.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    for name in ("ctld", *NODES):
        (folder / name).mkdir()
    for i in range(4):
        os.mknod(folder / f"gpu{i}", 0o20666, os.makedev(1, 3))
    gres = [f"NodeName={n} Name=gpu File={folder}/gpu[{2 * i}-{2 * i + 1}]\n" for i, n in enumerate(NODES)]
    (CONFIG.with_name("gres.conf")).write_text("".join(gres))
    CONFIG.write_text(SLURM.format(host=socket.gethostname().split(".")[0], folder=folder))
    try:
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        start("runuser", "-u", "munge", "--", "/usr/sbin/munged", "-F")
        time.sleep(1)
        start("slurmctld", "-D")
        for node in NODES:
            start("slurmd", "-D", "-N", node)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
                if set(read_states().values()) == {"idle"} and len(read_states()) == len(NODES):
                    break
            time.sleep(1)
        else:
            raise RuntimeError((folder / "daemons.log").read_text()[-2000:])
        yield
    finally:
        with contextlib.suppress(Exception):
            run_command("scancel", "--user", "root")
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
        for file in (CONFIG, CONFIG.with_name("gres.conf")):
            file.unlink(missing_ok=True)
        log.close()
