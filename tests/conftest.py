"""What several tests share: a tiny preset, and a way to run commands as a user would."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest_plugins = ["slurm_fixtures"]

REPOSITORY = Path(__file__).parent.parent

TINY = {
    "name": "tiny",
    "data": {
        "public": "glyphs",
        "private": "embedded",
        "private_records": 20000,
        "glyph_count": 400,
    },
    "privacy": {"delta": 1e-5},
    "grid": {"epsilons": [1.0], "seeds": [0]},
    "spaces": {
        "pixel": {"image_size": 8, "patch": 4, "components": 16},
        "latent": {"size": 8, "tokens": 2, "components": 8},
    },
    "backbone": {
        "width": 16,
        "depth": 2,
        "heads": 2,
        "low_b0": {"clamp": 8, "late_blocks": 1, "decoupled": True, "spectral_cap": 1},
    },
    "caption": {"width": 16, "length": 8, "vocabulary": 256},
    "autoencoder": {"channels": 2, "steps": 20, "batch": 32, "learning_rate": 1e-3},
    "pretraining": {
        "steps": {"pixel": 20, "latent": 20},
        "batch": 32,
        "learning_rate": 1e-3,
        "schedule": "one_cycle",
        "ema": 0.9,
        "p_uncond": 0.1,
    },
    "stage1": {
        "weight": 0.2,
        "rank": 4,
        "floor": 1e-2,
        "clip_quantile": 0.9,
        "horizon": {"cap": 0.35, "cosine": 0.95},
        "distillation": {
            "steps": 12,
            "batch": 16,
            "learning_rate": 1e-3,
            "replay_weight": 0.5,
            "refresh": 5,
            "euler_steps": 3,
        },
        "guidance_start": 0.2,
    },
    "stage2": {
        "weight": 0.65,
        "steps": 12,
        "sampling_rate": 0.002,
        "multiplicity": 2,
        "learning_rate": 1e-3,
        "warmup": 2,
        "ema": 0.9,
        "p_uncond": 0.1,
        "buckets": 4,
        "shapes": [0, 0.5, 1],
        "clip_reference": 0.5,
    },
    "embedding": {
        "generator": {"code": 4, "width": 16, "depth": 2},
        "matching": {"steps": 12, "batch": 20, "learning_rate": 1e-3},
        "dp_merf": {"features": 40},
        "dp_hp": {"order": 3, "pairs": 20, "pair_order": 2, "weight": 0.5},
        "dp_ntk": {"width": 6},
    },
    "evolution": {
        "rounds": 3,
        "population": 6,
        "variations": 2,
        "renoise": [0.45, 0.85],
        "renoise_aggressive": [0.1, 0.5],
        "threshold": 1.414,
        "extractor": "fid_lenet",
        "lenet_steps": 20,
    },
    "controls": {
        "public": "letters",
        "glyph_count": 300,
        "weights": [0.1, 0.2],
        "starts": [0.2, 0.5],
        "multiplicity": 3,
    },
    "sampling": {"count": 100, "steps": 3, "guidance": 1.5},
    "evaluation": {
        "extractor": "fid_lenet",
        "lenet_steps": 20,
        "probe": {"steps": 20, "batch": 32, "learning_rate": 1e-3, "seeds": 1},
    },
    "execution": {"threads": 1, "micro_batch": 32, "checkpoint_every": 5},
}


@pytest.fixture(scope="session")
def tiny():
    """The tiny preset's values; copy before changing them."""
    return TINY


def write_preset(path: Path, values: dict) -> Path:
    path.write_text(yaml.safe_dump(values))
    return path


def copy_workflow(folder: Path, *more: str) -> Path:
    """The workflow as a user has it, in `folder`, with more of the repository's folders."""
    for name in ("workflow", "profiles", *more):
        shutil.copytree(REPOSITORY / name, folder / name)
    shutil.copy(REPOSITORY / "Snakefile", folder)
    return folder


def job_counts(done) -> dict[str, int]:
    """Jobs by rule and their total, from the table of a dry run's output."""
    lines = [line.split() for line in done.stdout.splitlines()]
    return {
        line[0]: int(line[1])
        for line in lines
        if len(line) == 2 and line[1].isdigit() and line[0].isidentifier()
    }


@pytest.fixture
def token_norms(monkeypatch) -> list[float]:
    """Grows by the largest token norm that enters a block, each time that one runs."""
    from straightdp.model import mmdit

    seen, plain = [], mmdit.Block.forward

    def forward(self, h, e, time):
        seen.append(max(h.norm(dim=-1).max().item(), e.norm(dim=-1).max().item()))
        return plain(self, h, e, time)

    monkeypatch.setattr(mmdit.Block, "forward", forward)
    return seen


def run(*arguments, cwd: Path, check: bool = True, timeout: int = 1500):
    """Run a command in `cwd`, with one thread and this interpreter's programs first."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
    )
    if check and done.returncode:
        raise AssertionError(f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done
