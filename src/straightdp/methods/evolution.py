"""Private Evolution from the frozen public prior (Lin et al. 2024; Section 4.2, Table 9).

A population of the prior's own samples, the same number of each class, goes through T rounds:

1. each candidate is represented by the mean feature of a few variations of it (their
   lookahead), in the features of a public extractor;
2. the private records vote for the nearest candidate of their class, and the histogram of
   votes is released (:mod:`straightdp.mechanisms.votes`): the only step that sees them;
3. candidates are drawn again in proportion to what their noisy counts have above a threshold;
4. each one drawn is varied: renoised to t_v and integrated back under its own caption.

t_v grows linearly from round to round, so that variations become milder. The last round draws
as many as there are to be samples, and its variations are the samples: nothing but noisy votes
is ever read from the private set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from straightdp.data.pixels import project_to_ball
from straightdp.data.sources import ImageSet
from straightdp.device import Compute
from straightdp.evaluation.extractors import Extractor
from straightdp.files import write_json
from straightdp.flow.path import interpolate
from straightdp.mechanisms.accounting import Adjacency, calibrate_releases
from straightdp.mechanisms.votes import VoteReleases, resample, survivors, vote_histogram
from straightdp.methods.cell import begin, publish
from straightdp.methods.progress import Progress
from straightdp.methods.public_stage import (
    CLASSES,
    PublicStage,
    caption_table,
    prior_network,
)
from straightdp.methods.sampling import CHUNK, integrate, sample_labels, sample_vectors
from straightdp.methods.spaces import PixelCodec
from straightdp.methods.training import Phase, run_phase
from straightdp.resolved import EvolutionCellConfig, EvolutionConfig
from straightdp.rng import Role, Streams

RECORD = "evolution.json"


def renoising_time(index: int, rounds: int, times: tuple[float, float]) -> float:
    """t_v of round `index` (from 0): linear from times[0] to times[1] at the last round."""
    first, last = times
    return first + (last - first) * index / max(1, rounds - 1)


def by_class(rows: torch.Tensor) -> torch.Tensor:
    """(M Y, ...) rows in the order of `sample_labels` -> (Y, M, ...)."""
    return rows.unflatten(0, (-1, CLASSES)).transpose(0, 1)


@dataclass(frozen=True)
class Variation:
    """Renoise to t and integrate back with the frozen prior (Table 9's t_v)."""

    model: torch.nn.Module
    table: torch.Tensor
    steps: int  # Euler steps of a whole trajectory; a variation takes its part of them
    guidance: float
    streams: Streams
    compute: Compute

    def __call__(self, z: torch.Tensor, t: float, index: int, copy: int) -> torch.Tensor:
        """One variation of each of z (n, d), within pixel range; draws are (round, copy)'s.

        Rows are in the order of `sample_labels`.
        """
        xi = self.streams.normal(Role.EVOLVE, index, z.shape, sub=1 + copy)
        noised = interpolate(z, xi, torch.tensor(t))
        steps = max(1, math.ceil((1 - t) * self.steps - 1e-9))
        labels = sample_labels(len(z))
        parts = [
            integrate(self.model, self.table, x, y, t, steps, self.guidance, self.compute)
            for x, y in zip(noised.split(CHUNK), labels.split(CHUNK), strict=True)
        ]
        return torch.cat(parts).clamp(-1, 1)


class Population:
    """What a round changes: the vectors (n, d), and how many candidates each class kept."""

    def __init__(self, z: torch.Tensor):
        self.z, self.kept = z, torch.zeros(0, CLASSES, dtype=torch.int64)

    def state_dict(self) -> dict:
        return {"z": self.z, "kept": self.kept}

    def load_state_dict(self, state: dict) -> None:
        self.z, self.kept = state["z"], state["kept"]


def evolution_phase(
    population: Population,
    vary: Variation,
    represent: Callable[[torch.Tensor], torch.Tensor],
    private: tuple[torch.Tensor, torch.Tensor],
    settings: EvolutionConfig,
    last: int,
    releases: VoteReleases,
) -> Phase:
    """The rounds as a phase; its state is the population, of `last` a class in the end.

    `represent` gives features (n, F) of vectors (n, d); `private` holds the records' features
    (N, F) and labels (N,). Which candidates survive is post-processing of the release.
    """
    features, labels = private

    def step(index: int) -> str:
        t = renoising_time(index, settings.rounds, settings.renoise)
        ahead = sum(
            represent(vary(population.z, t, index, copy)) for copy in range(settings.variations)
        )
        candidates = by_class(ahead / settings.variations)
        noisy = releases.release(vote_histogram(features, labels, candidates), index)
        chances = survivors(noisy, settings.threshold * releases.noise_std)
        size = last if index == settings.rounds - 1 else settings.population
        drawn = resample(chances, size, vary.streams.generator(Role.EVOLVE, index))
        rows = drawn * CLASSES + torch.arange(CLASSES)[:, None]  # back into the flat order
        population.z = vary(population.z[rows.T.flatten()], t, index, settings.variations)
        kept = (chances > 0).sum(1)
        population.kept = torch.cat([population.kept, kept[None]])
        return f"kept {int(kept.sum())} of {chances.numel()} candidates"

    return Phase("evolution", settings.rounds, {"population": population}, step)


def run_evolution(
    config: EvolutionCellConfig,
    identity: str,
    public: PublicStage,
    codec: PixelCodec,
    extractor: Extractor,
    private_data: ImageSet,
    folder: Path,
    compute: Compute,
    progress: Progress,
) -> None:
    """Run or resume a cell and publish its samples, transcript and `run.json` in `folder`.

    `identity` names the cell's noise key. The whole budget goes to the T histograms, and every
    round leaves a checkpoint in `folder`/state. Writes `evolution.json` beside the results: what
    was voted in, and what the released histograms kept.
    """
    begun = begin(config, identity, folder)
    state, noise, streams, ledger = begun.state, begun.noise, begun.streams, begun.ledger
    settings, privacy, sampling = config.evolution, config.privacy, config.sampling
    multiplier = calibrate_releases(privacy.epsilon, privacy.delta, settings.rounds)
    releases = VoteReleases(
        settings.rounds, multiplier, Adjacency(privacy.adjacency), noise, ledger
    )

    def represent(vectors: torch.Tensor) -> torch.Tensor:
        # Private records and candidates alike pass through the codec: equal resolution.
        return torch.from_numpy(extractor.features(codec.decode(vectors))).to(compute.device)

    table = caption_table(config.public, compute)
    model = prior_network(config.public, public, compute).eval()
    z = project_to_ball(codec.encode(private_data.images), public.radius)
    labels = torch.from_numpy(private_data.labels)
    count = settings.population * CLASSES
    progress.say(f"{multiplier:.3f} noise on each of {settings.rounds} rounds; population {count}")
    initial = sampling.model_copy(update={"count": count})
    start, _ = sample_vectors(model, table, z.shape[1], initial, streams, compute)
    population = Population(start.clamp(-1, 1))
    vary = Variation(model, table, sampling.steps, sampling.guidance, streams, compute)
    private = represent(z), labels.to(compute.device)
    last = sampling.count // CLASSES
    phase = evolution_phase(population, vary, represent, private, settings, last, releases)
    run_phase(phase, state, replace(compute, checkpoint_every=1), progress)
    releases.charge_to(settings.rounds)  # a run resumed at its very end has charged nothing yet
    times = [renoising_time(i, settings.rounds, settings.renoise) for i in range(settings.rounds)]
    write_json(
        folder / RECORD,
        {
            "extractor": extractor.name,
            "extractor_checksum": extractor.checksum,
            "noise_std": releases.noise_std,
            "threshold_votes": settings.threshold * releases.noise_std,
            "renoising_times": times,
            "kept_by_round_and_class": population.kept.tolist(),
        },
    )
    samples, drawn = population.z, sample_labels(len(population.z)).numpy()
    publish(config, folder, codec.decode(samples), drawn, model, compute)
