"""The networks whose features FID is measured in, each under its own name and checksum.

`inception_v3_tf` is Inception-V3's pool-3 layer with the weights of the FID literature
(TensorFlow port), through torch-fidelity. `fid_lenet` is a small convnet trained on real
images, for where those weights are not at hand; `fid_random` (blind.py) depends on no data.
Numbers of different extractors are never put into one column.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from straightdp.evaluation.probe import CHUNK, CLASSES, LeNet, scaled, train_lenet
from straightdp.files import DamagedFile, load_tensors, save_tensors

INCEPTION, LENET = "inception_v3_tf", "fid_lenet"
WEIGHTS_VARIABLE = "STRAIGHTDP_INCEPTION"
WEIGHTS_FILE = "weights-inception-2015-12-05-6726825d.pth"
LENET_SCHEDULE = {"batch": 128, "learning_rate": 2e-3, "seed": 0}


class Extractor(Protocol):
    """Features (N, F) float32 of images (N, 28, 28) uint8, with a name and a checksum."""

    name: str
    checksum: str

    def features(self, images: np.ndarray) -> np.ndarray: ...


def tensor_checksum(state: dict[str, torch.Tensor]) -> str:
    """A short hash of weights, independent of the file they came from."""
    total = hashlib.sha256()
    for name in sorted(state):
        total.update(name.encode() + state[name].contiguous().cpu().numpy().tobytes())
    return total.hexdigest()[:12]


def load_lenet(path: Path, name: str, classes: int = CLASSES) -> LeNet:
    """A LeNet from its saved weights; :class:`DamagedFile` says whose they should have been."""
    network = LeNet(classes)
    try:
        network.load_state_dict(load_tensors(path))
    except (RuntimeError, TypeError) as error:  # other tensors; not a dict of tensors
        raise DamagedFile(f"{path}: not the weights of {name}") from error
    return network.eval()


@dataclass(frozen=True)
class LeNetExtractor:
    """The 84 penultimate features of a LeNet trained on real images.

    They are what the network's last ReLU gives, so none is negative.
    """

    network: LeNet
    checksum: str
    name: str = LENET

    @classmethod
    def train(cls, images: np.ndarray, labels: np.ndarray, steps: int) -> LeNetExtractor:
        """Train on images (N, 28, 28) uint8 with labels (N,) by LENET_SCHEDULE."""
        network = train_lenet(images, labels, steps, **LENET_SCHEDULE)
        return cls(network, tensor_checksum(network.state_dict()))

    def save(self, path: Path) -> None:
        save_tensors(path, self.network.state_dict())

    @classmethod
    def load(cls, path: Path) -> LeNetExtractor:
        """Read what :meth:`save` wrote; :class:`DamagedFile` names a file that is not that."""
        network = load_lenet(path, LENET)
        return cls(network, tensor_checksum(network.state_dict()))

    @torch.no_grad()
    def features(self, images: np.ndarray) -> np.ndarray:
        parts = [self.network.body(part) for part in scaled(images).split(CHUNK)]
        return torch.cat(parts).numpy()


def inception_input(images: np.ndarray) -> torch.Tensor:
    """(N, 28, 28) uint8 -> (N, 3, 28, 28) uint8: grey replicated.

    torch-fidelity's extractor resizes to 299 x 299 bilinearly, as TensorFlow 1 did, and
    scales to [-1, 1] itself.
    """
    grey = torch.from_numpy(np.ascontiguousarray(images))[:, None]
    return grey.expand(-1, 3, -1, -1).contiguous()


class InceptionExtractor:
    """Inception-V3's 2,048 pool-3 features; `weights` is a file that is already there.

    Its checksum is the file's own SHA-256, cut to 12 digits.
    """

    name = INCEPTION

    def __init__(self, weights: Path):
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

        self.checksum = hashlib.sha256(weights.read_bytes()).hexdigest()[:12]
        load_tensors(weights)  # refuses a file with code in it, which torch-fidelity would run
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            network = FeatureExtractorInceptionV3(
                "inception-v3-compat", ["2048"], feature_extractor_weights_path=str(weights)
            )
        except (RuntimeError, TypeError) as error:
            raise DamagedFile(f"{weights}: not the weights of {INCEPTION}") from error
        self.network = network.eval().to(self.device)

    @torch.no_grad()
    def features(self, images: np.ndarray, batch: int = 64) -> np.ndarray:
        parts = [
            self.network(part.to(self.device))[0].cpu()
            for part in inception_input(images).split(batch)
        ]
        return torch.cat(parts).float().numpy()


def inception_weights(setting: str | None) -> Path | None:
    """The weights file, if one is at hand: the setting, $STRAIGHTDP_INCEPTION, torch's cache.

    A file that is named but not there is refused (ValueError); nothing is downloaded.
    """
    for named, origin in (
        (setting, "evaluation.inception_weights"),
        (os.environ.get(WEIGHTS_VARIABLE), WEIGHTS_VARIABLE),
    ):
        if named:
            path = Path(named)
            if not path.is_file():
                raise ValueError(f"{origin}: {path} is not there")
            return path
    cached = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS_FILE
    return cached if cached.is_file() else None


def pick_extractor(setting: str, weights: Path | None) -> str:
    """The extractor that a setting comes to on this machine."""
    if setting == "auto":
        return INCEPTION if weights else LENET
    if setting == INCEPTION and weights is None:
        raise ValueError(
            f"evaluation.extractor: {INCEPTION} needs its weights ({WEIGHTS_FILE}): name the "
            f"file in evaluation.inception_weights or {WEIGHTS_VARIABLE}"
        )
    return setting
