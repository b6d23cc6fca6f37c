"""What running a unit means, by its kind; torch is imported only by the kinds that compute."""

from __future__ import annotations

from straightdp.cli.units import CONFIG, OUTPUTS, Workspace
from straightdp.files import made_by
from straightdp.resolved import (
    AutoencoderConfig,
    PublicConfig,
    PublicExtractorConfig,
    parse,
    parse_cell,
)
from straightdp.studies.cells import (
    Unit,
    autoencoder_unit,
    cell_base,
    cell_extractor,
    cell_public,
    data_unit,
    digest,
)


def run(unit: Unit, workspace: Workspace, execution, threads, progress) -> None:
    from straightdp.data.sources import load
    from straightdp.device import compute

    folder, config = workspace.folder(unit), unit.config
    if unit.kind == "data":
        from straightdp.data.glyphs import draw
        from straightdp.files import write_arrays

        progress.say(f"drawing {config['count']} {config['source']}")
        drawn = draw(config["count"], config["seed"], name=config["source"])
        write_arrays(folder / OUTPUTS["data"], images=drawn.images, labels=drawn.labels)
        return
    machine = compute(execution, threads)
    if unit.kind == "autoencoder":
        from straightdp.methods.spaces import train_autoencoder

        resolved = parse(AutoencoderConfig, config, folder / CONFIG)
        images = _public_images(workspace, config["data"])
        train_autoencoder(resolved, images, folder, machine, progress)
    elif unit.kind == "public":
        from straightdp.methods.public_stage import run_public

        resolved = parse(PublicConfig, config, folder / CONFIG)
        images = _public_images(workspace, config["data"])
        codec = _codec(workspace, config, resolved, machine)
        run_public(resolved, images, codec, folder, machine, progress)
    elif unit.kind == "public_extractor":
        from straightdp.methods.public_extractor import prepare_public_extractor

        resolved = parse(PublicExtractorConfig, config, folder / CONFIG)
        images = _public_images(workspace, config["data"])
        prepare_public_extractor(resolved, images, folder, progress)
    elif unit.kind == "extractor":
        from straightdp.evaluation.reference import prepare_reference

        train, test = load(config["private"], "train"), load(config["private"], "test")
        public = _public_images(workspace, config["public"])
        progress.say("training the evaluation's networks")
        prepare_reference(config, train, test, public, folder)
    elif unit.kind == "cells":
        from straightdp.methods.cell import settled

        resolved = parse_cell(config, folder / CONFIG)
        if settled(resolved, folder):
            progress.say("finished before, with noise of its own: its record stands")
            return
        family = config["method"].get("family", "flow")
        RUNNERS[family](unit, resolved, workspace, machine, progress)


def _public_images(workspace: Workspace, public_data: dict):
    from straightdp.data.sources import ImageSet, load
    from straightdp.files import read_arrays

    unit = data_unit(public_data)
    if unit is None:
        return load(public_data["source"], "train")
    with made_by(workspace.folder(unit)):
        arrays = read_arrays(workspace.output(unit))
        return ImageSet(unit.config["source"], arrays["images"], arrays["labels"])


def _run_flow(unit: Unit, resolved, workspace: Workspace, machine, progress) -> None:
    from straightdp.data.sources import load
    from straightdp.methods.pipeline import Inputs, run_cell

    folder, config = workspace.folder(unit), unit.config
    distils = config["method"]["port"] == "distill"
    inputs = Inputs(
        public=_public(workspace, config),
        codec=_codec(workspace, config["public"], resolved.public, machine),
        public_data=_public_images(workspace, config["public"]["data"]) if distils else None,
        private_data=load(config["data"]["private"], "train"),
    )
    run_cell(resolved, digest(config, 32), inputs, folder, machine, progress)


def _run_embedding(unit: Unit, resolved, workspace: Workspace, machine, progress) -> None:
    from straightdp.data.sources import load
    from straightdp.methods.embedding import run_embedding

    folder, config = workspace.folder(unit), unit.config
    run_embedding(
        resolved,
        digest(config, 32),
        _public_images(workspace, config["public"]["data"]),
        load(config["data"]["private"], "train"),
        folder,
        machine,
        progress,
    )


def _run_evolution(unit: Unit, resolved, workspace: Workspace, machine, progress) -> None:
    from straightdp.data.sources import load
    from straightdp.methods.evolution import run_evolution
    from straightdp.methods.public_extractor import load_public_extractor

    folder, config = workspace.folder(unit), unit.config
    private, shared = config["data"]["private"], workspace.folder(cell_extractor(config))
    with made_by(shared):
        voting = load_public_extractor(shared, private)
    run_evolution(
        resolved,
        digest(config, 32),
        _public(workspace, config),
        _codec(workspace, config["public"], resolved.public, machine),
        voting,
        load(private, "train"),
        folder,
        machine,
        progress,
    )


def _run_resampled(unit: Unit, resolved, workspace: Workspace, machine, progress) -> None:
    from straightdp.methods.resampled import run_resampled

    base = cell_base(unit.config)
    public = resolved.base.config.public
    codec = _codec(workspace, base.config["public"], public, machine)
    source = workspace.folder(base)
    run_resampled(resolved, source, codec, workspace.folder(unit), machine, progress)


def _public(workspace: Workspace, config: dict):
    from straightdp.methods.public_stage import load_public

    folder = workspace.folder(cell_public(config))
    with made_by(folder):
        return load_public(folder)


# By the method's family.
RUNNERS = {
    "flow": _run_flow,
    "embedding": _run_embedding,
    "evolution": _run_evolution,
    "resampled": _run_resampled,
}


def _codec(workspace: Workspace, config: dict, resolved: PublicConfig, machine):
    from straightdp.methods.spaces import load_codec

    if "autoencoder" not in config:
        return load_codec(resolved.space, None, machine)
    folder = workspace.folder(autoencoder_unit(config["autoencoder"]))
    with made_by(folder):
        return load_codec(resolved.space, folder, machine)
