"""A cell's identity: what changes it, and what must not."""

import copy

import pytest
from conftest import REPOSITORY, TINY, write_preset

from straightdp.config import load_preset
from straightdp.resolved import CellConfig, ConfigError, parse
from straightdp.studies.cells import data_unit, extractor, metrics_name, public_stage, resolve
from straightdp.studies.grid import all_cells


def preset(tmp_path, change=lambda values: None):
    values = copy.deepcopy(TINY)
    change(values)
    return load_preset(write_preset(tmp_path / "p.yaml", values))


def identity(tmp_path, change=lambda values: None, method="tha_moments", space="latent"):
    return resolve(preset(tmp_path, change), method, space, 1.0, 0).id


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["grid"].update(seeds=[0, 1, 2], epsilons=[1, 3]),
        lambda v: v["execution"].update(threads=8, micro_batch=7, checkpoint_every=3),
        lambda v: v["evaluation"]["probe"].update(steps=99),
        lambda v: v.update(name="another"),
        lambda v: v["spaces"]["pixel"].update(components=17),  # the other space
        lambda v: v["stage1"].update(guidance_start=0.3),  # another port
        lambda v: v["backbone"]["low_b0"].update(clamp=9),  # another backbone
    ],
)
def test_what_does_not_touch_a_cell_leaves_its_name(tmp_path, change):
    assert identity(tmp_path, change) == identity(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["privacy"].update(delta=1e-6),
        lambda v: v["privacy"].update(adjacency="replace_one"),
        lambda v: v["stage2"].update(steps=13),
        lambda v: v["stage1"]["distillation"].update(steps=13),
        lambda v: v["data"].update(glyph_count=401),
        lambda v: v["autoencoder"].update(steps=21),
        lambda v: v["sampling"].update(guidance=1.0),
    ],
)
def test_what_decides_a_result_changes_its_name(tmp_path, change):
    assert identity(tmp_path, change) != identity(tmp_path)


def test_a_cell_without_the_release_ignores_its_settings(tmp_path):
    def change(values):
        values["stage1"]["distillation"]["steps"] = 99
        values["stage1"]["weight"] = 0.3

    assert identity(tmp_path, change, "uniform") == identity(tmp_path, method="uniform")


def test_an_evaluation_setting_renames_the_metrics_file_alone(tmp_path):
    a = preset(tmp_path)
    b = preset(tmp_path, lambda v: v["evaluation"]["probe"].update(steps=99))
    assert metrics_name(a) != metrics_name(b)
    assert list(all_cells(a)) == list(all_cells(b))


def test_the_reference_follows_both_sets_and_not_the_method(tmp_path):
    ours = extractor(preset(tmp_path))
    assert data_unit(ours.config["public"]).config["count"] == TINY["data"]["glyph_count"]
    for change in (
        lambda v: v["data"].update(glyph_count=401),
        lambda v: v["data"].update(public="kmnist", glyph_count=None),
        lambda v: v["evaluation"].update(lenet_steps=21),
    ):
        assert extractor(preset(tmp_path, change)).id != ours.id
    assert extractor(preset(tmp_path, lambda v: v["stage2"].update(steps=13))).id == ours.id
    fetched = preset(tmp_path, lambda v: v["data"].update(public="kmnist", glyph_count=None))
    assert data_unit(extractor(fetched).config["public"]) is None


def test_each_backbone_takes_its_own_constraints(tmp_path):
    """Section 3.3's constraints as Table 2 switches them."""
    names = ("clamp", "late_blocks", "decoupled", "spectral_cap")
    backbones = {
        backbone: public_stage(preset(tmp_path), "pixel", backbone, 0).config["backbone"]
        for backbone in ("standard", "late_only", "clamp_only", "low_b0")
    }
    given = {
        backbone: {name: config[name] for name in names if name in config}
        for backbone, config in backbones.items()
    }
    assert given == {
        "standard": {},
        "late_only": {"late_blocks": 1},
        "clamp_only": {"clamp": 8},
        "low_b0": {"clamp": 8, "late_blocks": 1, "decoupled": True, "spectral_cap": 1},
    }


@pytest.mark.parametrize(
    ("method", "space", "epsilon", "expected"),
    [
        ("uniform", "pixel", 1, "pixel-uniform-eps1-seed0-ec88bf6d"),
        ("low_b0", "pixel", 0.3, "pixel-low_b0-eps0.3-seed0-f6d36ddd"),
        ("tha_moments", "latent", 3, "latent-tha_moments-eps3-seed0-cab51291"),
        ("release_samples", "pixel", 1, "pixel-release_samples-eps1-seed0-2fbaa47d"),
    ],
)
def test_the_papers_cells_keep_their_names(method, space, epsilon, expected):
    """What was computed stays found: the paper preset's hashes, written down."""
    paper = load_preset(REPOSITORY / "config" / "paper.yaml")
    assert resolve(paper, method, space, epsilon, 0).id == expected


def test_every_resolved_configuration_parses_and_refuses_by_key(tmp_path):
    for cell in all_cells(preset(tmp_path)).values():
        parse(CellConfig, cell.config, "x")
    broken = copy.deepcopy(cell.config)
    broken["sampling"]["stepz"] = 3
    with pytest.raises(ConfigError, match=r"file\.json: sampling\.stepz: unknown key"):
        parse(CellConfig, broken, "file.json")
