# One job trains and samples a cell; another evaluates its samples, so that a changed
# evaluation setting (another metrics file name) never trains again. run.json alone
# is a declared output: Snakemake removes those before a job runs again, and must remove neither
# a checkpoint nor the transcript and samples of a cell that may not run twice.


def cell_inputs(wildcards):
    configuration = CELLS[wildcards.id].config
    if cell_base(configuration) is not None:  # it reads a finished cell
        return [str(workspace.output(one)) for one in prerequisites(CELLS[wildcards.id])]
    unit = cell_public(configuration)
    if unit is None:  # it reads the public images alone
        return drawn_images(configuration["public"]["data"])
    voting = cell_extractor(configuration)
    return [str(workspace.output(one)) for one in (unit, voting) if one is not None]


rule cell:
    input:
        cell_inputs,
    output:
        f"{RESULTS}/cells/{{id}}/run.json",
    threads: preset.execution.threads
    resources:
        mem_mb=preset.execution.memory_gb * 1000,
        runtime=480,
        gpu=1,
    message:
        "cell {wildcards.id}"
    shell:
        RUN + " cell {wildcards.id} " + ON + WAIT


rule evaluate:
    input:
        f"{RESULTS}/cells/{{id}}/run.json",
        str(workspace.output(EXTRACTOR)),
    output:
        f"{RESULTS}/cells/{{id}}/{METRICS}",
    threads: preset.execution.threads
    resources:
        mem_mb=preset.execution.memory_gb * 1000,
        runtime=60,
        gpu=1,
    message:
        "evaluate {wildcards.id}"
    shell:
        RUN + " evaluate {wildcards.id} " + ON
