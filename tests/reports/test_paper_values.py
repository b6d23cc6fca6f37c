"""The transcribed table against what the paper's text and its other tables say."""

import pytest

from straightdp.reports.paper import EPSILONS, table1_value

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
