"""A Snakemake executor that submits jobs through submitit: to Slurm, or to this machine.

    snakemake --executor submitit --submitit-backend slurm --jobs 100

Shell rules run directly in their job, other rules in a Snakemake of their own. Results are
read from disk first; Slurm is asked once an interval for all jobs together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,  # sbatch and processes inherit the environment
    auto_deploy_default_storage_provider=False,
    init_seconds_before_status_checks=0,
)


def _setting(default, text: str, kind: type = str, **more):
    return field(default=default, metadata={"help": text, "type": kind, "required": False, **more})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Settings, as `--submitit-NAME` or in a profile as `submitit-NAME`."""

    backend: str | None = _setting(
        None,
        "Where jobs go: slurm, local (processes on this machine) or debug (this process). "
        "Always explicit; there is no default.",
    )
    gpu_partitions: str | None = _setting(
        None, "Which partition has which GPU model: l40s=PARTITION,a100=PARTITION."
    )
    cpu_partition: str | None = _setting(
        None, "Partition of jobs that ask for no GPU (default: the cluster's own)."
    )
    account: str | None = _setting(None, "Slurm account to charge (default: the user's own).")
    qos: str | None = _setting(None, "Slurm QOS (default: the user's own).")
    gpu_flag: str = _setting(
        "gres", "How GPUs are asked for: gres (--gres=gpu:l40s:1) or gpus-per-node."
    )
    array: int = _setting(
        0, "Submit jobs with equal resources as arrays of at most so many; 0: never.", int
    )
    interval: int = _setting(30, "Seconds between two questions to Slurm about all jobs.", int)
    poll: float = _setting(2.0, "Seconds between two looks for results on disk.", float)
    tries: int = _setting(
        5,
        "How often a job is started at most; only timeouts, preemption, failed nodes and lack "
        "of memory lead to another start, never an exception.",
        int,
    )
    signal_delay: int = _setting(
        120, "Seconds before the time limit at which a job is told to save and leave.", int
    )
    patience: int = _setting(
        120,
        "Seconds after which a job that Slurm has lost, or that ended without a result, "
        "counts as failed.",
        int,
    )
    keep_on_interrupt: bool = _setting(
        False,
        "On Ctrl-C leave the jobs running instead of cancelling them; the next start "
        "takes them up again.",
        bool,
    )


def __getattr__(name: str):
    # Jobs import this package for their payload alone; the executor would cost them time.
    if name == "Executor":
        from snakemake_executor_plugin_submitit.executor import Executor

        return Executor
    raise AttributeError(name)
