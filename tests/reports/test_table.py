"""A table's marks, holes and captions, and its three forms."""

import io
import itertools
import math
import re
from dataclasses import replace

import pandas as pd
import pytest
from conftest import TINY
from measured import BUDGETS, ROWS, SEEDS, full, measure, result

from straightdp.config import Preset
from straightdp.reports.compare import gains
from straightdp.reports.layout import LAYOUTS
from straightdp.reports.paper import EPSILONS, paper_value, table1_value
from straightdp.reports.results import Entry, Missing, Summary, summarise
from straightdp.reports.table import (
    Caption,
    Table,
    best,
    caption_text,
    to_csv,
    to_latex,
    to_markdown,
)
from straightdp.studies.grid import STUDIES, Row
from straightdp.studies.rows import Key

PIPELINE = ("uniform", "tha", "uniform_moments", "tha_moments", "low_b0")
CAPTION = Caption(
    title="Main results",
    preset="lab",
    public="fashion_mnist",
    private="mnist",
    delta=1e-5,
    adjacency="add_or_remove_one",
    seeds=SEEDS,
)
TABLE1 = LAYOUTS["table1"]
TINIEST = Preset(**TINY)  # for the rows that follow from a preset


def table(results, study="table1", rows=ROWS, columns=BUDGETS, seeds=SEEDS, missing=()) -> Table:
    layout = LAYOUTS[study]
    entries = summarise(results, rows, columns, seeds, layout.metrics)
    return Table(study, layout, columns, entries, results, CAPTION, missing)


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


def test_markdown_is_laid_out_as_the_paper():
    results = full()
    text = to_markdown(table(results))
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
    caption = to_markdown(table(results)).splitlines()[0]
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
    paper = to_markdown(replace(table(results), caption=replace(CAPTION, preset="paper")))
    assert "Not the paper's setting" not in paper


def paper_entries() -> list[Entry]:
    """Table 1 as the paper prints it."""
    return [
        Entry(
            block,
            method,
            "latent" if block == "latent" else "pixel",
            "",
            epsilon,
            3,
            3,
            {"accuracy": Summary(v.accuracy, v.accuracy_std), "fid": Summary(v.fid, v.fid_std)},
        )
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
    expected = {
        (Key(block, method, block), epsilon, name)
        for name, marked in (("accuracy", accuracy), ("fid", fid))
        for block, method, epsilon in marked
    }
    assert best(paper_entries(), TABLE1) == expected


def test_a_lone_value_is_not_the_best():
    results = [result(ROWS[1], 1.0, 0, accuracy=0.5, fid=9.0)]
    assert best(table(results).entries, TABLE1) == set()


def test_holes_are_shown():
    results = [
        one
        for one in full()
        if (one.method, one.epsilon) != ("uniform", 0.3)  # no seed
        and (one.method, one.epsilon, one.seed) != ("tha_moments", 0.3, 1)  # two seeds
        and not (one.method == "tha_moments" and one.epsilon == 1.0 and one.seed > 0)  # one seed
    ]
    missing = [Missing("pixel", "uniform", "pixel", "", 0.3, 0, "timeout:\nran past its limit")]
    shown = table(results, missing=missing)
    text = to_markdown(shown)
    rows = markdown_rows(text)
    assert rows["Pixel space", "Uniform DP-SGD"][:2] == ["— (0/3 seeds)"] * 2
    ours = rows["Pixel space", "THA + moments"]
    assert ours[0] == "0.200 ± 0.141 (2/3 seeds)"
    assert ours[2] == "0.100 (1/3 seeds)"  # no deviation of one number
    assert ours[3] == "**10.0** (1/3 seeds)"
    assert "—: not there yet." in text
    reason = "Pixel space: Uniform DP-SGD, epsilon 0.3, seed 0: timeout: ran past its limit"
    assert text.endswith(f"Not there:\n\n- {reason}\n")
    latex = to_latex(shown)
    assert r"Uniform DP-SGD & --- (0/3 seeds) & --- (0/3 seeds) & " in latex
    assert latex.endswith(f"% not there: {reason}\n")


def test_a_table_of_holes_alone():
    empty = table([])
    rows = markdown_rows(to_markdown(empty))
    assert rows["Pixel space", "Uniform DP-SGD"] == ["— (0/3 seeds)"] * 4
    frame = pd.read_csv(io.StringIO(to_csv(empty)))
    assert frame["n"].tolist() == [0] * 6
    assert frame["accuracy_mean"].isna().all()


def test_csv_holds_one_line_a_row_and_budget_with_the_papers_value():
    results = [one for one in full() if not (one.method == "tha_moments" and one.seed)]
    frame = pd.read_csv(io.StringIO(to_csv(table(results))))
    assert frame[["block", "method", "space", "epsilon"]].values.tolist() == [
        [row.block, row.method, row.space, epsilon] for row in ROWS for epsilon in BUDGETS
    ]
    assert frame["n"].tolist() == [3, 3, 3, 3, 1, 1]
    assert frame["accuracy_std"].isna().tolist() == [False] * 4 + [True] * 2
    assert set(frame["seeds_expected"]) == {3}
    assert set(frame["delta"]) == {1e-5}
    assert set(frame["fid_by"]) == {"fid_lenet"}
    assert set(frame["fid_checksum"]) == {"0123abcd"}
    assert set(frame["fid_reference"]) == {"mnist test, n = 10000"}
    assert set(frame["fid_n"]) == {3000}
    last = frame.iloc[-1]
    assert (last["label"], last["preset"]) == ("THA + moments", "lab")
    assert last[[f"paper_{name}" for name in ("accuracy_mean", "accuracy_std")]].tolist() == [
        0.724,
        0.033,
    ]
    assert last[["paper_fid_mean", "paper_fid_std"]].tolist() == [66.7, 0.6]


def balanced(latex: str) -> bool:
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", latex):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def test_latex_is_well_formed():
    latex = to_latex(table(full()))
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
    latex = to_latex(replace(table(full()), caption=hostile))
    assert balanced(latex)
    assert r"a\_b\&c\%d\#e\$f\{g\}h\textbackslash{}i\textasciitilde{}j\textasciicircum{}k" in latex
    caption = next(line for line in latex.splitlines() if line.startswith(r"\caption"))
    assert not re.search(r"(?<!\\)[_&%#]", caption)


def test_no_privacy_is_an_infinite_budget():
    results = [result(row, math.inf, 0, accuracy=0.5, fid=9.0) for row in ROWS]
    shown = table(results, columns=(math.inf,), seeds=(0,))
    assert "Acc, ε = ∞" in to_markdown(shown)
    assert r"$\varepsilon{=}\infty$" in to_latex(shown)


def papers(study: str, columns) -> Table:
    """A study filled with the paper's own means, one seed."""
    rows, metrics = STUDIES[study].rows_on(TINIEST), LAYOUTS[study].metrics
    results = [
        result(
            row,
            epsilon,
            0,
            **{name: (paper_value(study, row.key, epsilon, name) or (0.5,))[0] for name in metrics},
        )
        for row in rows
        for epsilon in row.epsilons or columns
    ]
    return table(results, study, rows, columns, seeds=(0,))


def test_table_2_has_the_papers_signed_gains_and_blanks():
    shown = papers("table2", (3.0, 1.0, 0.5, 0.3))
    rows = markdown_rows(to_markdown(shown))
    assert rows["", "Gain"][::2] == ["-7%", "-4%", "+4%", "+27%"]
    assert rows["", "Gain"][1::2] == [""] * 4
    assert rows["", "+ Stream clamp only"] == [""] * 6 + ["0.535", "98.7"]
    assert rows["", "Unconstrained"][-2:] == ["0.443", "94.1"]
    frame = pd.read_csv(io.StringIO(to_csv(shown)))
    gain = frame[frame["method"] == "low_b0"]
    assert gain["accuracy_gain"].round(2).tolist() == [-0.07, -0.04, 0.04, 0.27]
    assert gain["paper_accuracy_gain"].tolist() == [-0.07, -0.04, 0.04, 0.27]
    assert frame[frame["method"] != "low_b0"]["accuracy_gain"].isna().all()
    assert r"Gain & $-$7\% &  & $-$4\% &" in to_latex(shown)


def test_a_gain_over_nothing_is_a_hole():
    rows = STUDIES["table2"].rows
    results = [
        result(row, 1.0, 0, accuracy=value, fid=9.0)
        for row, value in ((rows[0], 0.0), (rows[3], 0.5))
    ]
    shown = table(results, "table2", rows, (1.0,), seeds=(0,))
    assert math.isnan(gains(shown.entries, shown.layout)[1.0])
    assert markdown_rows(to_markdown(shown))["", "Gain"] == ["—", ""]
    assert "Gain & --- &  \\\\" in to_latex(shown)


def test_table_2_marks_the_full_backbone():
    rows = markdown_rows(to_markdown(papers("table2", (3.0, 0.3))))
    found = {label: list(cells) for (_, label), cells in rows.items()}
    assert found["Full backbone (low-B0)"] == ["**0.788**", "**69.5**", "**0.561**", "**100.3**"]
    assert found["Unconstrained"] == ["0.848", "51.5", "0.443", "94.1"]


def test_table_5_marks_what_the_paper_marks():
    rows = markdown_rows(to_markdown(papers("table5", (1.0,))))
    assert list(rows["", "Sampled from the release (pixel)"]) == ["264.4", "**0.621**", "**0.944**"]
    assert list(rows["", "THA + moments (pixel)"]) == ["**101.4**", "0.444", "0.689"]


def test_table_6_keeps_two_extractors_in_two_columns():
    row = Row("training", "uniform", "pixel")
    measures = {
        "fid": measure(50.0),
        "fid_blind": measure(0.5, by="fid_random", checksum="b85a57ac"),
    }
    results = [replace(result(row, 1.0, 0), measures=measures)]
    shown = table(results, "table6", (row,), (1.0,), seeds=(0,))
    rows = markdown_rows(to_markdown(shown))
    assert rows["", "Method"] == ["FID (fid_lenet)↓, ε = 1", "FID (fid_random)↓, ε = 1"]
    assert rows["", "Uniform DP-SGD (pixel)"] == ["50.0", "0.50"]
    frame = pd.read_csv(io.StringIO(to_csv(shown)))
    assert frame.loc[0, ["fid_by", "fid_blind_by"]].tolist() == ["fid_lenet", "fid_random"]
    assert frame.loc[0, "paper_fid_mean"] == 62.7
    assert frame["paper_fid_blind_mean"].isna().all()
    caption = caption_text(shown)
    assert "fid_lenet (0123abcd)" in caption and "fid_random (b85a57ac)" in caption


def test_table_6_marks_the_best_of_the_training_configurations_alone():
    rows = STUDIES["table6"].rows
    results = [
        result(row, 10.0, 0, fid=paper_value("table6", row.key, 10.0, "fid")[0], fid_blind=1.0)
        for row in rows
    ]
    shown = markdown_rows(to_markdown(table(results, "table6", rows, (10.0,), seeds=(0,))))
    assert shown["Training configurations", "THA + moments (pixel)"][0] == "**41.3**"
    assert shown["Prior methods", "Private Evolution (frozen prior)"][0] == "35.4"
    both = {label for _, label in shown}
    assert {"THA + moments (pixel)", "THA + moments (latent)"} <= both


def test_per_class_values_and_their_n_are_there():
    row = Row("methods", "uniform", "pixel")
    by_class = {"parts": (1.0, 3.0), "part_n": (50, 60)}
    results = [
        replace(
            result(row, 1.0, seed, label_consistency=0.1, domain_rate=0.2),
            measures={
                "fid_by_class": measure(value, **by_class | {"parts": (value - 1, value + 1)}),
                "label_consistency": measure(0.1, by="lenet_labels"),
                "domain_rate": measure(0.2, by="lenet_domains"),
            },
        )
        for seed, value in ((0, 2.0), (1, 4.0))
    ]
    shown = table(results, "table5", (row,), (1.0,), seeds=(0, 1))
    frame = pd.read_csv(io.StringIO(to_csv(shown)))
    named = ["fid_by_class_mean", "fid_by_class_class0", "fid_by_class_class1"]
    assert frame.loc[0, named].tolist() == [3, 2, 4]
    assert "with 50 to 60 samples a class: strongly biased" in caption_text(shown)


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_has_a_layout_and_three_well_formed_tables(study):
    columns = STUDIES[study].epsilons or (0.3, 1.0)
    for shown in (
        papers(study, columns),
        table([], study, STUDIES[study].rows_on(TINIEST), columns),
    ):
        latex = to_latex(shown)
        assert balanced(latex)
        budgets = len(columns)
        if shown.layout.narrow:
            budgets = 1
        width = 1 + shown.layout.narrow + budgets * len(shown.layout.metrics)
        body = latex[latex.index(r"\toprule") : latex.index(r"\bottomrule")]
        for line in body.splitlines():
            if line.endswith(r"\\"):
                spans = [int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                assert line.count("&") + sum(spans) == width - 1
        cells = {len(one) for one in markdown_rows(to_markdown(shown)).values()}
        assert cells == {width - 1}
        assert len(pd.read_csv(io.StringIO(to_csv(shown)))) == len(shown.entries)


def test_a_ratio_stands_below_the_row_that_it_compares():
    shown = papers("controls", (1.0, 1.2))
    lines = [line.split("|")[1:] for line in to_markdown(shown).splitlines() if "|" in line]
    at = [i for i, line in enumerate(lines) if line[0].strip() == "Ratio"]
    assert [lines[i - 1][0].strip() for i in at[:2]] == [
        "THA + moments (pixel)",
        "THA + moments (latent)",
    ]
    assert len(at) == 4
    assert [lines[i][2].strip() for i in at[:2]] == ["3.5x", "1.1x"]  # .724/.207, .811/.709
    assert all(not text.strip() for i in at for text in [lines[i][1], *lines[i][3:]])
    frame = pd.read_csv(io.StringIO(to_csv(shown)))
    given = frame[frame["accuracy_ratio"].notna()]
    assert given["method"].tolist() == ["tha_moments"] * 4
    assert given["accuracy_ratio"].round(2).tolist()[:2] == [3.5, 1.14]
    assert given["paper_accuracy_ratio_low"].tolist()[2:] == [3.0, 3.0]
    assert to_latex(shown).count("Ratio & ") == 4


def test_a_row_of_one_seed_among_others_says_so():
    rows = (ROWS[1], Row("starts", "guided_uniform", "pixel", variant="start-0.5", one_seed=True))
    results = [result(rows[0], 1.0, seed, accuracy=0.5, fid=9.0) for seed in SEEDS]
    results.append(result(rows[1], 1.0, 0, accuracy=0.25, fid=9.0))
    shown = markdown_rows(to_markdown(table(results, rows=rows, columns=(1.0,))))
    named = "Uniform DP-SGD, guided, t0 = 0.5"
    block = "Guidance without distillation, by start t0 (pixel)"
    assert shown[block, named] == ["0.250 (n = 1)", "9.0 (n = 1)"]
    assert shown["Pixel space", "Uniform DP-SGD"] == ["0.500 ± 0.000", "9.0 ± 0.0"]
    with pytest.raises(ValueError, match="start-0.5 at epsilon 1, seed 1: the table has no place"):
        table([result(rows[1], 1.0, 1, accuracy=0.5, fid=9.0)], rows=rows, columns=(1.0,))
