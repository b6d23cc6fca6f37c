"""Controls: what each of them changes of a cell, which cells it shares, and its names."""

import copy

import pytest
from conftest import REPOSITORY, TINY

from straightdp.cli.units import prerequisites
from straightdp.config import ConfigError, Preset, load_preset
from straightdp.resolved import parse_cell
from straightdp.studies.cells import cell_base, cell_public, extractor, resolve
from straightdp.studies.grid import STUDIES, row_cells, study_cells
from straightdp.studies.variants import SWEPT, variant_cell

PRESET = Preset(**TINY)
CONTROLS = STUDIES["controls"]


def flat(value, path=""):
    """A configuration as {dotted key: value}."""
    if not isinstance(value, dict):
        return {path: value}
    return {k: v for key, one in value.items() for k, v in flat(one, f"{path}.{key}").items()}


def differences(variant, method, space="pixel", epsilon=1.0):
    own = flat(resolve(PRESET, method, space, epsilon, 0).config)
    varied = flat(variant_cell(PRESET, method, space, epsilon, 0, variant).config)
    keys = own.keys() | varied.keys()
    return {key.lstrip("."): varied.get(key) for key in keys if own.get(key) != varied.get(key)}


def test_a_variant_changes_what_it_says_and_no_more():
    drawn = {"source": "letters", "count": 300}
    assert differences("second-domain", "uniform") == {
        f"public.data.{key}": value for key, value in drawn.items()
    }
    assert differences("second-domain", "tha_moments", "latent") == {
        f"public.{part}data.{key}": value
        for part in ("", "autoencoder.")
        for key, value in drawn.items()
    }
    weights = {"shares.release": 0.1, "shares.gradients": 0.75}
    assert differences("weight-0.1", "tha_moments") == weights
    assert differences("from-scratch", "uniform") == {
        "public.pretraining.steps": 0,
        "public.gradients.multiplicity": 3,
    }
    assert differences("matched", "guided_uniform") == {"shares.gradients": 0.8}
    assert differences("sweep", "guided_uniform", epsilon=SWEPT) == {"shares.gradients": 1}
    with pytest.raises(ValueError, match="pepper: no such variant"):
        variant_cell(PRESET, "uniform", "pixel", 1.0, 0, "pepper")


@pytest.mark.parametrize("name", ["demo", "lab", "paper"])
def test_the_presets_own_weight_is_the_tables_cell(name):
    preset = load_preset(REPOSITORY / "config" / f"{name}.yaml")
    assert preset.stage1.weight in preset.controls.weights
    rows = {row.key: row_cells(preset, CONTROLS, row) for row in CONTROLS.rows_on(preset)}
    weights = {key.variant: cells for key, cells in rows.items() if key.block == "weights"}
    main = {cell.id for cell in study_cells(preset, STUDIES["table1"])}
    shared = {name: {cell.id for cell in cells} <= main for name, cells in weights.items()}
    assert shared == {"weight-0.1": False, "weight-0.2": True, "weight-0.3": False}
    for key, cells in rows.items():
        if key.block in {"first_domain"} or key.method == "private_evolution":
            assert {cell.id for cell in cells} <= main


def test_the_papers_effective_shares():
    """Section 4.2: 0.12 to 0.35 for the declared weights 0.1 to 0.3; Table 9: 0.235 for 0.2."""
    preset = load_preset(REPOSITORY / "config" / "paper.yaml")
    for weight, share in ((0.1, 0.12), (0.2, 0.235), (0.3, 0.35)):
        found = variant_cell(preset, "tha_moments", "pixel", 1.0, 0, f"weight-{weight}")
        shares = parse_cell(found.config, "x").shares
        assert shares.release_share == pytest.approx(share, abs=0.005 if share != 0.235 else 0.0005)


def test_the_shares_of_figure_4():
    """0.8 + 0.2 of epsilon 1; and of the sweep's 1.2 the release gets 0.2, calibrated alone."""
    for variant, epsilon in (("matched", 1.0), ("sweep", SWEPT)):
        found = variant_cell(PRESET, "guided_uniform", "pixel", epsilon, 0, variant)
        shares = parse_cell(found.config, "x").shares
        assert shares.release_share * epsilon == pytest.approx(0.2, rel=1e-12)
        assert found.config["method"] == {
            "port": "guide",
            "plan": "uniform",
            "backbone": "standard",
        }
        assert found.config["stage1"] == {"guidance_start": 0.2}


def test_the_sweep_trains_once_whatever_the_starts_and_seeds():
    values = copy.deepcopy(TINY)
    values["grid"]["seeds"] = [4, 0]
    values["controls"]["starts"] = [0.5, 0.1]
    preset = Preset(**values)
    rows = [row for row in CONTROLS.rows_on(preset) if row.block == "starts"]
    cells = [cell for row in rows for cell in row_cells(preset, CONTROLS, row)]
    variants = [row.variant for row in rows]
    assert variants == ["start-none", "start-0.1", "start-0.2", "start-0.5"]  # 0.2: the preset's
    assert {cell.seed for cell in cells} == {4} and len({cell.id for cell in cells}) == 4
    bases = [cell_base(cell.config) for cell in cells]
    trained = [cell for cell, base in zip(cells, bases, strict=True) if base is None]
    assert [cell.name for cell in trained] == ["pixel-guided_uniform-sweep-eps1.2-seed4"]
    assert {base.id for base in bases if base} == {trained[0].id}
    given = [cell.config["resampling"]["guidance_start"] for cell in cells if cell not in trained]
    assert given == [None, 0.1, 0.5]


def test_what_a_resampled_cell_is_drawn_from_is_a_cell_of_the_study():
    cells = study_cells(PRESET, CONTROLS)
    drawn = [cell for cell in cells if cell_base(cell.config) is not None]
    assert len(drawn) == 4  # two imposed, from noise, from t0 = 0.5
    for cell in drawn:
        base = cell_base(cell.config)
        assert base.id in {one.id for one in cells}
        assert prerequisites(cell) == [base] and cell_public(cell.config) is None
        for name in ("data", "privacy", "seed"):
            assert cell.config[name] == base.config[name]


def test_imposed_constraints_are_the_presets(tmp_path):
    cells = {
        name: variant_cell(PRESET, "tha_moments", "pixel", 1.0, 0, f"posthoc-{name}")
        for name in ("clamp", "low_b0")
    }
    imposed = {name: cell.config["resampling"]["constraints"] for name, cell in cells.items()}
    assert imposed["clamp"] == {"clamp": 8}
    assert imposed["low_b0"] == TINY["backbone"]["low_b0"]
    own = resolve(PRESET, "tha_moments", "pixel", 1.0, 0)
    assert {cell_base(cell.config).id for cell in cells.values()} == {own.id}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(seed=1), "seed: is not the one of base.config"),
        (lambda c: c["privacy"].update(epsilon=2), "privacy: is not the one of base.config"),
        (lambda c: c["base"].update(name="../x"), r"base\.name: '\.\./x'"),
        (lambda c: c["base"]["config"].pop("sampling"), r"base\.config\.sampling: missing key"),
        (lambda c: c["resampling"].update(guidance_start=1.5), "guidance_start: 1.5"),
        (lambda c: c["resampling"].update(steps=3), "steps: unknown key"),
        (
            lambda c: c["base"].update(config=resolve(PRESET, "uniform", "pixel", 1.2, 0).config),
            "guidance_start: base.config releases no moments",
        ),
        (
            lambda c: (
                c["base"].update(config=resolve(PRESET, "low_b0", "pixel", 1.2, 0).config),
                c.update(resampling={"kind": "constraints", "constraints": {"clamp": 1}}),
            ),
            "constraints: base.config has constraints of its own",
        ),
    ],
)
def test_a_resampled_configuration_is_refused_by_key(change, said):
    found = variant_cell(PRESET, "guided_uniform", "pixel", SWEPT, 0, "start-0.5")
    config = copy.deepcopy(found.config)
    parse_cell(config, "x")
    change(config)
    with pytest.raises(ConfigError, match=f"file.json: .*{said}"):
        parse_cell(config, "file.json")


def test_controls_are_evaluated_as_every_other_cell():
    """A second domain changes what a cell starts from, never what it is measured with."""
    assert extractor(PRESET).config["public"]["source"] == "glyphs"
    domains = {
        cell.config["public"]["data"]["source"]
        for cell in study_cells(PRESET, CONTROLS)
        if "public" in cell.config
    }
    assert domains == {"glyphs", "letters"}
