"""From a job's resources to what Slurm is asked for: pure functions, no Snakemake, no Slurm."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

KNOWN = {
    "slurm_partition",
    "slurm_account",
    "qos",
    "constraint",
    "gpu",
    "gpu_model",
    "mem_mb",
    "runtime",
    "cpus_per_task",
    "slurm_extra",
}
REFUSED = {
    "mem_mb_per_cpu": "mem_mb",
    "gres": "gpu and gpu_model",
    "gpus": "gpu",
    "partition": "slurm_partition",
    "account": "slurm_account",
    "nodes": "slurm_extra (a job is one process on one node)",
    "tasks": "slurm_extra (a job is one process on one node)",
    "mpi": "slurm_extra (a job is one process on one node)",
}
GOVERNED = {  # set by this plugin; in slurm_extra they would contradict it
    "array",
    "account",
    "chdir",
    "comment",
    "constraint",
    "cpus-per-task",
    "error",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gres",
    "job-name",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "open-mode",
    "output",
    "parsable",
    "partition",
    "qos",
    "requeue",
    "no-requeue",
    "signal",
    "time",
    "wait",
    "wrap",
}
WORD = re.compile(r"[A-Za-z0-9_.:\-]+")


class BadRequest(ValueError):
    """A resource or setting that can't be turned into a submission; names it."""


@dataclass(frozen=True)
class Site:
    """What the cluster's users fill in once."""

    gpu_partitions: tuple[tuple[str, str], ...] = ()  # (GPU model, partition)
    cpu_partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpu_flag: str = "gres"  # or "gpus-per-node": some clusters take only one of them


@dataclass(frozen=True)
class Request:
    """What one job asks for. Jobs with equal requests may share an array."""

    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    gpus: int
    gpu_type: str | None  # None: any
    cpus: int
    mem_mb: int
    minutes: int
    extra: tuple[tuple[str, str | bool], ...] = ()
    gpu_flag: str = "gres"

    def with_memory(self, factor: float) -> Request:
        """The same with more memory, after running out of it."""
        return replace(self, mem_mb=math.ceil(self.mem_mb * factor))


def parse_partitions(text: str | None) -> tuple[tuple[str, str], ...]:
    """ "l40s=gpu-a,a100=gpu-b" -> (("l40s", "gpu-a"), ("a100", "gpu-b"))."""
    pairs = []
    for part in filter(None, (text or "").replace(" ", "").split(",")):
        model, equals, partition = part.partition("=")
        if not (equals and WORD.fullmatch(model) and WORD.fullmatch(partition)):
            raise BadRequest(
                f"submitit-gpu-partitions: {part!r} is no MODEL=PARTITION "
                "(write for example l40s=gpu-l40s,a100=gpu-a100)"
            )
        pairs.append((model.lower(), partition))
    return tuple(pairs)


def parse_extra(text: str) -> tuple[tuple[str, str | bool], ...]:
    """slurm_extra, as long options: "--nice=10 --exclusive"; refuses what is set elsewhere."""
    found = []
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadRequest(f"slurm_extra: {text!r} is not shell syntax ({error})") from error
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not WORD.fullmatch(name):
            raise BadRequest(f"slurm_extra: {word!r} is no --option or --option=value")
        name = name.replace("_", "-")  # as submitit writes it
        if name in GOVERNED:
            raise BadRequest(f"slurm_extra: --{name} is set by the executor; use its own resource")
        if equals and (not value or "\n" in value):
            raise BadRequest(f"slurm_extra: --{name} has no usable value")
        found.append((name, value if equals else True))
    return tuple(sorted(found, key=str))


def _whole(resources: Mapping, name: str, default: int, least: int) -> int:
    value = resources.get(name, default)
    if value is None:
        value = default
    whole = isinstance(value, int) or isinstance(value, float) and value.is_integer()
    if isinstance(value, bool) or not whole:
        raise BadRequest(f"resource {name}: {value!r} is not a whole number")
    if value < least:
        raise BadRequest(f"resource {name}: {value!r} is below {least}")
    return int(value)


def _text(resources: Mapping, name: str, default: str | None) -> str | None:
    value = resources.get(name)
    if value is None or value == "":
        return default
    if not isinstance(value, str) or "\n" in value:
        raise BadRequest(f"resource {name}: {value!r} is not one line of text")
    return value


def build_request(resources: Mapping, threads: int, site: Site) -> Request:
    """What a job asks for, from Snakemake's resources and the site's settings.

    `gpu_model` is a model, or several with "|" between them: whichever is free. Raises
    :class:`BadRequest` for a resource that is unknown in kind or out of range.
    """
    for name, instead in REFUSED.items():
        if resources.get(name):
            raise BadRequest(f"resource {name} is not understood; use {instead}")
    gpus = _whole(resources, "gpu", 0, 0)
    model = (_text(resources, "gpu_model", None) or "").lower()
    parts = [part.strip() for part in model.split("|") if part.strip()] if gpus else []
    models = list(dict.fromkeys(parts))
    for one in models:
        if not WORD.fullmatch(one):
            raise BadRequest(f"resource gpu_model: {model!r} is no model, nor models joined by |")
    partition = _text(resources, "slurm_partition", None)
    if partition is None:
        partition = _partition(gpus, models, site)
    return Request(
        partition=partition,
        account=_text(resources, "slurm_account", site.account),
        qos=_text(resources, "qos", site.qos),
        constraint=_text(resources, "constraint", None),
        gpus=gpus,
        gpu_type=models[0] if len(models) == 1 else None,
        cpus=max(_whole(resources, "cpus_per_task", 1, 1), threads),
        mem_mb=_whole(resources, "mem_mb", 4000, 1),
        minutes=_whole(resources, "runtime", 60, 1),
        extra=parse_extra(_text(resources, "slurm_extra", None) or ""),
        gpu_flag=site.gpu_flag,
    )


def _partition(gpus: int, models: list[str], site: Site) -> str | None:
    """The partitions of the wanted models; all GPU partitions where none is wanted."""
    if not gpus:
        return site.cpu_partition
    known = dict(site.gpu_partitions)
    missing = [one for one in models if known and one not in known]
    if missing:
        raise BadRequest(
            f"resource gpu_model: {missing[0]!r} has no partition; "
            f"submitit-gpu-partitions knows {', '.join(known)}"
        )
    if len(models) > 1 and not known:
        raise BadRequest(
            f"resource gpu_model: {'|'.join(models)} needs submitit-gpu-partitions, "
            "which says where each model is"
        )
    wanted = [known[one] for one in models if one in known] or list(known.values())
    return ",".join(dict.fromkeys(wanted)) or None


def submitit_parameters(request: Request, name: str, token: str, signal_delay: int) -> dict:
    """submitit's SlurmExecutor parameters; None leaves an option out.

    The script replaces its shell by the job (`exec`), so the time limit's signal goes to
    the batch process itself ("B:"): without srun no step would be there to get it.
    """
    parameters: dict = {
        "job_name": name,
        "time": request.minutes,
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": request.cpus,
        "mem": f"{request.mem_mb}M",
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "constraint": request.constraint,
        "comment": token,
        "wckey": None,
        "use_srun": False,
        "stderr_to_stdout": True,
        "signal_delay_s": signal_delay,
        "additional_parameters": {
            "signal": f"B:USR2@{signal_delay}",
            "requeue": True,
            **dict(request.extra),
        },
    }
    if request.gpus:
        kind = f"{request.gpu_type}:{request.gpus}" if request.gpu_type else str(request.gpus)
        if request.gpu_flag == "gres":
            parameters["gres"] = f"gpu:{kind}"
        else:
            parameters["gpus_per_node"] = kind
    return parameters
