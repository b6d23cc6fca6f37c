"""Resources and settings become exactly these sbatch lines, or one line that says why not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from submitit.slurm.slurm import SlurmExecutor, _make_sbatch_string

from snakemake_executor_plugin_submitit.request import (
    GOVERNED,
    REFUSED,
    BadRequest,
    Site,
    build_request,
    parse_extra,
    parse_partitions,
    submitit_parameters,
)

SITE = Site(gpu_partitions=(("l40s", "gpu-l40s"), ("a100", "gpu-a100")), cpu_partition="cpu")
CELL = {"gpu": 1, "mem_mb": 32000, "runtime": 600, "cpus_per_task": 8}


def script(resources: dict, site: Site = SITE, threads: int = 1) -> str:
    request = build_request(resources, threads, site)
    parameters = submitit_parameters(request, "cell-tha-eps1-seed0", "0123456789ab", 120)
    return _make_sbatch_string(command="exec python job", folder="/shared/jobs", **parameters)


def options(*arguments, **more) -> list[str]:
    """The #SBATCH lines, without the marker."""
    lines = script(*arguments, **more).splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]


def golden(*changes: str) -> list[str]:
    """A cell's lines, sorted as submitit writes them."""
    return [
        "--comment=0123456789ab",
        "--cpus-per-task=8",
        *[line for line in changes if line.startswith("--g")],
        "--job-name=cell-tha-eps1-seed0",
        "--mem=32000M",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--open-mode=append",
        "--output=/shared/jobs/%j_0_log.out",
        *[line for line in changes if line.startswith("--p")],
        "--requeue",
        "--signal=B:USR2@120",
        "--time=600",
    ]


@pytest.mark.parametrize(
    ("model", "flag", "lines"),
    [
        ("l40s", "gres", ["--gres=gpu:l40s:1", "--partition=gpu-l40s"]),
        ("a100", "gres", ["--gres=gpu:a100:1", "--partition=gpu-a100"]),
        ("A100", "gres", ["--gres=gpu:a100:1", "--partition=gpu-a100"]),
        ("l40s|l40s", "gres", ["--gres=gpu:l40s:1", "--partition=gpu-l40s"]),
        ("l40s|a100", "gres", ["--gres=gpu:1", "--partition=gpu-l40s,gpu-a100"]),
        ("a100 | l40s", "gres", ["--gres=gpu:1", "--partition=gpu-a100,gpu-l40s"]),
        (None, "gres", ["--gres=gpu:1", "--partition=gpu-l40s,gpu-a100"]),
        ("l40s", "gpus-per-node", ["--gpus-per-node=l40s:1", "--partition=gpu-l40s"]),
        ("a100", "gpus-per-node", ["--gpus-per-node=a100:1", "--partition=gpu-a100"]),
        ("l40s|a100", "gpus-per-node", ["--gpus-per-node=1", "--partition=gpu-l40s,gpu-a100"]),
    ],
)
def test_a_gpu_job_has_exactly_these_lines(model, flag, lines):
    assert options({**CELL, "gpu_model": model}, replace(SITE, gpu_flag=flag)) == golden(*lines)


def test_the_command_runs_without_srun_and_is_told_its_executor():
    text = script({**CELL, "gpu_model": "l40s"})
    assert text.splitlines()[0] == "#!/bin/bash"
    body = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert body == ["export SUBMITIT_EXECUTOR=slurm", "exec python job"]


def test_submitit_takes_the_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(SlurmExecutor, "affinity", classmethod(lambda cls: 2))
    for flag in ("gres", "gpus-per-node"):
        request = build_request({**CELL, "gpu_model": "a100"}, 1, replace(SITE, gpu_flag=flag))
        executor = SlurmExecutor(tmp_path)
        executor.update_parameters(**submitit_parameters(request, "name", "token", 120))
        assert f"--{flag}=" in executor._make_submission_file_text("true", "uid")


def test_a_cpu_job_asks_for_no_gpu_even_where_a_model_is_the_default():
    lines = options({"gpu": 0, "gpu_model": "l40s|a100", "mem_mb": 8000, "runtime": 90}, threads=4)
    assert "--partition=cpu" in lines
    assert {"--cpus-per-task=4", "--mem=8000M", "--time=90"} <= set(lines)
    assert not [line for line in lines if "gres" in line or "gpu" in line]


def test_a_job_without_resources_or_site_leaves_the_clusters_defaults():
    lines = options({}, Site())
    names = {line.split("=")[0] for line in lines}
    assert not names & {"--partition", "--account", "--qos", "--constraint", "--gres", "--wckey"}
    assert "--cpus-per-task=1" in lines


def test_a_single_model_needs_no_partition_where_none_is_configured():
    lines = options({**CELL, "gpu_model": "h100"}, Site())
    assert "--gres=gpu:h100:1" in lines
    assert not [line for line in lines if line.startswith("--partition")]


def test_account_qos_and_constraint_come_from_the_job_before_the_site():
    site = replace(SITE, account="group", qos="normal")
    assert {"--account=group", "--qos=normal"} <= set(options(CELL, site))
    own = {"slurm_account": "mine", "qos": "high", "constraint": "ib|roce"}
    lines = options({**CELL, **own, "slurm_partition": "special"}, site)
    assert {"--account=mine", "--qos=high", "--constraint='ib|roce'"} <= set(lines)
    assert "--partition=special" in lines


def test_cores_are_the_greater_of_threads_and_cpus_per_task():
    assert build_request({"cpus_per_task": 2}, 6, SITE).cpus == 6
    assert build_request({"cpus_per_task": 6}, 2, SITE).cpus == 6


def test_extra_options_are_passed_through():
    extra = "--nice=10 --exclusive --mail-type=END,FAIL --exclude='n[1-3]'"
    lines = options({**CELL, "slurm_extra": extra})
    passed = {"--nice=10", "--exclusive", "--mail-type=END,FAIL", "--exclude='n[1-3]'"}
    assert passed <= set(lines)
    assert set(lines) - passed == set(options(CELL))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *[(f"--{name}=1", f"--{name} ") for name in sorted(GOVERNED)],
        ("--cpus_per_task=64", "--cpus-per-task "),  # submitit would write it with hyphens
        ("--job_name=x", "--job-name "),
        ("--nice 10", "'10'"),
        ("-p other", "'-p'"),
        ("nice=10", "'nice=10'"),
        ("--nice=", "--nice "),
        ("--comment-x='a\nb'", "one line"),
        ("--nice='10", "shell syntax"),
        ("--=3", "'--=3'"),
        ("--a;b", "'--a;b'"),
    ],
)
def test_extra_options_that_contradict_or_are_malformed_are_refused(text, named):
    with pytest.raises(BadRequest) as refusal:
        build_request({"slurm_extra": text}, 1, SITE)
    message = str(refusal.value)
    assert "slurm_extra" in message and named in message and "\n" not in message


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_resources_of_other_executors_are_refused_with_the_one_to_use(name):
    with pytest.raises(BadRequest) as refusal:
        build_request({name: 2}, 1, SITE)
    message = str(refusal.value)
    assert f"resource {name} " in message and REFUSED[name] in message and "\n" not in message


@pytest.mark.parametrize(
    ("resources", "named"),
    [
        ({"gpu": -1}, "gpu"),
        ({"gpu": 0.5}, "gpu"),
        ({"gpu": "one"}, "gpu"),
        ({"gpu": True}, "gpu"),
        ({"mem_mb": 0}, "mem_mb"),
        ({"mem_mb": "4G"}, "mem_mb"),
        ({"mem_mb": float("inf")}, "mem_mb"),
        ({"mem_mb": float("nan")}, "mem_mb"),
        ({"runtime": 0}, "runtime"),
        ({"runtime": "2h"}, "runtime"),
        ({"cpus_per_task": 0}, "cpus_per_task"),
        ({"qos": 3}, "qos"),
        ({"constraint": "a\n#SBATCH --uid=0"}, "constraint"),
        ({"slurm_partition": ["a", "b"]}, "slurm_partition"),
        ({"slurm_account": 7}, "slurm_account"),
        ({"slurm_extra": 7}, "slurm_extra"),
        ({"gpu": 1, "gpu_model": 40}, "gpu_model"),
        ({"gpu": 1, "gpu_model": "l40s;a100"}, "gpu_model"),
        ({"gpu": 1, "gpu_model": "h100"}, "gpu_model: 'h100'"),
        ({"gpu": 1, "gpu_model": "l40s|h100"}, "gpu_model: 'h100'"),
    ],
)
def test_a_bad_resource_is_one_line_that_names_it(resources, named):
    with pytest.raises(BadRequest) as refusal:
        build_request(resources, 1, SITE)
    assert f"resource {named}" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_unknown_model_is_told_which_are_known():
    with pytest.raises(BadRequest, match="l40s, a100"):
        build_request({"gpu": 1, "gpu_model": "h100"}, 1, SITE)


def test_several_models_need_to_be_told_where_they_are():
    with pytest.raises(BadRequest, match="submitit-gpu-partitions"):
        build_request({"gpu": 1, "gpu_model": "l40s|a100"}, 1, Site())


def test_partitions_are_pairs():
    assert parse_partitions("L40S=gpu-a, a100=gpu.b") == (("l40s", "gpu-a"), ("a100", "gpu.b"))
    assert parse_partitions(None) == parse_partitions("") == ()


@pytest.mark.parametrize("text", ["l40s", "l40s=", "=gpu", "l40s=a=b", "l40s=a;b", "a b=c/d"])
def test_malformed_partitions_are_one_line_that_names_the_setting(text):
    with pytest.raises(BadRequest) as refusal:
        parse_partitions(text)
    message = str(refusal.value)
    assert "submitit-gpu-partitions" in message and "MODEL=PARTITION" in message
    assert "\n" not in message


def test_more_memory_after_running_out_of_it_and_nothing_else():
    request = build_request(CELL, 1, SITE)
    grown = request.with_memory(1.5)
    assert grown.mem_mb == 48000
    assert replace(grown, mem_mb=request.mem_mb) == request
    assert build_request({"mem_mb": 1}, 1, SITE).with_memory(1.5).mem_mb == 2  # always more


DIFFERENT = {
    "gpu": (1, 2),
    "gpu_model": ("l40s", "a100", "l40s|a100"),
    "mem_mb": (1000, 2000),
    "runtime": (60, 90),
    "cpus_per_task": (1, 2),
    "qos": ("low", "high"),
    "constraint": ("ib", "roce"),
    "slurm_account": ("a", "b"),
    "slurm_partition": (None, "special"),
    "slurm_extra": ("--nice=1", "--nice=2", ""),
}
RESOURCES = st.fixed_dictionaries({k: st.sampled_from(v) for k, v in DIFFERENT.items()})


@given(RESOURCES, RESOURCES)
def test_jobs_share_a_request_only_if_they_share_all_resources(one, other):
    requests = [build_request(each, 1, SITE) for each in (one, other)]
    assert (requests[0] == requests[1]) == (one == other)
    assert (hash(requests[0]) == hash(requests[1])) or one != other


@given(st.dictionaries(st.sampled_from(["nice", "exclusive", "hint", "switches"]), st.integers()))
def test_the_order_of_extra_options_makes_no_difference(pairs):
    words = [f"--{name}={value}" for name, value in pairs.items()]
    assert parse_extra(" ".join(words)) == parse_extra(" ".join(reversed(words)))
    assert dict(parse_extra(" ".join(words))) == {k: str(v) for k, v in pairs.items()}
