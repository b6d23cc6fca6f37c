"""The network in whose features candidates are voted for: public, made once per public set.

Inception-V3 where its weights are at hand (trained on ImageNet), else a LeNet trained on the
PUBLIC set. The evaluation's own LeNet has seen private images and must never come here, so a
record says what the network was trained on, and both making and loading one refuse private data.
"""

from __future__ import annotations

from pathlib import Path

from straightdp.data.sources import ImageSet
from straightdp.evaluation.extractors import (
    LENET,
    Extractor,
    InceptionExtractor,
    LeNetExtractor,
    inception_weights,
    pick_extractor,
)
from straightdp.files import DamagedFile, read_json, write_json
from straightdp.methods.progress import Progress
from straightdp.resolved import PublicExtractorConfig
from straightdp.sections import share_records

SCHEMA = 1
RECORD, LENET_WEIGHTS = "extractor.json", "lenet.pt"


class NotPublic(ValueError):
    """An extractor that has seen, or would see, other images than the public set's."""


def prepare_public_extractor(
    config: PublicExtractorConfig, images: ImageSet, folder: Path, progress: Progress
) -> None:
    """Make the extractor in `folder`; :class:`NotPublic` for images of another source."""
    if images.name != config.data.source:
        raise NotPublic(
            f"the public extractor is trained on {config.data.source}, not on {images.name}"
        )
    weights = inception_weights(config.inception_weights)
    name = pick_extractor(config.extractor, weights)
    extractor: Extractor
    if name == LENET:
        progress.say(f"training {LENET} on {images.name}")
        extractor = LeNetExtractor.train(images.images, images.labels, config.lenet_steps)
        extractor.save(folder / LENET_WEIGHTS)
    else:
        extractor = InceptionExtractor(weights)
    write_json(
        folder / RECORD,
        {
            "schema": SCHEMA,
            "extractor": name,
            "checksum": extractor.checksum,
            "weights": LENET_WEIGHTS if name == LENET else str(weights),
            "trained_on": images.name if name == LENET else "imagenet",
        },
    )


def load_public_extractor(folder: Path, private: str) -> Extractor:
    """The extractor of a folder, for votes of the source `private`.

    :class:`NotPublic` where it was trained on that source's records, or says nothing of its
    training (as the evaluation's does not); :class:`DamagedFile` where the weights changed.
    """
    record = read_json(folder / RECORD)
    trained_on = record.get("trained_on")
    if not isinstance(trained_on, str) or share_records(trained_on, private):
        raise NotPublic(
            f"{folder}: an extractor trained on {trained_on or 'an unnamed set'} is not public "
            f"where {private} is private"
        )
    extractor: Extractor
    if record["extractor"] == LENET:
        extractor = LeNetExtractor.load(folder / LENET_WEIGHTS)
    else:
        extractor = InceptionExtractor(Path(record["weights"]))
    if extractor.checksum != record["checksum"]:
        raise DamagedFile(
            f"{folder}: the weights ({extractor.checksum}) are not those on record "
            f"({record['checksum']})"
        )
    return extractor
