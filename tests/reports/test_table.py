"""Table 1's arithmetic, marks, holes and refusals, and its three forms."""

import io
import itertools
import math
import re
from dataclasses import replace

import pandas as pd
import pytest

from straightdp.reports.paper import EPSILONS, table1_value
from straightdp.reports.table import (
    Caption,
    CellResult,
    Entry,
    Missing,
    MixedExtractors,
    best,
    summarise,
    to_csv,
    to_latex,
    to_markdown,
)

PIPELINE = ("uniform", "tha", "uniform_moments", "tha_moments", "low_b0")
ROWS = [("release", "release_samples"), ("pixel", "uniform"), ("pixel", "tha_moments")]
BUDGETS, SEEDS = (0.3, 1.0), (0, 1, 2)
CAPTION = Caption(
    title="Main results",
    preset="lab",
    public="fashion_mnist",
    private="mnist",
    delta=1e-5,
    adjacency="add_or_remove_one",
    seeds=SEEDS,
)


def result(block, method, epsilon, seed, accuracy=0.5, fid=100.0, **other) -> CellResult:
    measured = {"extractor": "fid_lenet", "extractor_checksum": "0123abcd", "n_samples": 3000}
    return CellResult(block, method, epsilon, seed, accuracy, fid, **measured | other)


def full() -> list[CellResult]:
    """Accuracy 0.1, 0.2, 0.3 over the seeds, and FID 10, 20, 60, in every row and budget."""
    return [
        result(*row, epsilon, seed, accuracy=0.1 + seed / 10, fid=(10.0, 20.0, 60.0)[seed])
        for row in ROWS
        for epsilon in BUDGETS
        for seed in SEEDS
    ]


def entries_of(results):
    return summarise(results, ROWS, BUDGETS, SEEDS)


def markdown_rows(text: str) -> dict[tuple[str, str], list[str]]:
    """(block heading, row label) -> its cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows, heading = {}, ""
    for line in [lines[0], *lines[2:]]:
        label, *cells = (part.strip() for part in line.strip("|").split("|"))
        if label.startswith("*") and not any(cells):
            heading = label.strip("*")
        else:
            rows[heading, label] = cells
    return rows


def test_means_and_sample_deviations():
    for entry in entries_of(full()):
        assert entry.n == 3
        assert entry.accuracy == pytest.approx(0.2)
        assert entry.accuracy_std == pytest.approx(0.1)  # divisor n - 1: (0.01 + 0 + 0.01) / 2
        assert entry.fid == pytest.approx(30)
        assert entry.fid_std == pytest.approx(700**0.5)  # (400 + 100 + 900) / 2


def test_markdown_is_laid_out_as_the_paper():
    results = full()
    text = to_markdown(entries_of(results), results, CAPTION)
    rows = markdown_rows(text)
    assert list(rows) == [
        ("", "Method"),
        ("Released moments only (no private gradient)", "Sampled from the release"),
        ("Pixel space", "Uniform DP-SGD"),
        ("Pixel space", "THA + moments"),
    ]
    assert rows["", "Method"] == [
        "Acc, ε = 0.3",
        "FID (fid_lenet)↓, ε = 0.3",
        "Acc, ε = 1",
        "FID (fid_lenet)↓, ε = 1",
    ]
    plain = ["0.200 ± 0.100", "30.0 ± 26.5"] * 2
    assert rows["Released moments only (no private gradient)", "Sampled from the release"] == plain
    assert rows["Pixel space", "Uniform DP-SGD"] == [f"**{cell}**" for cell in plain]  # a tie


def test_caption_says_what_was_measured():
    results = full()
    caption = to_markdown(entries_of(results), results, CAPTION).splitlines()[0]
    for part in (
        "preset lab",
        "fashion_mnist to mnist",
        "delta 1e-5",
        "add or remove one",
        "seeds 0, 1, 2",
        "3000 samples a cell",
        "fid_lenet (0123abcd)",
        "Not the paper's setting",
    ):
        assert part in caption
    paper = to_markdown(entries_of(results), results, replace(CAPTION, preset="paper"))
    assert "Not the paper's setting" not in paper


def paper_entries() -> list[Entry]:
    return [
        Entry(block, method, epsilon, 3, 3, v.accuracy, v.accuracy_std, v.fid, v.fid_std)
        for block in ("prior", "release", "pixel", "latent")
        for method in (
            *PIPELINE,
            *("dp_merf", "dp_hp", "dp_ntk", "private_evolution"),
            *("release_samples", "prior_guidance"),
        )
        for epsilon in EPSILONS
        if (v := table1_value(block, method, epsilon))
    ]


def test_marks_what_the_paper_marks():
    """The bold numbers of the paper's Table 1, and THA's FID that prints as the same 63.3."""
    accuracy = {
        ("pixel", "low_b0", 0.3),
        ("pixel", "tha_moments", 1.0),
        ("pixel", "uniform_moments", 3.0),
        *itertools.product(["latent"], ["uniform_moments"], EPSILONS),
    }
    fid = {
        ("pixel", "uniform", 0.3),
        ("pixel", "uniform", 1.0),
        ("pixel", "uniform_moments", 3.0),
        ("latent", "uniform", 0.3),
        ("latent", "tha", 0.3),
        ("latent", "uniform_moments", 1.0),
        ("latent", "uniform_moments", 3.0),
    }
    expected = {(*one, "accuracy") for one in accuracy} | {(*one, "fid") for one in fid}
    assert best(paper_entries()) == expected


def test_a_lone_value_is_not_the_best():
    results = [result("pixel", "uniform", 1.0, 0)]
    assert best(entries_of(results)) == set()


def test_holes_are_shown():
    results = [
        one
        for one in full()
        if (one.method, one.epsilon) != ("uniform", 0.3)  # no seed
        and (one.method, one.epsilon, one.seed) != ("tha_moments", 0.3, 1)  # two seeds
        and not (one.method == "tha_moments" and one.epsilon == 1.0 and one.seed > 0)  # one seed
    ]
    entries = entries_of(results)
    missing = [Missing("pixel", "uniform", 0.3, 0, "timeout:\nran past its limit")]
    text = to_markdown(entries, results, CAPTION, missing)
    rows = markdown_rows(text)
    assert rows["Pixel space", "Uniform DP-SGD"][:2] == ["— (0/3 seeds)"] * 2
    ours = rows["Pixel space", "THA + moments"]
    assert ours[0] == "0.200 ± 0.141 (2/3 seeds)"
    assert ours[2] == "0.100 (1/3 seeds)"  # no deviation of one number
    assert ours[3] == "**10.0** (1/3 seeds)"
    assert "—: not there yet." in text
    reason = "Pixel space: Uniform DP-SGD, epsilon 0.3, seed 0: timeout: ran past its limit"
    assert text.endswith(f"Not there:\n\n- {reason}\n")
    latex = to_latex(entries, results, CAPTION, missing)
    assert r"Uniform DP-SGD & --- (0/3 seeds) & --- (0/3 seeds) & " in latex
    assert latex.endswith(f"% not there: {reason}\n")


def test_a_table_of_holes_alone():
    entries = entries_of([])
    assert all(entry.n == 0 and math.isnan(entry.accuracy) for entry in entries)
    rows = markdown_rows(to_markdown(entries, [], CAPTION))
    assert rows["Pixel space", "Uniform DP-SGD"] == ["— (0/3 seeds)"] * 4
    frame = pd.read_csv(io.StringIO(to_csv(entries, [], CAPTION)))
    assert frame["n"].tolist() == [0] * 6
    assert frame["accuracy_mean"].isna().all()


def test_csv_holds_one_line_a_row_and_budget_with_the_papers_value():
    results = [one for one in full() if not (one.method == "tha_moments" and one.seed)]
    frame = pd.read_csv(io.StringIO(to_csv(entries_of(results), results, CAPTION)))
    assert frame[["block", "method", "epsilon"]].values.tolist() == [
        [*row, epsilon] for row in ROWS for epsilon in BUDGETS
    ]
    assert frame["n"].tolist() == [3, 3, 3, 3, 1, 1]
    assert frame["accuracy_std"].isna().tolist() == [False] * 4 + [True] * 2
    assert set(frame["seeds_expected"]) == {3}
    assert set(frame["delta"]) == {1e-5}
    assert set(frame["fid_extractor"]) == {"fid_lenet"}
    assert set(frame["fid_extractor_checksum"]) == {"0123abcd"}
    assert set(frame["n_samples"]) == {3000}
    last = frame.iloc[-1]
    assert (last["label"], last["preset"]) == ("THA + moments", "lab")
    assert last[[f"paper_{name}" for name in ("accuracy_mean", "accuracy_std")]].tolist() == [
        0.724,
        0.033,
    ]
    assert last[["paper_fid_mean", "paper_fid_std"]].tolist() == [66.7, 0.6]


@pytest.mark.parametrize(
    "other",
    [
        {"extractor": "inception_v3_tf"},
        {"extractor_checksum": "4567cdef"},
        {"n_samples": 10_000},
    ],
)
def test_unlike_fids_never_share_a_table(other):
    results = [result("pixel", "uniform", 1.0, 0), result("pixel", "tha_moments", 1.0, 0, **other)]
    with pytest.raises(MixedExtractors, match="cannot share a column") as caught:
        entries_of(results)
    for value in ("0123abcd", *map(str, other.values())):
        assert value in str(caught.value)


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([result("pixel", "uniform", 1.0, 0)] * 2, "2 results where there is one cell"),
        ([result("pixel", "low_b0", 1.0, 0)], "the table has no place for it"),
        ([result("pixel", "uniform", 3.0, 0)], "the table has no place for it"),
        ([result("pixel", "uniform", 1.0, 7)], "the table has no place for it"),
        ([result("pixel", "uniform", 1.0, 0, accuracy=math.nan)], "accuracy nan .* out of range"),
        ([result("pixel", "uniform", 1.0, 0, accuracy=72.4)], "accuracy 72.4 .* out of range"),
        ([result("pixel", "uniform", 1.0, 0, fid=math.inf)], "FID inf is out of range"),
    ],
)
def test_results_that_cannot_be_right_are_refused(results, words):
    with pytest.raises(ValueError, match=words):
        entries_of(results)


def balanced(latex: str) -> bool:
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", latex):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def test_latex_is_well_formed():
    results = full()
    latex = to_latex(entries_of(results), results, CAPTION)
    assert balanced(latex)
    assert re.findall(r"\\(begin|end)\{(\w+)\}", latex) == [
        ("begin", "table"),
        ("begin", "tabular"),
        ("end", "tabular"),
        ("end", "table"),
    ]
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 1
    assert latex.count(r"\midrule") == 2  # a block each
    body = latex[latex.index(r"\toprule") : latex.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    for row in rows:
        spans = [int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        assert row.count("&") + sum(spans) == 4  # five columns
    assert r"Method & Acc & FID (fid\_lenet)$\downarrow$ &" in body
    assert r"THA $+$ moments & \textbf{0.200\,$\pm$\,0.100} & " in body


def test_latex_escapes_what_a_name_may_hold():
    hostile = replace(CAPTION, preset="a_b&c%d#e$f{g}h\\i~j^k")
    results = full()
    latex = to_latex(entries_of(results), results, hostile)
    assert balanced(latex)
    assert r"a\_b\&c\%d\#e\$f\{g\}h\textbackslash{}i\textasciitilde{}j\textasciicircum{}k" in latex
    caption = next(line for line in latex.splitlines() if line.startswith(r"\caption"))
    assert not re.search(r"(?<!\\)[_&%#]", caption)


def test_no_privacy_is_an_infinite_budget():
    results = [result("pixel", "uniform", math.inf, 0), result("pixel", "tha_moments", math.inf, 0)]
    entries = summarise(results, ROWS, (math.inf,), (0,))
    assert "Acc, ε = ∞" in to_markdown(entries, results, CAPTION)
    assert r"$\varepsilon{=}\infty$" in to_latex(entries, results, CAPTION)
