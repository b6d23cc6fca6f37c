"""A one-machine Slurm from Debian's packages: to try the cluster profile on, and for tests.

    python scripts/slurm_cluster.py start      (make slurm)
    python scripts/slurm_cluster.py stop       (make slurm-stop)

Two GPU partitions (l40s: two nodes of two GPUs, a100: one node of four) and a CPU one, all of
them daemons on this machine; the GPUs are device files that do nothing. Needs root, for the
packages and for munge. Everything lies in one folder, and `stop` removes it, together with
the packages that `start` installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
NODES = {  # name: (port offset, GPU model, GPUs)
    "l40s1": (11, "l40s", 2),
    "l40s2": (12, "l40s", 2),
    "a1001": (13, "a100", 4),
    "cpu1": (14, None, 0),
}
PARTITIONS = {
    "l40s": "l40s[1-2]",
    "a100": "a1001",
    "cpu": "cpu1",
}
TRY = """\
Slurm is up. In this shell:

  export SLURM_CONF={conf}
  sinfo
  snakemake --profile profiles/slurm table1 --config preset=demo \\
      --submitit-gpu-partitions l40s=l40s,a100=a100 --submitit-cpu-partition cpu
  straightdp status --watch          (in a second shell with the same SLURM_CONF)

It ends with: make slurm-stop
"""


def missing_packages(accounting: bool = False) -> list[str]:
    """What has to be installed before a cluster can start."""
    needed = {"slurmctld": "slurmctld", "slurmd": "slurmd", "slurm-client": "sbatch"}
    needed["munge"] = "munged"
    if accounting:
        needed |= {"slurmdbd": "slurmdbd", "mariadb-server": "mariadbd"}
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name, program in needed.items() if shutil.which(program, path=path) is None]


def install(accounting: bool = False) -> list[str]:
    """Install what is missing from Debian's packages; returns every package that is new."""
    if not missing_packages(accounting):
        return []
    if os.geteuid() != 0:
        raise SystemExit("slurm: installing Debian's Slurm packages needs root; run as root")
    if shutil.which("apt-get") is None:
        raise SystemExit("slurm: no apt-get here; install Slurm and munge by hand")
    wanted = [*PACKAGES, *(ACCOUNTING_PACKAGES if accounting else ())]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", *wanted]
    quiet = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    plan = subprocess.run([*command, "-s"], text=True, check=False, **quiet)
    if plan.returncode != 0:
        subprocess.run(["apt-get", "update"], check=False, **quiet)
        plan = subprocess.run([*command, "-s"], text=True, check=False, **quiet)
    new = [line.split()[1] for line in plan.stdout.splitlines() if line.startswith("Inst ")]
    done = subprocess.run(command, text=True, check=False, **quiet)
    if done.returncode != 0:
        raise SystemExit(f"slurm: apt-get install failed:\n{done.stdout[-2000:]}")
    return new


@dataclass
class Cluster:
    """The daemons of one cluster under `root`."""

    root: Path
    accounting: bool = False
    port: int = 0  # the first of some twenty; 0: chosen when it starts
    kill_wait: int = 5
    preempt: str = ""  # "requeue" or "cancel" gives partition `urgent` over the GPU nodes
    grace: int = 0
    options: dict[str, str] = field(default_factory=dict)  # more of slurm.conf
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        return kept | {"SLURM_CONF": str(self.conf), "PATH": path}

    def run(self, *command: str, check: bool = True) -> str:
        """A Slurm command's output."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout}")
        return done.stdout

    # -- files ------------------------------------------------------------------------------

    def write_files(self) -> None:
        for name in ("etc", "run", "state", "log", "dev", "spool", "db"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in NODES:
            (self.root / "spool" / name).mkdir(exist_ok=True)
        self.conf.write_text(self._slurm_conf())
        (self.root / "etc" / "gres.conf").write_text(self._gres_conf())
        (self.root / "etc" / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
        if self.accounting:
            path = self.root / "etc" / "slurmdbd.conf"
            path.write_text(self._slurmdbd_conf())
            path.chmod(0o600)

    def _gres_conf(self) -> str:
        lines = ["AutoDetect=off"]
        for node, (_, model, count) in NODES.items():
            if model is None:
                continue
            for index in range(count):
                device = self.root / "dev" / f"{model}_{index}"
                if not device.exists():
                    subprocess.run(["mknod", str(device), "c", "1", "3"], check=True)
            lines.append(
                f"NodeName={node} Name=gpu Type={model} "
                f"File={self.root}/dev/{model}_[0-{count - 1}]"
            )
        return "\n".join(lines) + "\n"

    def _slurm_conf(self) -> str:
        host, root = socket.gethostname().split(".")[0], self.root
        settings = {
            "ClusterName": "toy",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": self.port,
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "CredType": "cred/munge",
            "AuthInfo": f"socket={root}/run/munge.socket,cred_expire=5",
            "StateSaveLocation": f"{root}/state",
            "SlurmdSpoolDir": f"{root}/spool/%n",
            "SlurmctldPidFile": f"{root}/run/slurmctld.pid",
            "SlurmdPidFile": f"{root}/run/slurmd-%n.pid",
            "SlurmctldLogFile": f"{root}/log/slurmctld.log",
            "SlurmdLogFile": f"{root}/log/slurmd-%n.log",
            "MailProg": "/bin/true",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "DefMemPerCPU": 1000,
            "SchedulerParameters": "sched_min_interval=0,batch_sched_delay=0,sched_interval=2,"
            "bf_interval=2,bf_min_age_reserve=0",
            "GresTypes": "gpu",
            "JobAcctGatherType": "jobacct_gather/linux",
            "JobAcctGatherFrequency": "task=1",
            "JobAcctGatherParams": "OverMemoryKill",
            "ReturnToService": 2,
            "KillWait": self.kill_wait,
            "MinJobAge": 300,
            "SlurmdTimeout": 10,
            "JobRequeue": 1,
            "MaxArraySize": 4001,
            "SlurmdParameters": "config_overrides",
            "AccountingStorageType": "accounting_storage/none",
        }
        if self.accounting:
            settings |= {
                "AccountingStorageType": "accounting_storage/slurmdbd",
                "AccountingStorageHost": "127.0.0.1",
                "AccountingStoragePort": self.port + 2,
                "AccountingStoragePass": f"{root}/run/munge.socket",
                "AccountingStorageTRES": "gres/gpu,gres/gpu:l40s,gres/gpu:a100",
                "AccountingStorageEnforce": "associations,limits,qos",
            }
        if self.preempt:
            settings |= {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
        settings |= self.options
        lines = [f"{name}={value}" for name, value in settings.items()]
        for node, (offset, model, count) in NODES.items():
            gres = f" Gres=gpu:{model}:{count}" if model else ""
            lines.append(
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 "
                f"Port={self.port + offset} CPUs=8 Boards=1 SocketsPerBoard=1 "
                f"CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000{gres}"
            )
        preemptable = f" PreemptMode={self.preempt.upper()}" if self.preempt else ""
        grace = f" GraceTime={self.grace}" if self.grace else ""
        for name, nodes in PARTITIONS.items():
            default = " Default=YES" if name == "cpu" else ""
            lines.append(
                f"PartitionName={name} Nodes={nodes} DefaultTime=30 PriorityTier=1"
                f"{default}{preemptable}{grace}"
            )
        if self.preempt:
            lines.append("PartitionName=urgent Nodes=l40s[1-2],a1001 PriorityTier=10")
        return "\n".join(lines) + "\n"

    def _slurmdbd_conf(self) -> str:
        root = self.root
        return "\n".join(
            [
                "AuthType=auth/munge",
                f"AuthInfo=socket={root}/run/munge.socket",
                f"DbdHost={socket.gethostname().split('.')[0]}",
                "DbdAddr=127.0.0.1",
                f"DbdPort={self.port + 2}",
                "SlurmUser=root",
                "StorageType=accounting_storage/mysql",
                "StorageHost=127.0.0.1",
                f"StoragePort={self.port + 3}",
                "StorageUser=root",
                "StorageLoc=slurm_acct",
                f"LogFile={root}/log/slurmdbd.log",
                f"PidFile={root}/run/slurmdbd.pid",
                "",
            ]
        )

    # -- daemons ----------------------------------------------------------------------------

    def start(self, wait: float = 30) -> Cluster:
        """Start the daemons and wait until every node is idle."""
        self.port = self.port or free_ports(20)
        self.write_files()
        self._start_munge()
        if self.accounting:
            self._start_database()
        self._daemon("slurmctld", ["slurmctld", "-D", "-f", str(self.conf), "-i"])
        for node in NODES:
            self.start_node(node)
        self._until(lambda: self._idle() == len(NODES), wait, "the nodes did not come up")
        return self

    def start_node(self, node: str) -> None:
        self._daemon(f"slurmd-{node}", ["slurmd", "-D", "-f", str(self.conf), "-N", node])

    def _idle(self) -> int:
        lines = self.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).splitlines()
        return len({line.split()[0] for line in lines if line.endswith("idle")})

    def _start_munge(self) -> None:
        run, key = self.root / "run", self.root / "etc" / "munge.key"
        if not key.exists():
            key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._daemon(
            "munged",
            ["munged", "--foreground", f"--socket={run}/munge.socket", f"--key-file={key}"]
            + [f"--log-file={self.root}/log/munged.log", f"--pid-file={run}/munged.pid"]
            + [f"--seed-file={self.root}/run/munge.seed", "--num-threads=4", "--force"],
        )
        self._until((run / "munge.socket").exists, 10, "munged did not start")

    def _start_database(self) -> None:
        db = self.root / "db"
        if not (db / "mysql").exists():
            subprocess.run(
                ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={db}"]
                + ["--skip-test-db", "--auth-root-authentication-method=normal"],
                check=True,
                capture_output=True,
            )
        database = self.port + 3
        self._daemon(
            "mariadbd",
            ["mariadbd", "--no-defaults", "--user=root", f"--datadir={db}"]
            + ["--bind-address=127.0.0.1", f"--port={database}"]
            + [f"--socket={self.root}/run/mariadb.socket"],
        )
        self._until(lambda: _listens(database), 30, "mariadbd did not start")
        self._daemon("slurmdbd", ["slurmdbd", "-D"])
        self._until(lambda: _listens(self.port + 2), 30, "slurmdbd did not start")
        for words in (
            "add cluster toy",
            "add account lab",
            "add user root account=lab",
        ):
            self.run("timeout", "20", "sacctmgr", "-i", *words.split())

    def _daemon(self, name: str, command: list[str]) -> None:
        log = open(self.root / "log" / f"{name}.out", "ab")  # noqa: SIM115 - the daemon's own
        self.processes[name] = subprocess.Popen(
            command,
            env=self.environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        log.close()
        (self.root / "run" / f"{name}.process").write_text(str(self.processes[name].pid))

    def kill(self, name: str) -> None:
        """kill -9 one daemon."""
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self) -> None:
        """End the jobs and the daemons, and remove the folder."""
        with contextlib.suppress(Exception):
            self.run("scancel", "-u", "root", check=False)
        order = ["slurmd", "slurmctld", "slurmdbd", "mariadbd", "munged"]
        files = list((self.root / "run").glob("*.process"))
        files.sort(key=lambda path: order.index(path.stem.split("-")[0]))
        for file in files:
            _end(int(file.read_text()), file.stem.split("-")[0])
        for pid in _processes_with(str(self.root)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)

    @staticmethod
    def _until(condition, seconds: float, complaint: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(complaint)
            time.sleep(0.1)


def free_ports(count: int) -> int:
    """The first of `count` consecutive ports that nothing listens on."""
    for first in random.sample(range(20000, 30000, count), 100):
        if not any(_listens(first + i) for i in range(count)):
            return first
    raise RuntimeError("no free ports between 20000 and 30000")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(pid: int, name: str, seconds: float = 10) -> None:
    """SIGTERM, then SIGKILL, to a daemon, if the process is still that daemon."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(ChildProcessError, OSError):
                os.waitpid(pid, os.WNOHANG)
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                return
            if name.encode() not in command:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(0.1)


def _processes_with(text: str) -> list[int]:
    """Slurm's step daemons that still name the cluster's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes()
            if b"slurmstepd" in command or (b"slurm" in command and text.encode() in command):
                pid = int(path.parent.name)
                if pid != os.getpid() and text.encode() in (path.parent / "environ").read_bytes():
                    found.append(pid)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=["start", "stop", "install"])
    parser.add_argument("--root", type=Path, default=Path(".slurm"))
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd")
    arguments = parser.parse_args()
    root = arguments.root.absolute()
    record = root / "installed.json"
    if arguments.verb == "install":
        print(" ".join(install(arguments.accounting)) or "nothing to install")
    elif arguments.verb == "start":
        if record.exists():
            sys.exit(f"slurm: {root} is there already; make slurm-stop ends it")
        if os.geteuid() != 0:
            sys.exit("slurm: a one-machine Slurm needs root (packages, munge, device files)")
        new = install(arguments.accounting)
        root.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(new))
        try:
            cluster = Cluster(root, accounting=arguments.accounting).start()
        except Exception as error:
            Cluster(root).stop()
            sys.exit(f"slurm: {error}")
        print(TRY.format(conf=cluster.conf))
    else:
        if not root.exists():
            sys.exit(f"slurm: nothing to stop, {root} is not there")
        new = json.loads(record.read_text()) if record.exists() else []
        Cluster(root).stop()
        if new:
            command = ["apt-get", "purge", "-y", *new]
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        print("slurm: stopped; its folder and the packages that came with it are removed")


if __name__ == "__main__":
    main()
