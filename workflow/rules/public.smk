# What is computed once and shared: drawn images, autoencoders, public stages, the extractor.


rule draw:
    output:
        f"{RESULTS}/data/{{id}}/images.npz",
    resources:
        mem_mb=preset.execution.memory_gb * 1000,
        runtime=60,
    message:
        "draw the public images {wildcards.id}"
    shell:
        RUN + " prepare {wildcards.id} " + ON + WAIT


rule autoencoder:
    input:
        lambda wildcards: drawn_images(AUTOENCODERS[wildcards.id].config["data"]),
    output:
        f"{RESULTS}/autoencoder/{{id}}/autoencoder.pt",
    threads: preset.execution.threads
    resources:
        mem_mb=preset.execution.memory_gb * 1000,
        runtime=240,
        gpu=1,
    message:
        "autoencoder {wildcards.id}"
    shell:
        RUN + " prepare {wildcards.id} " + ON + WAIT


def public_inputs(wildcards):
    configuration = PUBLIC[wildcards.id].config
    found = drawn_images(configuration["data"])
    if "autoencoder" in configuration:
        found.append(str(workspace.output(autoencoder_unit(configuration["autoencoder"]))))
    return found


rule public_stage:
    input:
        public_inputs,
    output:
        f"{RESULTS}/public/{{id}}/public.pt",
        f"{RESULTS}/public/{{id}}/calibration.json",
    threads: preset.execution.threads
    resources:
        mem_mb=preset.execution.memory_gb * 1000,
        runtime=480,
        gpu=1,
    message:
        "public stage {wildcards.id}"
    shell:
        RUN + " prepare {wildcards.id} " + ON + WAIT


rule public_extractor:
    input:
        lambda wildcards: drawn_images(PUBLIC_EXTRACTORS[wildcards.id].config["data"]),
    output:
        f"{RESULTS}/public_extractor/{{id}}/extractor.json",
    threads: preset.execution.threads
    resources:
        mem_mb=preset.execution.memory_gb * 1000,
        runtime=60,
        gpu=1,
    message:
        "features of votes {wildcards.id}"
    shell:
        RUN + " prepare {wildcards.id} " + ON + WAIT


rule extractor:
    input:
        drawn_images(EXTRACTOR.config["public"]),
    output:
        f"{RESULTS}/extractor/{{id}}/extractor.json",
    threads: preset.execution.threads
    resources:
        mem_mb=preset.execution.memory_gb * 1000,
        runtime=120,
        gpu=1,
    message:
        "evaluation networks and reference statistics {wildcards.id}"
    shell:
        RUN + " prepare {wildcards.id} " + ON + WAIT
