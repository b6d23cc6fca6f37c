"""Presets: what is refused, and how it is said."""

import copy
import math
import re
import tomllib

import pytest
import yaml
from conftest import REPOSITORY, TINY, write_preset

from straightdp import config
from straightdp.config import ConfigError, load_preset
from straightdp.mechanisms import accounting


def altered(path, change):
    values = copy.deepcopy(TINY)
    change(values)
    return write_preset(path / "p.yaml", values)


@pytest.mark.parametrize("name", ["demo", "lab", "paper"])
def test_the_shipped_presets_are_valid(name):
    preset = load_preset(REPOSITORY / "config" / f"{name}.yaml")
    assert preset.name == name
    assert preset.grid.epsilons == (0.3, 1, 3) and preset.privacy.delta == 1e-5


def test_the_paper_preset_is_table_9():
    paper = load_preset(REPOSITORY / "config" / "paper.yaml")
    assert (paper.data.public, paper.data.private) == ("kmnist", "mnist")
    assert (paper.backbone.width, paper.backbone.depth, paper.backbone.heads) == (192, 6, 6)
    assert (paper.caption.width, paper.caption.length, paper.caption.vocabulary) == (64, 8, 256)
    low = paper.backbone.low_b0
    assert (low.clamp, low.late_blocks, low.decoupled, low.spectral_cap) == (16, 1, True, 1)
    assert (paper.pretraining.steps.pixel, paper.pretraining.steps.latent) == (20_000, 12_000)
    assert (paper.pretraining.batch, paper.pretraining.learning_rate) == (256, 1e-4)
    assert (paper.stage1.weight, paper.stage2.weight) == (0.2, 0.65)
    share = paper.stage1.weight / (paper.stage1.weight + paper.stage2.weight)
    assert round(share, 3) == 0.235
    assert (paper.stage1.rank, paper.stage1.floor) == (32, 1e-2)
    assert (paper.stage1.distillation.steps, paper.stage1.horizon.cap) == (3000, 0.35)
    second = paper.stage2
    assert (second.steps, second.sampling_rate, second.multiplicity) == (2000, 0.02, 4)
    assert second.sampling_rate * paper.data.private_records == 1200
    assert (second.buckets, second.shapes) == (4, (0, 0.25, 0.5, 0.75, 1))
    assert (second.learning_rate, second.ema, second.clip_reference) == (5e-5, 0.999, 1)
    assert (paper.sampling.count, paper.sampling.steps, paper.sampling.guidance) == (
        10_000,
        25,
        1.5,
    )
    prior = paper.embedding
    assert (prior.generator.width, prior.generator.depth) == (512, 2)
    assert (prior.matching.steps, prior.matching.learning_rate) == (6000, 1e-3)
    assert prior.dp_merf.features == 10_000 and prior.dp_ntk.width == 300
    hermite = prior.dp_hp
    assert (hermite.order, hermite.pairs, hermite.pair_order) == (20, 1500, 3)
    assert hermite.weight == 0.5 and paper.spaces.pixel.image_size == 28
    assert paper.grid.seeds == (0, 1, 2)
    evolution = paper.evolution
    assert (evolution.rounds, evolution.population, evolution.variations) == (10, 1000, 2)
    assert evolution.renoise == (0.45, 0.85)
    assert evolution.renoise_aggressive == (0.1, 0.5)  # Appendix D.1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v["stage2"].update(sampling_rat=1), r"stage2\.sampling_rat: unknown key"),
        (lambda v: v["stage2"].pop("steps"), r"stage2\.steps: missing key"),
        (lambda v: v["stage2"].update(sampling_rate=1.7), r"stage2\.sampling_rate: 1\.7"),
        (lambda v: v["grid"].update(seeds=[]), r"grid\.seeds"),
        (lambda v: v["grid"].update(epsilons=[1, 1]), r"grid\.epsilons.*distinct"),
        (lambda v: v["grid"].update(epsilons=[-1]), r"grid\.epsilons\.0: -1"),
        (lambda v: v["spaces"]["pixel"].update(patch=3), r"spaces\.pixel.*patch 3"),
        (lambda v: v["stage1"].update(rank=12), r"stage1\.rank: 12 is above spaces\.latent"),
        (lambda v: v["data"].update(public="mnist", glyph_count=None), r"data\.public: mnist"),
        (lambda v: v["data"].pop("glyph_count"), r"data\.glyph_count: needed"),
        (lambda v: v["backbone"]["low_b0"].update(decoupled=False), r"low_b0.*decoupled"),
        (lambda v: v["stage2"].update(shapes=[0.5]), r"stage2\.shapes.*uniform"),
        (lambda v: v["privacy"].update(noise_seed="mine"), r"privacy\.noise_seed: 'mine'"),
        (lambda v: v["sampling"].update(count=101), r"sampling\.count"),
        (lambda v: v.update(name="-x"), r"name: '-x'"),
        (lambda v: v.update(name="x" * 300), r"name: 'x+'"),
        (lambda v: v["grid"].update(epsilons=[1000]), r"grid\.epsilons: .*1000 is above 200"),
        (lambda v: v["grid"].update(epsilons=[1e300]), r"grid\.epsilons: .*1e\+300 is above 200"),
        (lambda v: v["grid"].update(epsilons=[1, 1.00000001]), r"grid\.epsilons.*distinct"),
        (lambda v: v["grid"].update(epsilons=[True]), r"grid\.epsilons\.0: True"),
        (lambda v: v["grid"].update(seeds=[True]), r"grid\.seeds\.0: True"),
        (lambda v: v["privacy"].update(delta=1e-320), r"privacy\.delta: 1e-320"),
        (lambda v: v["stage2"].update(sampling_rate=1e-30), r"sampling_rate: 1e-30 of 20000"),
        (lambda v: v["data"].update(private_records=19999), r"private_records: 19999 is below"),
        (lambda v: v["data"].update(glyph_count=15), r"glyph_count: 15 is below spaces\.pixel"),
        (lambda v: v["backbone"].update(width=3, heads=1), r"backbone\.width: 3: .*multiple of 2"),
        (lambda v: v["evaluation"].update(inception_weights="x.pt"), r"weights: 'x.pt': no such"),
        (lambda v: v["execution"].update(threads=10_000), r"execution\.threads: 10000"),
        (lambda v: v["stage2"].update(steps=10**12), r"stage2\.steps: 1000000000000"),
        (lambda v: v["stage2"].update(learning_rate=math.inf), r"learning_rate: inf: .*finite"),
        (lambda v: v["stage1"].update(weight=math.inf), r"stage1\.weight: inf: .*finite"),
        (lambda v: v["stage2"].update(shapes=[0, math.inf]), r"stage2\.shapes\.1: inf: .*finite"),
        (lambda v: v["sampling"].update(guidance=math.nan), r"sampling\.guidance: nan"),
        (lambda v: v["grid"].update(epsilons=[math.nan]), r"grid\.epsilons\.0: nan"),
        (lambda v: v.pop("embedding"), r"embedding: missing key"),
        (lambda v: v["embedding"]["dp_merf"].update(features=41), r"dp_merf\.features: 41"),
        (lambda v: v["embedding"]["matching"].update(batch=25), r"embedding\.matching.*10 classes"),
        (lambda v: v["embedding"]["dp_hp"].update(pair_order=4), r"dp_hp.*at most order \(3\)"),
        (lambda v: v["embedding"]["dp_hp"].update(pairs=2017), r"dp_hp\.pairs: 2017 .* 2016 pairs"),
        (lambda v: v["embedding"]["dp_hp"].update(weight=1.5), r"dp_hp\.weight: 1\.5"),
        (lambda v: v["embedding"].update(dp_gan={}), r"embedding\.dp_gan: unknown key"),
        (lambda v: v.pop("evolution"), r"evolution: missing key"),
        (lambda v: v["evolution"].update(rounds=0), r"evolution\.rounds: 0"),
        (lambda v: v["evolution"].update(lookahead=1), r"evolution\.lookahead: unknown key"),
        (lambda v: v["evolution"].update(renoise=[0.8, 0.4]), r"evolution\.renoise.*milder"),
        (lambda v: v["evolution"].update(renoise=[0.4, 1]), r"evolution\.renoise\.1: 1"),
        (lambda v: v["evolution"].update(threshold=-1), r"evolution\.threshold: -1"),
        (lambda v: v["evolution"].update(extractor="mine"), r"evolution\.extractor: 'mine'"),
        (lambda v: v.pop("controls"), r"controls: missing key"),
        (lambda v: v["controls"].update(public="glyphs"), r"controls\.public: glyphs is data\.pub"),
        (lambda v: v["controls"].pop("glyph_count"), r"controls\.glyph_count: needed"),
        (lambda v: v["controls"].update(public="kmnist"), r"controls\.glyph_count: only where"),
        (
            lambda v: v["controls"].update(public="mnist", glyph_count=None),
            r"controls\.public: mnist contains the embedded",
        ),
        (
            lambda v: v["data"].update(private="letters"),
            r"controls\.public: letters is the private",
        ),
        (lambda v: v["controls"].update(glyph_count=15), r"controls\.glyph_count: 15 is below"),
        (lambda v: v["controls"].update(weights=[0.1, 0.1]), r"controls\.weights: .*distinct"),
        (lambda v: v["controls"].update(weights=[0]), r"controls\.weights\.0: 0"),
        (
            lambda v: v["controls"].update(weights=[0.85]),
            r"controls\.weights: 0\.85 leaves nothing",
        ),
        (lambda v: v["controls"].update(starts=[]), r"controls\.starts"),
        (lambda v: v["controls"].update(starts=[0.2, 1]), r"controls\.starts\.1: 1"),
        (lambda v: v["controls"].update(multiplicity=0), r"controls\.multiplicity: 0"),
        (lambda v: v["pretraining"]["steps"].update(pixel=0), r"pretraining\.steps\.pixel: 0"),
    ],
)
def test_a_fault_is_one_line_that_names_the_file_and_the_key(tmp_path, change, said):
    path = altered(tmp_path, change)
    with pytest.raises(ConfigError) as caught:
        load_preset(path)
    text = str(caught.value)
    assert len(text.splitlines()) == 1 and text.startswith(str(path))
    assert re.search(said, text), text


def test_a_budget_alone_may_be_infinite(tmp_path):
    path = altered(tmp_path, lambda v: v["grid"].update(epsilons=[1, math.inf]))
    assert load_preset(path).grid.epsilons == (1, math.inf)


def test_broken_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere.yaml: no such preset"):
        load_preset(tmp_path / "nowhere.yaml")
    for text in ("a: [", "- 1", "", "name: x\nname: y\n", "1: 2"):
        (tmp_path / "b.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"b\.yaml"):
            load_preset(tmp_path / "b.yaml")


def test_environment_and_package_agree():
    environment = yaml.safe_load((REPOSITORY / "environment.yml").read_text())
    listed = next(one["pip"] for one in environment["dependencies"] if isinstance(one, dict))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert sorted(listed) == sorted(project["dependencies"])
    assert f"python{project['requires-python']}" in environment["dependencies"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name: \xff\xfe", "not text in UTF-8"),
        (b"? [a, b]\n: 1", "a key must be a word"),
        (b"a: {? {b: 1} : 2}", "a key must be a word"),
        (b"a: " + b"[" * 5000, "not valid YAML"),
        (b"a: " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
        (b"a: &x {b: 1}\nc:\n  <<: *x", "<<: sections are written out"),
        (b"a: 2026-99-99", "not valid YAML"),
        (b"a: !!python/object:os.system {}", "not valid YAML"),
        (b"a: \x00", "not valid YAML"),
    ],
)
def test_an_unreadable_file_is_one_line_that_names_it(tmp_path, content, said):
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        load_preset(path)
    assert str(caught.value).startswith(f"{path}: ") and len(str(caught.value).splitlines()) == 1


def test_the_largest_budget_is_the_accountants():
    assert config.MAX_EPSILON == accounting.MAX_EPSILON
