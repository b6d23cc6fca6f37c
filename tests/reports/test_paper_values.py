"""The transcribed table against what the paper's text and its other tables say."""

import copy

import pytest

from straightdp.config import Preset
from straightdp.reports.paper import (
    EPSILONS,
    paper_gain,
    paper_ratio,
    paper_value,
    table1_value,
)
from straightdp.studies.grid import STUDIES
from straightdp.studies.rows import Key

ROWS = {
    "prior": ("dp_merf", "dp_hp", "dp_ntk", "private_evolution"),
    "release": ("release_samples", "prior_guidance"),
    "pixel": ("uniform", "tha", "uniform_moments", "tha_moments", "low_b0"),
    "latent": ("uniform", "tha", "uniform_moments", "tha_moments", "low_b0"),
}


def accuracy(block, method):
    return [table1_value(block, method, epsilon).accuracy for epsilon in EPSILONS]


def fid(block, method):
    return [table1_value(block, method, epsilon).fid for epsilon in EPSILONS]


def test_every_row_has_every_budget():
    values = [
        table1_value(block, method, epsilon)
        for block, methods in ROWS.items()
        for method in methods
        for epsilon in EPSILONS
    ]
    assert len(values) == 48
    assert all(0 < v.accuracy < 1 and 0 < v.accuracy_std < 0.1 for v in values)
    assert all(30 < v.fid < 400 and 0 < v.fid_std < 6 for v in values)


def test_what_the_paper_has_not_is_none():
    assert table1_value("pixel", "uniform", 10.0) is None
    assert table1_value("latent", "dp_merf", 1.0) is None


def test_section_4_2_on_pixels():
    ours, uniform = accuracy("pixel", "tha_moments"), accuracy("pixel", "uniform")
    assert ours[1] == 0.724
    assert ours[1] / uniform[1] == pytest.approx(3.5, abs=0.05)
    assert ours[0] / uniform[0] == pytest.approx(8, abs=0.5)
    assert fid("pixel", "tha_moments")[1] == 66.7


def test_section_4_2_in_latent_space():
    ours, uniform = accuracy("latent", "tha_moments"), accuracy("latent", "uniform")
    assert (uniform[0], ours[0]) == (0.434, 0.682)
    assert ours[0] / uniform[0] == pytest.approx(1.57, abs=0.005)
    assert ours[2] / uniform[2] == pytest.approx(1.04, abs=0.005)
    assert (accuracy("release", "release_samples")[1], ours[1]) == (0.762, 0.811)
    assert (fid("release", "release_samples")[1], fid("latent", "tha_moments")[1]) == (236.6, 56.5)


def test_section_4_2_on_the_release_alone():
    sampled, guided = accuracy("release", "release_samples"), accuracy("release", "prior_guidance")
    assert [round(value, 2) for value in (min(sampled), max(sampled))] == [0.74, 0.80]
    assert [round(value, 2) for value in (min(guided), max(guided))] == [0.22, 0.25]
    distances = fid("release", "release_samples")
    assert [round(value) for value in (min(distances), max(distances))] == [237, 301]


def test_section_4_3_on_the_backbone():
    """The signed gains of Table 2, and its FID at epsilon 0.3."""
    gains = [
        round(100 * (low / standard - 1))
        for low, standard in zip(
            accuracy("pixel", "low_b0"), accuracy("pixel", "tha_moments"), strict=True
        )
    ]
    assert gains == [27, -4, -7]
    assert (fid("pixel", "tha_moments")[0], fid("pixel", "low_b0")[0]) == (94.1, 100.3)


@pytest.mark.parametrize(
    ("block", "method", "expected"),
    [
        ("pixel", "uniform", [(72.5, 0.3), (62.7, 0.1), (51.6, 0.1)]),
        ("pixel", "tha_moments", [(94.1, 2.7), (66.7, 0.6), (51.5, 0.3)]),
        ("latent", "tha_moments", [(64.1, 1.3), (56.5, 0.8), (50.2, 0.1)]),
        ("prior", "dp_merf", [(280.6, 0.8), (182.8, 5.0), (109.1, 2.4)]),
        ("prior", "dp_hp", [(284.3, 5.0), (219.8, 4.5), (167.3, 5.6)]),
        ("prior", "dp_ntk", [(333.8, 3.0), (292.7, 3.4), (249.1, 5.7)]),
        ("prior", "private_evolution", [(122.4, 2.1), (81.4, 0.8), (52.8, 2.0)]),
    ],
)
def test_table_6_prints_the_same_fids(block, method, expected):
    values = [table1_value(block, method, epsilon) for epsilon in EPSILONS]
    assert [(value.fid, value.fid_std) for value in values] == expected
    space = "latent" if block == "latent" else "pixel"
    for epsilon, value in zip(EPSILONS, expected, strict=True):
        assert paper_value("table6", Key("any", method, space), epsilon, "fid") == value


PIXEL_METHODS = ("tha_moments", "low_b0")


def test_table_2_repeats_table_1_where_they_meet_and_its_gains_follow():
    for method in PIXEL_METHODS:
        for epsilon in EPSILONS:
            for metric in ("accuracy", "fid"):
                assert paper_value("table2", Key("x", method, "pixel"), epsilon, metric) == (
                    paper_value("table1", Key("pixel", method, "pixel"), epsilon, metric)
                )
    for epsilon in (3.0, 1.0, 0.5, 0.3):
        standard, low = (
            paper_value("table2", Key("x", method, "pixel"), epsilon, "accuracy")[0]
            for method in PIXEL_METHODS
        )
        assert paper_gain("table2", epsilon) == round(low / standard - 1, 2)
    assert paper_gain("table1", 1.0) is None
    assert paper_value("table2", Key("x", "clamp_only", "pixel"), 0.3, "accuracy") == (0.535, 0.014)
    assert paper_value("table2", Key("x", "late_only", "pixel"), 0.3, "accuracy") == (0.402, 0.014)
    assert paper_value("table2", Key("x", "late_only", "pixel"), 1.0, "accuracy") is None


def test_table_5_is_what_section_d_1_says():
    def value(method, metric):
        return paper_value("table5", Key("x", method, "pixel"), 1.0, metric)[0]

    assert value("uniform", "fid_by_class") == 107.1
    assert value("tha_moments", "fid_by_class") == 101.4
    assert round(value("uniform", "label_consistency"), 2) == 0.17  # Section 4.2: 0.17 vs. 0.44
    assert round(value("tha_moments", "label_consistency"), 2) == 0.44
    assert round(value("release_samples", "label_consistency"), 2) == 0.62
    assert round(value("release_samples", "fid_by_class")) == 264
    rates = {m: value(m, "domain_rate") for m in ("release_samples", "uniform", *PIXEL_METHODS)}
    assert max(rates, key=rates.get) == "release_samples"
    assert paper_value("table5", Key("x", "uniform", "pixel"), 3.0, "domain_rate") is None


def test_table_6_at_epsilon_10_is_what_the_text_says():
    def value(method, space="pixel"):
        return paper_value("table6", Key("x", method, space), 10.0, "fid")

    assert value("private_evolution") == (35.4, 0.4)
    assert value("tha_moments") == (41.3, 0.6)  # bold: below uniform's and the latent space's
    assert value("tha_moments") < min(value("uniform"), value("tha_moments", "latent"))
    assert paper_value("table6", Key("x", "uniform", "pixel"), 0.5, "fid") is None


def test_table_7_is_what_section_d_2_says():
    def value(method, space, epsilon, metric):
        return paper_value("table7", Key("x", method, space), epsilon, metric)[0]

    assert round(value("tha_moments", "pixel", 0.3, "precision"), 2) == 0.15
    assert round(value("tha_moments", "pixel", 0.3, "recall"), 2) == 0.38
    latent = [value("tha_moments", "latent", epsilon, "precision") for epsilon in EPSILONS]
    assert [round(one, 2) for one in latent] == [0.03, 0.04, 0.05]
    assert value("low_b0", "pixel", 0.3, "recall") == 0.314
    everything = [
        value(method, space, epsilon, "precision")
        for method, space in (
            *((one, "pixel") for one in ("uniform", "tha", *PIXEL_METHODS)),
            ("tha_moments", "latent"),
        )
        for epsilon in EPSILONS
    ]
    assert len(everything) == 15 and round(max(everything), 2) == 0.26
    assert paper_value("table7", Key("x", "uniform", "pixel"), 10.0, "recall") is None


def test_the_controls_are_what_section_4_says(tiny):
    values = copy.deepcopy(tiny)
    values["controls"]["weights"] = [0.1, 0.2, 0.3]
    rows = STUDIES["controls"].rows_on(Preset(**values))
    found = {row.key: paper_value("controls", row.key, 1.0, "accuracy") for row in rows}
    weights = [found[key][0] for key in found if key.block == "weights"]
    assert weights == [0.700, 0.724, 0.735]  # (3) of Section 4.2
    assert found["weights", "tha_moments", "pixel", "weight-0.2"] == (0.724, 0.033)
    assert [found[key] for key in found if key.block == "guidance"] == [(0.696, 0.005)]
    assert found["posthoc", "tha_moments", "pixel", "posthoc-clamp"][0] == 0.02  # Section 4.3
    evolved = [found[key][0] for key in found if key.block == "evolution"]
    assert evolved == [0.059, 0.134]  # Table 1 and Appendix D.1
    first = {key: value[0] for key, value in found.items() if key.block == "first_domain"}
    assert list(first.values()) == [0.207, 0.724, 0.709, 0.811]
    ratio = {key: paper_ratio("controls", key) for key in found}
    assert [key for key in found if ratio[key]] == [
        ("second_domain", "tha_moments", space, "second-domain") for space in ("pixel", "latent")
    ]
    assert {value for value in ratio.values() if value} == {(3.0, 3.2)}
    said_nothing = [found[key] for key in found if key.block in {"scratch", "second_domain"}]
    assert said_nothing == [None] * 5
    assert all(paper_value("controls", key, 1.2, "accuracy") is None for key in found)
