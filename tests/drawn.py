"""Made-up results that figures are drawn from: metrics with their samples, a public stage."""

import json

import numpy as np
import torch

from straightdp.evaluation.record import digests
from straightdp.files import save_tensors, write_arrays, write_json
from straightdp.flow.analytic import MomentModel
from straightdp.studies.cells import evaluation_config, metrics_name
from straightdp.studies.figures import FIGURES, figure_places, figure_stages

TIMES = (0.1, 0.3, 0.5, 0.9)
HORIZON = {
    "tau": 0.3,
    "times": TIMES,
    "worst_class": (0.99, 0.97, 0.9, 0.2),
    "null_branch": (0.999, 0.98, 0.95, 0.3),
}


def moments(dimension: int = 6) -> MomentModel:
    return MomentModel(
        priors=torch.full((2,), 0.5),
        means=torch.zeros(2, dimension),
        basis=torch.eye(dimension)[:, :2],
        variances=torch.tensor([2.0, 0.5]),
        floor=0.01,
    )


def accuracy(cell) -> float:
    """Some number of the cell's own in (0, 1)."""
    return 0.1 + (int(cell.id[-8:], 16) % 1000) / 1250


def images(cell, count: int) -> np.ndarray:
    generator = np.random.default_rng(int(cell.id[-8:], 16))
    return generator.integers(256, size=(count, 28, 28), dtype=np.uint8)


def write_cell(preset, cell, root) -> None:
    folder, count = cell.folder(root), preset.sampling.count
    folder.mkdir(parents=True, exist_ok=True)
    write_arrays(
        folder / "samples.npz", images=images(cell, count), labels=np.arange(count)[::-1] % 10
    )
    for name in ("run.json", "transcript.jsonl"):
        (folder / name).write_text(f"{name} of {cell.id}")
    measured = {
        "value": accuracy(cell),
        "n": count,
        "by": "lenet_probe",
        "checksum": "0123abcd",
        "reference": "embedded test, n = 4000",
    }
    record = {
        "schema": 2,
        "status": "ok",
        "cell": {"id": cell.id},
        "replayed_epsilon": cell.epsilon if cell.epsilon < np.inf else "inf",
        "metrics": {"accuracy": measured, "fid": measured | {"value": 100 * accuracy(cell)}},
        "evaluation": evaluation_config(preset),
        "files": digests(folder),
    }
    (folder / metrics_name(preset)).write_text(json.dumps(record))


def write_stage(folder) -> None:
    gradients = {"edges": [0, 1], "norms": [[1.0]], "mean_norms": [1.0], "parameters": 1}
    write_json(
        folder / "calibration.json",
        {
            "tau": HORIZON["tau"],
            "radius": 1.0,
            "horizon": HORIZON,
            "gradients": {"full": gradients, "above_tau": gradients},
        },
    )
    state = {
        "network": {},
        "mean": torch.zeros(6),
        "components": torch.eye(6)[:2],
        "clip": 1.0,
        "moments": moments().to_tensors(),
    }
    save_tensors(folder / "public.pt", state)


def write_all(preset, root) -> None:
    """Everything that any figure of the preset shows."""
    for figure in FIGURES.values():
        for _, cell in figure_places(preset, figure):
            write_cell(preset, cell, root)
        for unit in figure_stages(preset, figure).values():
            write_stage(unit.folder(root))
