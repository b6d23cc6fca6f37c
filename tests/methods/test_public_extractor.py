"""The features of votes come from public data: private images are refused wherever they enter."""

import copy
import json

import numpy as np
import pytest
from conftest import TINY, write_preset

from straightdp.cli.units import Workspace, prerequisites, run_unit
from straightdp.config import ConfigError, load_preset
from straightdp.data import sources
from straightdp.data.glyphs import draw
from straightdp.data.sources import ImageSet, load
from straightdp.evaluation.extractors import LeNetExtractor
from straightdp.evaluation.reference import prepare_reference
from straightdp.files import DamagedFile, read_arrays, save_tensors
from straightdp.methods import public_extractor as module
from straightdp.methods.progress import Progress
from straightdp.methods.public_extractor import (
    NotPublic,
    load_public_extractor,
    prepare_public_extractor,
)
from straightdp.resolved import PublicExtractorConfig, parse, parse_cell
from straightdp.studies.cells import extractor, public_extractor_unit, public_stage, resolve

SETTINGS = {
    "schema": 1,
    "data": {"source": "glyphs", "count": 200},
    "extractor": "fid_lenet",
    "lenet_steps": 5,
}


def config(**changes) -> PublicExtractorConfig:
    return parse(PublicExtractorConfig, SETTINGS | changes, "x")


@pytest.fixture(scope="module")
def glyphs() -> ImageSet:
    return draw(200, 0)


@pytest.fixture
def made(glyphs, tmp_path):
    prepare_public_extractor(config(), glyphs, tmp_path, Progress("t"))
    return tmp_path


def test_it_is_the_network_that_the_public_images_give(glyphs, made):
    found = load_public_extractor(made, "embedded")
    expected = LeNetExtractor.train(glyphs.images, glyphs.labels, 5)
    assert found.checksum == expected.checksum
    assert np.array_equal(found.features(glyphs.images), expected.features(glyphs.images))
    assert json.loads((made / "extractor.json").read_text())["trained_on"] == "glyphs"


def test_private_images_are_refused_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(LeNetExtractor, "train", lambda *_: pytest.fail("trained"))
    with pytest.raises(NotPublic, match="is trained on glyphs, not on embedded"):
        prepare_public_extractor(config(), load("embedded", "train"), tmp_path, Progress("t"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("private", ["embedded", "mnist"])
def test_an_extractor_of_private_records_is_refused(made, private):
    """By its own record, whichever of the two sources with common records it names."""
    record = json.loads((made / "extractor.json").read_text())
    for trained_on in ("embedded", "mnist"):
        (made / "extractor.json").write_text(json.dumps(record | {"trained_on": trained_on}))
        with pytest.raises(NotPublic, match=f"trained on {trained_on} is not public"):
            load_public_extractor(made, private)


def test_the_evaluations_extractor_is_refused(glyphs, tmp_path):
    settings = {"inception_weights": None, "extractor": "fid_lenet", "lenet_steps": 2}
    prepare_reference(settings, glyphs, glyphs, glyphs, tmp_path)
    with pytest.raises(NotPublic, match="an unnamed set is not public"):
        load_public_extractor(tmp_path, "embedded")


def test_changed_weights_are_refused(made):
    found = load_public_extractor(made, "embedded")
    state = {name: value.clone() for name, value in found.network.state_dict().items()}
    state["head.bias"][3] += 1e-6
    save_tensors(made / "lenet.pt", state)
    with pytest.raises(DamagedFile, match="not those on record"):
        load_public_extractor(made, "embedded")


def test_inception_is_taken_where_its_weights_are_at_hand(glyphs, tmp_path, monkeypatch):
    class Stub:
        name = "inception_v3_tf"

        def __init__(self, weights):
            self.checksum = weights.read_text()

    monkeypatch.setattr(module, "InceptionExtractor", Stub)
    weights = tmp_path / "weights.pth"
    weights.write_text("abc")
    settings = config(extractor="auto", inception_weights=str(weights))
    prepare_public_extractor(settings, glyphs, tmp_path, Progress("t"))
    record = json.loads((tmp_path / "extractor.json").read_text())
    assert (record["extractor"], record["trained_on"]) == ("inception_v3_tf", "imagenet")
    assert load_public_extractor(tmp_path, "embedded").checksum == "abc"


@pytest.fixture
def preset(tmp_path):
    return load_preset(write_preset(tmp_path / "tiny.yaml", TINY))


def test_making_it_reads_no_private_set(preset, tmp_path, monkeypatch):
    cell = resolve(preset, "private_evolution", "pixel", 1.0, 0)
    unit = public_extractor_unit(cell.config["evolution"]["extractor"])
    assert unit in prerequisites(cell)
    assert unit.id != extractor(preset).id
    monkeypatch.setattr(sources, "load", lambda name, *_, **__: pytest.fail(f"read {name}"))
    monkeypatch.setattr(sources, "read_file", lambda name, *_: pytest.fail(f"read {name}"))
    workspace = Workspace(tmp_path / "results")
    run_unit(unit, workspace, preset.execution, 1)
    drawn = read_arrays(workspace.output(prerequisites(unit)[0]))
    expected = LeNetExtractor.train(drawn["images"], drawn["labels"], 20)
    found = load_public_extractor(workspace.folder(unit), "embedded")
    assert found.checksum == expected.checksum


def test_one_extractor_serves_every_seed_budget_and_schedule(preset):
    units = {
        public_extractor_unit(
            resolve(preset, method, "pixel", epsilon, seed).config["evolution"]["extractor"]
        ).id
        for method in ("private_evolution", "private_evolution_aggressive")
        for epsilon in (0.3, 3.0)
        for seed in (0, 1)
    }
    assert len(units) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c["evolution"]["extractor"].update(data={"source": "embedded"}),
            "embedded holds private records",
        ),
        (
            lambda c: c["evolution"]["extractor"].update(data={"source": "mnist"}),
            "mnist holds private records",
        ),
        (
            lambda c: c["evolution"]["extractor"].update(data={"source": "kmnist"}),
            "is not the public stage's",
        ),
        (lambda c: c.pop("evolution"), r"evolution: missing key"),
        (lambda c: c["method"].pop("family"), r"evolution: unknown key"),
    ],
)
def test_a_configuration_that_would_vote_elsewhere_is_refused(preset, change, said):
    values = copy.deepcopy(resolve(preset, "private_evolution", "pixel", 1.0, 0).config)
    parse_cell(values, "x")
    change(values)
    with pytest.raises(ConfigError, match=said):
        parse_cell(values, "x")


def test_an_evolution_runs_in_pixel_space_alone(preset):
    with pytest.raises(ValueError, match="pixel space, not in latent"):
        resolve(preset, "private_evolution", "latent", 1.0, 0)
    values = copy.deepcopy(resolve(preset, "private_evolution", "pixel", 1.0, 0).config)
    values["public"] = public_stage(preset, "latent", "standard", 0).config
    with pytest.raises(ConfigError, match="runs in pixel space"):
        parse_cell(values, "x")
