"""The public stage: everything that is learned or calibrated before private data is touched.

Once per (public set, space, backbone, seed): the pretrained backbone (with its running
average), the PCA basis and feature clip of the release, the public moments that shape the
planner, the horizon tau, and the gradient norms that set the clips (Sections 3.1 to 3.3,
Appendix B.5, Table 9).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch

from straightdp.data.sources import ImageSet
from straightdp.device import Compute
from straightdp.files import load_tensors, read_json, save_tensors, write_json
from straightdp.flow.analytic import MomentModel
from straightdp.flow.horizon import calibrate_horizon
from straightdp.flow.path import ema_update_, interpolate, velocity_target
from straightdp.mechanisms.clipping import clipped_gradient_sum
from straightdp.mechanisms.moments import (
    FeatureMap,
    ReleaseSpec,
    exact_moments,
    fit_feature_map,
)
from straightdp.mechanisms.planner import PublicGradients
from straightdp.methods.progress import Progress
from straightdp.methods.spaces import Codec, token_layout
from straightdp.methods.training import Phase, one_cycle, run_phase
from straightdp.model.adam import AdamW
from straightdp.model.caption import CaptionEncoder, CaptionSpec
from straightdp.model.mmdit import BackboneSpec, MMDiT
from straightdp.resolved import PublicConfig
from straightdp.rng import Role, Streams

CLASSES = 10
CLIP_RECORDS = 256  # public records whose gradient norms set the clips
RADIUS_QUANTILE = 0.999  # of the public codes' norms: R in the latent space
INTERVALS = ("full", "above_tau")  # [0, 1] without distillation, [tau, 1] with it


@dataclass(frozen=True)
class PublicStage:
    """What a cell reads: all of it public."""

    network: dict  # the backbone's averaged weights
    feature_map: FeatureMap
    moments: MomentModel  # exact moments of the PUBLIC set
    radius: float  # R: private records are projected onto this ball
    tau: float
    gradients: dict[str, PublicGradients]  # by interval


def build_backbone(config: PublicConfig) -> MMDiT:
    """The backbone of a configuration, freshly initialised."""
    spec = BackboneSpec(
        **config.backbone.model_dump(exclude={"width", "depth", "heads"}),
        width=config.backbone.width,
        depth=config.backbone.depth,
        heads=config.backbone.heads,
    )
    return MMDiT(spec, token_layout(config.space), config.caption.length, config.caption.width)


def prior_network(config: PublicConfig, public: PublicStage, compute: Compute) -> MMDiT:
    """The pretrained backbone of a public stage, a copy of its own for each caller."""
    model = build_backbone(config)
    model.load_state_dict(public.network)
    return model.to(compute.device)


def caption_table(config: PublicConfig, compute: Compute) -> torch.Tensor:
    """(Y + 1, L, W): the classes' captions, and the null caption in the last row."""
    encoder = CaptionEncoder(CaptionSpec(**config.caption.model_dump()))
    return encoder.table(CLASSES).to(compute.device)


def bucket_edges(low: float, count: int) -> list[float]:
    """`count` equal time buckets covering [low, 1]."""
    return [low + (1 - low) * k / count for k in range(count + 1)]


def flow_loss(model, z, captions, streams: Streams, role: Role, step: int, low: float, compute):
    """Equation 1 on a public batch, mean over records and coordinates, t uniform on [low, 1]."""
    t = low + (1 - low) * streams.uniform(role, step, (len(z),), sub=1).to(z.device)
    xi = streams.normal(role, step, z.shape, sub=2).to(z.device)
    with compute.autocast():
        predicted = model(interpolate(z, xi, t[:, None]), t, captions)
    return (predicted.float() - velocity_target(z, xi)).square().mean()


def pretrain(
    config: PublicConfig, z: torch.Tensor, labels: torch.Tensor, folder: Path, compute, progress
) -> MMDiT:
    """Pretrain the backbone on public vectors; returns its running average (EMA).

    The constraints of Section 3.3 are active from the first step.
    """
    settings = config.pretraining
    streams = Streams.from_seed("public", config.seed)
    torch.manual_seed(streams.torch_seed(Role.INIT))
    model = build_backbone(config).to(compute.device)
    average = copy.deepcopy(model)
    optimizer = AdamW(model.parameters(), settings.learning_rate, weight_decay=0.01)
    table = caption_table(config, compute)

    def step(index: int) -> str:
        generator = streams.generator(Role.PRETRAIN, index)
        draw = torch.from_numpy(generator.integers(len(z), size=settings.batch))
        dropped = torch.from_numpy(generator.random(settings.batch) < settings.p_uncond)
        rows = labels[draw].masked_fill(dropped, CLASSES).to(compute.device)
        if settings.schedule == "one_cycle":
            optimizer.lr = settings.learning_rate * one_cycle(index, settings.steps)
        batch = z[draw].to(compute.device)
        loss = flow_loss(model, batch, table[rows], streams, Role.PRETRAIN, index, 0.0, compute)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.project_()
        ema_update_(average, model, settings.ema)
        return f"loss {loss.item():.4f}"

    parts = {"model": model, "average": average, "optimizer": optimizer}
    run_phase(
        Phase("pretraining", settings.steps, parts, step), folder / "state", compute, progress
    )
    return average.eval()


def public_gradients(
    config: PublicConfig, model: MMDiT, z, labels, low: float, compute: Compute
) -> PublicGradients:
    """Per-bucket norms of public per-example gradients, and of their mean, at the model.

    Times are uniform on each bucket of [low, 1]; the noise multiplicity is that of training.
    """
    settings = config.gradients
    streams = Streams.from_seed("clips", config.seed)
    edges = bucket_edges(low, settings.buckets)
    table = caption_table(config, compute)
    count = min(CLIP_RECORDS, len(z))
    draw = torch.from_numpy(
        streams.generator(Role.CALIBRATE).choice(len(z), size=count, replace=False)
    )
    norms, means = [], []
    for k in range(settings.buckets):
        shape = (count, settings.multiplicity)
        t = edges[k] + (edges[k + 1] - edges[k]) * streams.uniform(Role.CALIBRATE, k, shape, 1)
        xi = streams.normal(Role.CALIBRATE, k, (*shape, z.shape[1]), 2)
        batch = z[draw][:, None].expand_as(xi)
        sums, bucket_norms = clipped_gradient_sum(
            model,
            interpolate(batch, xi, t[..., None]).to(compute.device),
            t.to(compute.device),
            table[labels[draw].to(compute.device)],
            velocity_target(batch, xi).to(compute.device),
            clip=float("inf"),
            micro_batch=compute.micro_batch,
        )
        norms.append(bucket_norms.double().cpu().numpy())
        square = sum(part.double().square().sum().item() for part in sums)
        means.append(square**0.5 / count)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return PublicGradients(tuple(edges), tuple(map(tuple, norms)), tuple(means), parameters)


def run_public(
    config: PublicConfig,
    data: ImageSet,
    codec: Codec,
    folder: Path,
    compute: Compute,
    progress: Progress,
) -> None:
    """Run a public stage and write `public.pt` and, for reading, `calibration.json`."""
    z, labels = codec.encode(data.images), torch.from_numpy(data.labels)
    average = pretrain(config, z, labels, folder, compute, progress)
    settings, space = config.moments, config.space
    if space.kind == "pixel":
        radius = float(space.size) ** 0.5
    else:
        radius = float(torch.quantile(z.norm(dim=1), RADIUS_QUANTILE))
    feature_map = fit_feature_map(z, space.components, settings.clip_quantile)
    spec = ReleaseSpec(CLASSES, len(z), settings.rank, settings.floor)
    moments = exact_moments(z, labels, feature_map, spec)
    streams = Streams.from_seed("horizon", config.seed)
    horizon = calibrate_horizon(
        moments, z, labels, streams, cap=settings.horizon.cap, threshold=settings.horizon.cosine
    )
    tau = horizon.tau
    lows = {"full": 0.0, "above_tau": tau}
    progress.say(f"horizon tau {tau:.3f}, feature clip {feature_map.clip:.2f}; gradient norms")
    gradients = {
        name: public_gradients(config, average, z, labels, low, compute)
        for name, low in lows.items()
    }
    report = {
        "tau": tau,
        "radius": radius,
        "feature_clip": feature_map.clip,
        "horizon": horizon.to_dict(),
        "gradients": {name: value.to_dict() for name, value in gradients.items()},
    }
    state = {
        "network": {name: value.cpu() for name, value in average.state_dict().items()},
        "mean": feature_map.mean,
        "components": feature_map.components,
        "clip": feature_map.clip,
        "moments": moments.to_tensors(),
    }
    write_json(folder / "calibration.json", report)
    save_tensors(folder / "public.pt", state)


def load_public(folder: Path) -> PublicStage:
    """Read what :func:`run_public` wrote."""
    state, report = load_tensors(folder / "public.pt"), read_json(folder / "calibration.json")
    return PublicStage(
        network=state["network"],
        feature_map=FeatureMap(state["mean"], state["components"], state["clip"]),
        moments=MomentModel.from_tensors(state["moments"]),
        radius=report["radius"],
        tau=report["tau"],
        gradients={
            name: PublicGradients.from_dict(report["gradients"][name]) for name in INTERVALS
        },
    )
