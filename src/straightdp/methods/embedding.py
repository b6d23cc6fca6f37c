"""DP-MERF, DP-HP and DP-NTK as one method with three feature maps (Table 1's prior methods).

The class-wise mean embedding of the private images is released once, at the cell's whole
budget; a class-conditional generator is then trained until its own mean embedding matches
the release. Generator and matching loop are shared by all three (Table 9), length scales and
pixel pairs come from the public set, and everything after the release is post-processing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from straightdp.data.sources import ImageSet
from straightdp.device import Compute
from straightdp.files import read_arrays, write_arrays
from straightdp.mechanisms.accounting import Adjacency, calibrate_releases
from straightdp.mechanisms.embeddings import embedding_charge, into_cube, release_embedding
from straightdp.mechanisms.feature_maps import (
    FeatureMap,
    hermite_map,
    median_squared_distance,
    random_fourier,
    tangent,
)
from straightdp.methods.cell import begin, publish
from straightdp.methods.progress import Progress
from straightdp.methods.public_stage import CLASSES
from straightdp.methods.sampling import CHUNK, sample_labels
from straightdp.methods.spaces import PixelCodec
from straightdp.methods.training import Phase, run_phase
from straightdp.model.adam import AdamW
from straightdp.model.generator import Generator
from straightdp.resolved import EmbeddingCellConfig, Matching
from straightdp.rng import Role, Streams

RELEASED = "released.npz"


def unit_pixels(codec: PixelCodec, images: np.ndarray) -> torch.Tensor:
    """(N, 28, 28) uint8 -> (N, d) in [0, 1], background 0: what the feature maps read."""
    return into_cube((codec.encode(images) + 1) / 2)


def build_feature_map(config: EmbeddingCellConfig, public: torch.Tensor) -> FeatureMap:
    """The cell's map, from PUBLIC records (N, d) in [0, 1] and the cell's published seed."""
    settings, streams = config.features, Streams.from_seed("features", config.seed)
    if settings.kind == "dp_ntk":
        return tangent(settings.width, public.shape[1], streams)
    length_squared = median_squared_distance(public, streams)
    if settings.kind == "dp_merf":
        return random_fourier(settings.features, public.shape[1], length_squared, streams)
    return hermite_map(
        public,
        settings.order,
        settings.pairs,
        settings.pair_order,
        settings.weight,
        length_squared,
        streams,
    )


def matching_phase(
    generator: Generator,
    feature_map: FeatureMap,
    target: torch.Tensor,
    settings: Matching,
    streams: Streams,
    compute: Compute,
) -> Phase:
    """The phase that minimises |target - M_generated|^2, target (Y, F) on the device.

    Each batch has the same number of every class; M_generated is over the batch's size.
    """
    optimizer = AdamW(generator.parameters(), settings.learning_rate)
    labels = sample_labels(settings.batch).to(compute.device)

    def step(index: int) -> str:
        codes = streams.normal(Role.DISTILL, index, (settings.batch, generator.code))
        x = generator(codes.to(compute.device), labels)
        made = feature_map.class_sums(x, labels, CLASSES) / settings.batch
        loss = (made - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return f"loss {loss.item():.5f}"

    return Phase("matching", settings.steps, {"model": generator, "optimizer": optimizer}, step)


@torch.no_grad()
def generate(
    generator: Generator, count: int, streams: Streams, compute: Compute
) -> tuple[torch.Tensor, np.ndarray]:
    """`count` samples (n, d) in [0, 1] with labels (n,), the same number of each class."""
    labels = sample_labels(count)
    parts = []
    for index, part in enumerate(labels.split(CHUNK)):
        codes = streams.normal(Role.SAMPLE, index, (len(part), generator.code))
        parts.append(generator(codes.to(compute.device), part.to(compute.device)).cpu())
    return torch.cat(parts), labels.numpy()


def run_embedding(
    config: EmbeddingCellConfig,
    identity: str,
    public_data: ImageSet,
    private_data: ImageSet,
    folder: Path,
    compute: Compute,
    progress: Progress,
) -> None:
    """Run or resume a cell and publish its samples, transcript and `run.json` in `folder`.

    `identity` names the cell's noise key. The release is kept in `folder`/state, so that a
    resumed cell matches the very numbers that it had released and charged.
    """
    start = begin(config, identity, folder)
    state, noise, streams, ledger = start.state, start.noise, start.streams, start.ledger
    codec = PixelCodec(config.public.image_size)
    feature_map = build_feature_map(config, unit_pixels(codec, public_data.images))
    feature_map = feature_map.to(compute.device)
    sigma = calibrate_releases(config.privacy.epsilon, config.privacy.delta, 1)
    records, adjacency = config.data.records, Adjacency(config.privacy.adjacency)
    path = state / RELEASED
    if path.exists():  # an earlier start released it; its charge is compared with this one
        ledger.charge(embedding_charge(records, sigma, adjacency))
    else:
        x = unit_pixels(codec, private_data.images).to(compute.device)
        labels = torch.from_numpy(private_data.labels).to(compute.device)
        released = release_embedding(
            x, labels, feature_map, CLASSES, records, sigma, adjacency, noise, ledger
        )
        write_arrays(path, embedding=released.float().numpy())
        progress.say(f"embedding of {feature_map.size} features released, sigma {sigma:.3f}")
    target = torch.from_numpy(read_arrays(path)["embedding"]).to(compute.device)
    torch.manual_seed(streams.torch_seed(Role.INIT))
    size = codec.image_size**2
    generator = Generator(classes=CLASSES, pixels=size, **config.generator.model_dump())
    generator.to(compute.device)
    phase = matching_phase(generator, feature_map, target, config.matching, streams, compute)
    run_phase(phase, state, compute, progress)
    progress.say(f"sampling {config.sampling.count}")
    samples, labels = generate(generator, config.sampling.count, streams, compute)
    publish(config, folder, codec.decode(2 * samples - 1), labels, generator, compute)
