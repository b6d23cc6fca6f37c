"""A cell's identity: what changes it, and what must not."""

import copy

import pytest
from conftest import REPOSITORY, TINY, write_preset

from straightdp.config import load_preset
from straightdp.resolved import ConfigError, parse_cell
from straightdp.studies.cells import (
    cell_base,
    cell_public,
    data_unit,
    extractor,
    metrics_name,
    public_stage,
    resolve,
)
from straightdp.studies.grid import TABLE1, all_cells


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
        lambda v: v["evolution"].update(rounds=9, lenet_steps=99),  # another method
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


def test_an_evolution_is_named_by_its_own_settings_alone(tmp_path):
    def named(change=lambda values: None):
        return identity(tmp_path, change, "private_evolution", "pixel")

    for section, changes in {
        "stage1": {"weight": 0.3, "guidance_start": 0.3},
        "stage2": {"weight": 0.3, "steps": 13},
        "evaluation": {"lenet_steps": 21},
        "evolution": {"renoise_aggressive": [0.2, 0.3]},
    }.items():
        assert named(lambda v, s=section, c=changes: v[s].update(c)) == named()
    for changes in (
        {"rounds": 4},
        {"population": 7},
        {"variations": 1},
        {"renoise": [0.5, 0.6]},
        {"threshold": 0},
        {"lenet_steps": 21},
        {"extractor": "auto"},
    ):
        assert named(lambda v, c=changes: v["evolution"].update(c)) != named()


def test_a_flow_cell_does_not_name_its_family(tmp_path):
    """So that cells keep the names they had before there were other families."""
    for cell in all_cells(preset(tmp_path)).values():
        if cell_base(cell.config) is not None:
            continue  # drawn from a flow cell, and no method of its own
        prior = cell.method.startswith(("dp_", "private_evolution"))
        assert ("family" in cell.config["method"]) == prior
        assert "schedule" not in cell.config["method"]


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


def test_the_prior_methods_are_the_first_block_in_the_papers_order():
    assert [row.method for row in TABLE1.rows[:4]] == [
        "dp_merf",
        "dp_hp",
        "dp_ntk",
        "private_evolution",
    ]
    assert [row.block for row in TABLE1.rows].count("prior") == 4
    assert {row.block for row in TABLE1.rows[:4]} == {"prior"}


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["stage2"].update(steps=13),
        lambda v: v["backbone"].update(width=32),
        lambda v: v["pretraining"]["steps"].update(pixel=21),
        lambda v: v["sampling"].update(guidance=1.0, steps=4),  # there is no field to integrate
        lambda v: v["embedding"]["dp_hp"].update(order=4),  # another method's features
    ],
)
def test_an_embedding_cell_ignores_the_flow_and_the_other_features(tmp_path, change):
    assert identity(tmp_path, change, "dp_merf", "pixel") == identity(
        tmp_path, method="dp_merf", space="pixel"
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["embedding"]["dp_merf"].update(features=42),
        lambda v: v["embedding"]["matching"].update(steps=13),
        lambda v: v["embedding"]["generator"].update(code=5),
        lambda v: v["spaces"]["pixel"].update(image_size=12),
        lambda v: v["data"].update(glyph_count=401),
        lambda v: v["privacy"].update(adjacency="replace_one"),
    ],
)
def test_what_decides_an_embedding_changes_its_name(tmp_path, change):
    assert identity(tmp_path, change, "dp_merf", "pixel") != identity(
        tmp_path, method="dp_merf", space="pixel"
    )


def test_the_embedding_settings_rename_no_flow_cell(tmp_path):
    def change(values):
        values["embedding"]["matching"]["steps"] = 99

    assert identity(tmp_path, change) == identity(tmp_path)
    method = resolve(preset(tmp_path), "uniform", "pixel", 1.0, 0).config["method"]
    assert method == {"port": "none", "plan": "uniform", "backbone": "standard"}  # no family


def test_an_embedding_cell_starts_from_no_public_stage(tmp_path):
    assert cell_public(resolve(preset(tmp_path), "dp_ntk", "pixel", 1.0, 0).config) is None
    flow = resolve(preset(tmp_path), "low_b0", "pixel", 1.0, 0)
    assert cell_public(flow.config).name == "glyphs-pixel-low_b0-seed0"
    with pytest.raises(ValueError, match="dp_ntk lives in pixel space, not in latent"):
        resolve(preset(tmp_path), "dp_ntk", "latent", 1.0, 0)


@pytest.mark.parametrize("method", ["uniform", "dp_hp", "private_evolution"])
def test_every_resolved_configuration_parses_and_refuses_by_key(tmp_path, method):
    for cell in all_cells(preset(tmp_path)).values():
        parse_cell(cell.config, "x")
    broken = copy.deepcopy(resolve(preset(tmp_path), method, "pixel", 1.0, 0).config)
    broken["sampling"]["stepz"] = 3
    with pytest.raises(ConfigError, match=r"file\.json: sampling\.stepz: unknown key"):
        parse_cell(broken, "file.json")


@pytest.mark.parametrize("family", ["kernel", 3, None, ["flow"]])
def test_an_unknown_family_is_refused_by_key(tmp_path, family):
    config = copy.deepcopy(resolve(preset(tmp_path), "dp_hp", "pixel", 1.0, 0).config)
    config["method"]["family"] = family
    with pytest.raises(ConfigError, match=r"file\.json: method\.family: .*not one of flow"):
        parse_cell(config, "file.json")
