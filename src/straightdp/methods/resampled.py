"""Other samples of a finished cell: post-processing of its model and of its release.

Nothing private is read and nothing is charged, so the cell's transcript is a copy of the one
that it draws from, and so is its epsilon. Figure 4's sweep over t_0 trains one model this way;
Section 4.3's post-hoc clamping imposes constraints on a model that was trained without them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from straightdp.device import Compute
from straightdp.evaluation.record import TRANSCRIPT, WEIGHTS, NotPassed, finished_run, passed
from straightdp.files import DamagedFile, load_tensors, write_text
from straightdp.flow.analytic import MomentModel
from straightdp.methods.cell import (
    MODEL,
    MOMENTS,
    publish,
    sampling_streams,
    weight_digests,
)
from straightdp.methods.progress import Progress
from straightdp.methods.public_stage import build_backbone, caption_table
from straightdp.methods.sampling import sample_vectors
from straightdp.methods.spaces import Codec
from straightdp.model.mmdit import MMDiT
from straightdp.model.posthoc import impose_
from straightdp.resolved import CellConfig, ResampledCellConfig, StartConfig


def remedy(folder: Path) -> str:
    """What to do about a damaged cell that others are drawn from."""
    return (
        f"this cell is drawn from {folder.name}: `straightdp rerun {folder.name} --preset PRESET`"
    )


def check_base(folder: Path, config: CellConfig) -> dict[str, str]:
    """The digests of a finished cell's weights, which are those that it was published with.

    :class:`DamagedFile` names the fault where something of it is not what was published.

    The weights of a cell from before their digests were kept are taken as they are.
    """
    try:
        passed(folder, config.model_dump())
        published = finished_run(folder).get(WEIGHTS, {})
    except NotPassed as error:
        raise DamagedFile(f"{error}; {remedy(folder)}") from error
    today = weight_digests(folder)
    for name in published if isinstance(published, dict) else ():
        if today.get(name) != published[name]:
            fault = "is not the file that was published" if name in today else "not there"
            raise DamagedFile(f"{folder / name}: {fault}; {remedy(folder)}")
    return today


def base_model(config: ResampledCellConfig, folder: Path) -> MMDiT:
    """The finished cell's network, under the constraints imposed on it if there are any."""
    base, state = config.base.config, load_tensors(folder / MODEL)
    if isinstance(config.resampling, StartConfig):
        model = build_backbone(base.public)
        model.load_state_dict(state)
        return model
    imposed = config.resampling.constraints.model_dump()
    backbone = base.public.backbone.model_copy(update=imposed)
    return impose_(build_backbone(base.public.model_copy(update={"backbone": backbone})), state)


def guided_from(config: ResampledCellConfig) -> float | None:
    """t_0 of the tilted start; None to start from noise."""
    if isinstance(config.resampling, StartConfig):
        return config.resampling.guidance_start
    base = config.base.config
    return base.stage1.guidance_start if base.method.port == "guide" else None


def run_resampled(
    config: ResampledCellConfig,
    source: Path,
    codec: Codec,
    folder: Path,
    compute: Compute,
    progress: Progress,
) -> None:
    """Draw from the finished cell in `source` and publish samples and transcript in `folder`.

    With the finished cell's own settings its samples come out bit for bit (on a CPU, with the
    same number of threads). Raises :class:`DamagedFile` where `source` is not as published.
    """
    base, start = config.base.config, guided_from(config)
    weights = check_base(source, base)
    try:
        model = base_model(config, source)
        released = None
        if start is not None:
            released = MomentModel.from_tensors(load_tensors(source / MOMENTS))
    except (DamagedFile, FileNotFoundError, KeyError, RuntimeError) as error:
        first = str(error).splitlines()[0]  # of weights that do not fit, many lines
        raise DamagedFile(f"{source}: {first}; {remedy(source)}") from error
    progress.say(f"sampling {base.sampling.count} from {source.name}, nothing trained")
    samples, labels = sample_vectors(
        model.to(compute.device).eval(),
        caption_table(base.public, compute),
        base.public.space.size,
        base.sampling,
        sampling_streams(base.seed),
        compute,
        released,
        start,
    )
    state = folder / "state"
    shutil.rmtree(state, ignore_errors=True)  # of a kill: there is nothing to go on from
    write_text(state / TRANSCRIPT, (source / TRANSCRIPT).read_text())
    images = codec.decode(samples)
    publish(config, folder, images, labels, None, compute, weights)
