"""The Snakemake side: jobs in, reports out. What happens in between is `tracking`'s."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_executor_plugin_submitit import slurm
from snakemake_executor_plugin_submitit.backends import (
    BACKENDS,
    Backend,
    DebugBackend,
    LocalBackend,
    SlurmBackend,
)
from snakemake_executor_plugin_submitit.journal import HOME, Journal, job_key
from snakemake_executor_plugin_submitit.request import (
    WORD,
    BadRequest,
    Site,
    build_request,
    parse_partitions,
)
from snakemake_executor_plugin_submitit.tracking import Task, Tracker, failure_text


class Executor(RemoteExecutor):
    """Submits all ready jobs at once and follows them; see the package's settings."""

    def __init__(self, workflow, logger):
        # All before RemoteExecutor's constructor: it starts the thread that asks for news, which
        # ends at an exception and then leaves Snakemake waiting for ever.
        settings = workflow.executor_settings
        self.settings = settings
        self.site = site_from(settings)
        slurm.clean_environment()
        journal = Journal(Path(HOME))
        self.tracker = Tracker(
            backend_from(settings, journal.home / "submitit"),
            journal,
            directory=str(Path.cwd()),
            tries=settings.tries,
            patience=settings.patience,
            say=logger.info,
        )
        super().__init__(workflow, logger)

    @property
    def next_seconds_between_status_checks(self) -> float:
        return self.settings.poll

    # -- submitting -----------------------------------------------------------------------

    def run_job(self, job: JobExecutorInterface):
        self.run_jobs([job])

    def run_jobs(self, jobs: list[JobExecutorInterface]):
        infos = []
        for job in jobs:
            try:
                task = self._task(job)
            except BadRequest as error:
                refused = f"{job_name(job)}: rejected: {error}\n"
                self.report_job_error(SubmittedJobInfo(job), msg=refused)
                continue
            infos.append(SubmittedJobInfo(job, aux={"task": task}))
        fresh = []
        for info in infos:
            job, task = info.job, info.aux["task"]
            self.run_job_pre(job)
            if self.tracker.adopt(task):
                for path in job.output:  # an interrupted Snakemake removes folders still empty
                    path.prepare()
            else:
                if runs_directly(job, self.workflow):
                    self.workflow.async_run(job.prepare())
                fresh.append(task)
        self.tracker.submit(fresh)
        for info in infos:
            info.external_jobid = info.aux["task"].entry.id
            self.report_job_submission(info)

    def _task(self, job: JobExecutorInterface) -> Task:
        outputs = [str(path) for path in job.output]
        name = job_name(job)
        if runs_directly(job, self.workflow):
            command = direct_command(job)
        else:
            command = self.format_job_exec(job)
        resources = {key: job.resources.get(key) for key in job.resources.keys()}
        return Task(
            key=job_key(name, outputs or [name]),
            name=name,
            outputs=outputs,
            command=command,
            threads=job.threads,
            request=build_request(resources, job.threads, self.site),
        )

    # -- following ------------------------------------------------------------------------

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        if not active_jobs:
            return
        self.tracker.look()
        for info in active_jobs:
            task: Task = info.aux["task"]
            info.external_jobid = task.entry.id
            if task.done:
                self.report_job_success(info)
            elif task.ending is not None:
                log = [task.entry.log] if task.entry.log else []
                self.report_job_error(info, msg=failure_text(task) + "\n", aux_logs=log)
            else:
                yield info

    def print_job_error(self, job_info: SubmittedJobInfo, msg=None, **kwargs):
        self.logger.error(msg or "")
        job_info.job.log_error(None, **kwargs)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]):
        self.tracker.cancel(self.settings.keep_on_interrupt)

    def cancel(self):
        self.cancel_jobs([])
        self.shutdown()


def site_from(settings) -> Site:
    """The site of the settings; WorkflowError names one that is wrong."""
    if settings.backend not in BACKENDS:
        given = "is not set" if settings.backend is None else f"is {settings.backend!r}"
        raise WorkflowError(f"submitit-backend {given}: write slurm, local or debug")
    if settings.gpu_flag not in ("gres", "gpus-per-node"):
        raise WorkflowError(
            f"submitit-gpu-flag is {settings.gpu_flag!r}: write gres or gpus-per-node"
        )
    for name, least in (
        ("interval", 1),
        ("tries", 1),
        ("poll", 0.05),
        ("array", 0),
        ("signal_delay", 1),
        ("patience", 0),
    ):
        if getattr(settings, name) < least:
            raise WorkflowError(
                f"submitit-{name.replace('_', '-')} is {getattr(settings, name)}: "
                f"the least is {least}"
            )
    for name in ("cpu_partition", "account", "qos"):
        value = getattr(settings, name)
        if value and not WORD.fullmatch(value):
            raise WorkflowError(f"submitit-{name.replace('_', '-')} is {value!r}: not a name")
    try:
        gpu_partitions = parse_partitions(settings.gpu_partitions)
    except BadRequest as error:
        raise WorkflowError(str(error)) from error
    return Site(
        gpu_partitions=gpu_partitions,
        cpu_partition=settings.cpu_partition or None,
        account=settings.account or None,
        qos=settings.qos or None,
        gpu_flag=settings.gpu_flag,
    )


def backend_from(settings, folder: Path) -> Backend:
    """The backend that the settings name; Slurm's commands must be there for slurm."""
    if settings.backend == "local":
        return LocalBackend(folder)
    if settings.backend == "debug":
        return DebugBackend(folder)
    try:
        return SlurmBackend(
            folder, settings.interval, settings.signal_delay, settings.tries, settings.array
        )
    except slurm.SlurmMissing as error:
        raise WorkflowError(f"submitit-backend slurm: {error}") from error


def job_name(job: JobExecutorInterface) -> str:
    """rule and wildcards, short: "cell-pixel-tha-eps1-seed0"."""
    if job.is_group():
        return job.name
    values = [str(value) for value in job.wildcards]
    return "-".join([job.rule.name, *values]) if values else job.rule.name


def runs_directly(job: JobExecutorInterface, workflow) -> bool:
    """Whether the job's shell command is all there is to it, so no Snakemake need run inside."""
    if job.is_group() or not job.is_shell or job.is_shadow or job.benchmark:
        return False
    rule = job.rule
    deployed = workflow.deployment_settings.deployment_method
    if deployed and (job.conda_env or rule.container_img or rule.env_modules):
        return False
    if rule.cache and workflow.workflow_settings.cache is not None:
        return False
    return not any(is_special(path) for path in [*job.input, *job.output])


def is_special(path) -> bool:
    """Files that Snakemake itself must fetch, feed or keep: storage, pipes, services."""
    flags = getattr(path, "flags", None) or {}
    return any(flags.get(name) for name in ("storage_object", "pipe", "service", "nodelocal"))


def direct_command(job: JobExecutorInterface) -> str:
    """What Snakemake's own shell would run, with the workflow's prefix and `set -euo pipefail`."""
    from snakemake.shell import shell

    executable = shell.get_executable()
    prefix = shell._get_process_prefix(executable)
    return f"{prefix} {job.shellcmd}{shell._process_suffix}".strip()
