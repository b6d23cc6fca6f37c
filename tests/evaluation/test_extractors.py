"""The feature extractors: round trips, checksums, preprocessing, and which one applies."""

import hashlib
import pickle

import numpy as np
import pytest
import torch
from torch_fidelity import feature_extractor_inceptionv3 as fidelity

from straightdp.data.sources import load
from straightdp.evaluation.extractors import (
    WEIGHTS_FILE,
    InceptionExtractor,
    LeNetExtractor,
    inception_weights,
    pick_extractor,
)
from straightdp.evaluation.fid import frechet_distance, gaussian_statistics
from straightdp.evaluation.probe import scaled
from straightdp.files import DamagedFile, save_tensors


@pytest.fixture(scope="module")
def digits():
    return load("embedded", "train"), load("embedded", "test")


@pytest.fixture(scope="module")
def lenet(digits):
    train, _ = digits
    return LeNetExtractor.train(train.images, train.labels, steps=40)


def test_lenet_features_are_what_its_classes_are_read_from(lenet, digits):
    images = digits[1].images[:1200]
    features = lenet.features(images)
    assert features.shape == (1200, 84)
    assert features.dtype == np.float32
    head = lenet.network.head
    by_hand = features @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    with torch.no_grad():
        assert by_hand == pytest.approx(lenet.network(scaled(images)).numpy(), abs=1e-4)


def test_lenet_comes_back_from_its_file(lenet, digits, tmp_path):
    lenet.save(tmp_path / "lenet.pt")
    back = LeNetExtractor.load(tmp_path / "lenet.pt")
    images = digits[1].images[:100]
    assert np.array_equal(back.features(images), lenet.features(images))
    assert (back.name, back.checksum) == ("fid_lenet", lenet.checksum)


def test_checksum_follows_the_weights(lenet, digits, tmp_path):
    train, _ = digits
    short, again, longer = (
        LeNetExtractor.train(train.images[:500], train.labels[:500], steps) for steps in (2, 2, 3)
    )
    assert short.checksum == again.checksum
    assert short.checksum != longer.checksum
    state = {name: value.clone() for name, value in lenet.network.state_dict().items()}
    state["head.bias"][3] += 1e-6
    save_tensors(tmp_path / "changed.pt", state)
    assert LeNetExtractor.load(tmp_path / "changed.pt").checksum != lenet.checksum


def test_a_file_of_other_weights_is_named(tmp_path):
    for value in ({"weight": torch.zeros(3)}, [torch.zeros(3)]):
        save_tensors(tmp_path / "other.pt", value)
        with pytest.raises(DamagedFile, match="other.pt: not the weights of fid_lenet"):
            LeNetExtractor.load(tmp_path / "other.pt")


def test_a_worse_imitation_is_further_away(lenet, digits):
    """FID of real images with more and more of their pixels replaced by noise."""
    train, test = digits
    reference = gaussian_statistics(lenet.features(test.images))
    generator = np.random.default_rng(0)
    images = train.images[::8]
    noise = generator.integers(0, 256, size=images.shape, dtype=np.uint8)
    place = generator.random(images.shape)
    distances = [
        frechet_distance(
            gaussian_statistics(lenet.features(np.where(place < part, noise, images))), reference
        )
        for part in (0.0, 0.1, 0.3, 1.0)
    ]
    assert distances == sorted(distances)
    assert distances[0] < 0.5 * distances[1]


@pytest.fixture(scope="module")
def random_inception(tmp_path_factory):
    """A weights file in the literature's format with random weights."""
    path = tmp_path_factory.mktemp("inception") / WEIGHTS_FILE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fidelity, "load_state_dict_from_url", lambda *_, **__: None)
        patch.setattr(
            fidelity.FeatureExtractorInceptionV3, "load_state_dict", lambda *_, **__: None
        )
        network = fidelity.FeatureExtractorInceptionV3("random", ["2048"])
    torch.save(network.state_dict(), path)
    return path


def tensorflow_resize(image: np.ndarray, size: int) -> np.ndarray:
    """Bilinear as TensorFlow 1 has it: corner-aligned grid at i * in / out, edges repeated."""
    places = np.arange(size) * (len(image) / size)
    low = np.floor(places).astype(int)
    high, part = np.minimum(low + 1, len(image) - 1), places - low
    rows = image[low] * (1 - part)[:, None] + image[high] * part[:, None]
    return rows[:, low] * (1 - part) + rows[:, high] * part


def test_inception_sees_grey_thrice_resized_and_scaled(random_inception):
    extractor = InceptionExtractor(random_inception)
    seen = []
    extractor.network.Conv2d_1a_3x3.register_forward_pre_hook(
        lambda _, arguments: seen.append(arguments[0].cpu().numpy())
    )
    images = np.random.default_rng(0).integers(0, 256, size=(2, 28, 28), dtype=np.uint8)
    features = extractor.features(images, batch=1)
    assert features.shape == (2, 2048)
    assert features.dtype == np.float32
    inputs = np.concatenate(seen)
    assert inputs.shape == (2, 3, 299, 299)
    for image, channels in zip(images, inputs, strict=True):
        expected = (tensorflow_resize(image.astype(float), 299) - 128) / 128
        for channel in channels:
            np.testing.assert_allclose(channel, expected, atol=1e-4)
    assert extractor.name == "inception_v3_tf"
    assert hashlib.sha256(random_inception.read_bytes()).hexdigest().startswith(extractor.checksum)


def test_inception_weights_with_code_in_them_are_refused_unrun(tmp_path):
    class Touch:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    path = tmp_path / "weights.pth"
    path.write_bytes(pickle.dumps({"weight": Touch()}, protocol=2))
    with pytest.raises(DamagedFile, match="weights.pth"):
        InceptionExtractor(path)
    assert not (tmp_path / "ran").exists()


def test_other_weights_are_not_inception(tmp_path):
    save_tensors(tmp_path / "small.pth", {"weight": torch.zeros(3)})
    with pytest.raises(DamagedFile, match="small.pth: not the weights of inception_v3_tf"):
        InceptionExtractor(tmp_path / "small.pth")


def test_which_extractor_applies(tmp_path, monkeypatch):
    monkeypatch.delenv("STRAIGHTDP_INCEPTION", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    assert inception_weights(None) is None
    assert pick_extractor("auto", None) == "fid_lenet"
    with pytest.raises(ValueError, match="STRAIGHTDP_INCEPTION"):
        pick_extractor("inception_v3_tf", None)

    cached = tmp_path / "hub" / "checkpoints" / WEIGHTS_FILE
    cached.parent.mkdir(parents=True)
    cached.touch()
    assert inception_weights(None) == cached
    assert pick_extractor("auto", cached) == "inception_v3_tf"
    assert pick_extractor("fid_lenet", cached) == "fid_lenet"

    named, chosen = tmp_path / "named.pth", tmp_path / "chosen.pth"
    named.touch(), chosen.touch()
    monkeypatch.setenv("STRAIGHTDP_INCEPTION", str(named))
    assert inception_weights(None) == named
    assert inception_weights(str(chosen)) == chosen
    with pytest.raises(ValueError, match="evaluation.inception_weights: .*gone.pth is not there"):
        inception_weights(str(tmp_path / "gone.pth"))
