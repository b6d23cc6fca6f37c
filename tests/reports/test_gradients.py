"""Appendix D.3's summary against numbers worked out by hand and by numpy."""

import numpy as np
import pytest

from straightdp.files import DamagedFile, write_json
from straightdp.reports.gradients import (
    PAPER,
    gradients_csv,
    gradients_latex,
    gradients_markdown,
    medians,
    norms,
)
from straightdp.studies.rows import Row

ROW = Row("gradients", "tha_moments", "pixel", (0.3,))


def log(path, generator, steps):
    made = {name: generator.random(steps).tolist() for name in ("p50", "p90", "clip_fraction")}
    write_json(path, made | {"bucket": [0.0] * steps, "batch_size": [5.0] * steps})
    return made


def test_medians_over_steps_then_means_over_seeds(tmp_path):
    generator = np.random.default_rng(3)
    made = [log(tmp_path / f"{i}.json", generator, steps) for i, steps in enumerate((7, 7, 8))]
    one = norms(ROW, 0.3, [medians(tmp_path / f"{i}.json") for i in range(3)])
    assert one.n == 3
    for name in ("p50", "p90", "clip_fraction"):
        by_hand = sum(np.median(run[name]) for run in made) / 3
        assert one.values[name] == pytest.approx(by_hand, rel=1e-12)
    assert one.values["ratio"] == pytest.approx(one.values["p90"] / one.values["p50"])


def test_the_papers_ratios_are_those_of_its_quantiles():
    for values in PAPER.values():
        assert round(values["p90"] / values["p50"], 2) == values["ratio"]


def test_the_papers_values_stand_beside_at_their_budget_alone():
    found = [{"p50": 2.0, "p90": 3.0, "clip_fraction": 0.25}]
    text = gradients_markdown([norms(ROW, 0.3, found)])
    assert [part.strip() for part in text.splitlines()[-1].split("|")[1:-1]] == [
        *("Unconstrained", "0.3", "1"),
        *("2 (1337)", "3 (2156)", "1.50 (1.61)", "0.25 (0.14)"),
    ]
    other = [norms(ROW, 1.0, found)]
    assert "(1337)" not in gradients_markdown(other) and "1337" not in gradients_csv(other)
    latex = gradients_latex([norms(ROW, 0.3, [])])
    assert "--- (1337)" in latex and "ε" not in latex


@pytest.mark.parametrize(
    "change", [{"p50": []}, {"p90": [1.0]}, {"p90": ["x", 1.0]}, {"p50": [[1.0], [2.0]]}]
)
def test_what_is_no_log_is_refused(tmp_path, change):
    whole = {"p50": [1.0, 2.0], "p90": [1.0, 2.0], "clip_fraction": [0.0, 0.0]}
    write_json(tmp_path / "gradients.json", whole | change)
    with pytest.raises(DamagedFile, match="gradients.json: "):
        medians(tmp_path / "gradients.json")
