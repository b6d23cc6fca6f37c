"""A tiny grid through Snakemake, as a user meets it: failure, rerun, no-ops, new seeds.

One folder is carried through the steps in order; each test says what must hold there.
"""

import copy
import json
import shutil

import pytest
from conftest import TINY, copy_workflow, job_counts, run, write_preset

from straightdp.config import load_preset
from straightdp.mechanisms.transcript import replay
from straightdp.studies.cells import cell_base, metrics_name
from straightdp.studies.grid import STUDIES, TABLE1, study_cells
from straightdp.studies.variants import variant_cell


def snakemake(folder, *arguments, preset="tiny.yaml", check=True):
    return run(
        "snakemake",
        "--profile",
        "profiles/local",
        "--cores",
        "2",
        *arguments,
        "--config",
        f"preset={preset}",
        cwd=folder,
        check=check,
    )


def planned(done) -> dict[str, int]:
    """Jobs by rule, from a dry run's table."""
    return {rule: count for rule, count in job_counts(done).items() if rule != "total"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working copy of the workflow with a tiny preset."""
    folder = copy_workflow(tmp_path_factory.mktemp("grid"))
    write_preset(folder / "tiny.yaml", TINY)
    return folder


@pytest.fixture(scope="module")
def cells(folder):
    return study_cells(load_preset(folder / "tiny.yaml"), TABLE1)


@pytest.fixture(scope="module")
def broken(folder, cells):
    """A cell that cannot run: an earlier start of it declared another budget."""
    cell = next(one for one in cells if one.method == "uniform_moments" and one.space == "latent")
    state = folder / "results" / "tiny" / "cells" / cell.id / "state"
    state.mkdir(parents=True)
    other = {"kind": "declaration", "schema": 1, "epsilon": 7.0}
    (state / "transcript.jsonl").write_text(json.dumps(other) + "\n")
    return cell


@pytest.fixture(scope="module")
def first_run(folder, broken):
    return snakemake(folder, "table1", check=False)


def test_a_dry_run_names_every_cell(folder, cells, broken):
    done = snakemake(folder, "-n", "table1")
    assert planned(done)["cell"] == len(cells) == len(TABLE1.rows)
    assert all(cell.id in done.stdout for cell in cells)


def test_a_failing_cell_leaves_the_others_done(folder, cells, broken, first_run):
    assert first_run.returncode != 0
    assert not (folder / "tables" / "tiny" / "table1.md").exists()
    name = metrics_name(load_preset(folder / "tiny.yaml"))
    for cell in cells:
        exists = (folder / "results" / "tiny" / "cells" / cell.id / name).exists()
        assert exists == (cell.id != broken.id), cell.id


def test_status_gives_the_reason_and_the_log(folder, cells, broken, first_run):
    shown = run("straightdp", "status", "--preset", "tiny.yaml", cwd=folder).stdout
    assert f"{len(cells) - 1} of {len(cells)} cells done" in shown
    after = shown.split(broken.id, 1)[1]
    assert "exception" in after and "another mechanism" in after and "log.txt" in after


def test_a_partial_table_shows_the_hole(folder, first_run):
    done = run("straightdp", "report", "table1", "--partial", "--preset", "tiny.yaml", cwd=folder)
    row = next(
        line for line in done.stdout.split("Latent")[1].splitlines() if "Uniform + m" in line
    )
    assert row.count("\u2014 (0/1 seeds)") == 2
    assert (folder / "tables" / "tiny" / "table1.partial.csv").exists()
    whole = run("straightdp", "report", "table1", "--preset", "tiny.yaml", cwd=folder, check=False)
    assert whole.returncode != 0 and not (folder / "tables" / "tiny" / "table1.md").exists()


def test_rerun_failed_runs_that_cell_alone(folder, cells, broken, first_run):
    root = folder / "results" / "tiny" / "cells"
    before = {cell.id: root / cell.id / "run.json" for cell in cells if cell.id != broken.id}
    stamps = {key: path.stat().st_mtime_ns for key, path in before.items()}
    shutil.rmtree(root / broken.id / "state")
    done = run("straightdp", "rerun", "--failed", "--preset", "tiny.yaml", cwd=folder)
    assert "snakemake" in done.stdout.splitlines()[0] and broken.id in done.stdout
    assert {key: path.stat().st_mtime_ns for key, path in before.items()} == stamps
    assert (root / broken.id / "run.json").exists()
    assert (folder / "tables" / "tiny" / "table1.tex").exists()
    again = run("straightdp", "rerun", "--failed", "--preset", "tiny.yaml", cwd=folder)
    assert "no failed cells" in again.stdout


def test_a_second_run_does_nothing(folder, first_run):
    assert "Nothing to be done" in ((done := snakemake(folder, "table1")).stdout + done.stderr)


@pytest.mark.parametrize("suffix", ["csv", "tex"])
def test_a_file_of_a_table_that_was_removed_is_written_again(folder, first_run, suffix):
    path = folder / "tables" / "tiny" / f"table1.{suffix}"
    kept = path.read_bytes()
    path.unlink()
    try:
        assert planned(snakemake(folder, "-n", "table1")) == {"write_table": 1, "table1": 1}
    finally:
        path.write_bytes(kept)


def test_another_table_runs_only_what_it_adds(folder, first_run):
    """Table 5's cells at epsilon 1 are Table 1's; Table 6 has other budgets too."""
    shared = planned(snakemake(folder, "-n", "table5"))
    assert shared == {"write_table": 1, "table5": 1}
    preset = load_preset(folder / "tiny.yaml")
    beyond = {cell.id for cell in study_cells(preset, STUDIES["table6"])} - {
        cell.id for cell in study_cells(preset, TABLE1)
    }
    jobs = planned(snakemake(folder, "-n", "table5", "table6"))
    assert jobs["cell"] == jobs["evaluate"] == len(beyond) >= 9
    assert jobs["write_table"] == 2 and "public_stage" not in jobs and "extractor" not in jobs


def test_a_white_space_edit_and_a_style_change_rerun_nothing(folder, first_run):
    rules = folder / "workflow" / "rules" / "cells.smk"
    text = rules.read_text()
    edited = text.replace(
        'RUN + " cell {wildcards.id} " + ON', 'RUN  +  " cell {wildcards.id} "  +  ON'
    )
    assert edited != text
    rules.write_text(edited)
    try:
        assert planned(snakemake(folder, "-n", "table1")) == {}
    finally:
        rules.write_text(text)


def test_a_new_seed_runs_its_cells_and_the_table(folder, cells, first_run):
    values = copy.deepcopy(TINY)
    values["grid"]["seeds"] = [0, 1]
    write_preset(folder / "two.yaml", values)
    jobs = planned(snakemake(folder, "-n", "table1", preset="two.yaml"))
    assert jobs == {
        "autoencoder": 1,
        "public_stage": 4,
        "cell": len(cells),
        "evaluate": len(cells),
        "write_table": 1,
        "table1": 1,
    }


def test_a_changed_evaluation_trains_nothing(folder, cells, first_run):
    values = copy.deepcopy(TINY)
    values["evaluation"]["probe"]["steps"] = 21
    write_preset(folder / "probe.yaml", values)
    jobs = planned(snakemake(folder, "-n", "table1", preset="probe.yaml"))
    assert "cell" not in jobs and "public_stage" not in jobs and jobs["evaluate"] == len(cells)


def test_the_controls_add_their_own_cells_alone(folder, cells, first_run):
    preset = load_preset(folder / "tiny.yaml")
    beyond = {cell.id for cell in study_cells(preset, STUDIES["controls"])} - {
        cell.id for cell in cells
    }
    jobs = planned(snakemake(folder, "-n", "controls"))
    assert jobs == {
        "draw": 1,  # the second domain, and what is trained on it
        "autoencoder": 1,
        "public_stage": 3,  # of it in both spaces, and one that is not pretrained
        "cell": len(beyond),
        "evaluate": len(beyond),
        "write_controls": 1,
        "controls": 1,
    }


def test_a_resampled_cell_runs_after_its_base_and_again_when_that_does(folder, cells, first_run):
    preset, root = load_preset(folder / "tiny.yaml"), folder / "results" / "tiny" / "cells"
    one = variant_cell(preset, "tha_moments", "pixel", 1.0, 0, "posthoc-clamp")
    base = cell_base(one.config)
    targets = [f"results/tiny/cells/{unit.id}/run.json" for unit in (one, base)]
    stamp = (root / base.id / "run.json").stat().st_mtime_ns
    done = snakemake(folder, targets[0])
    assert "nothing trained" in done.stdout + done.stderr
    assert (root / base.id / "run.json").stat().st_mtime_ns == stamp
    assert json.loads((root / one.id / "config.json").read_text()) == one.config
    shown = run("straightdp", "status", "controls", "--preset", "tiny.yaml", cwd=folder).stdout
    line = next(text for text in shown.splitlines() if "posthoc-clamp" in text)
    assert line.split() == ["posthoc:", "tha_moments", "(pixel),", "posthoc-clamp", "samples"]
    again = snakemake(folder, "-n", targets[0], "--forcerun", targets[1])
    assert planned(again) == {"cell": 2}


def test_every_transcript_replays_within_its_budget(folder, cells, first_run):
    root = folder / "results" / "tiny" / "cells"
    for cell in cells:
        result = replay(root / cell.id / "transcript.jsonl")
        assert result.ok and 0.99 < result.epsilon <= 1.0
    done = run("straightdp", "replay", cells[-1].id, "--preset", "tiny.yaml", cwd=folder)
    assert f"epsilon {result.epsilon:.6g}" in done.stdout
    assert "within the declared 1" in done.stdout


def test_a_corrupted_metrics_file_is_refused_by_name(folder, cells, first_run):
    name = metrics_name(load_preset(folder / "tiny.yaml"))
    path = folder / "results" / "tiny" / "cells" / cells[3].id / name
    good = path.read_text()
    for damaged in (good[: len(good) // 2], good.replace('"ok"', '"failed"'), "[]"):
        path.write_text(damaged)
        done = run(
            "straightdp", "report", "table1", "--preset", "tiny.yaml", cwd=folder, check=False
        )
        assert done.returncode == 1 and str(path.relative_to(folder)) in done.stderr
        assert "Traceback" not in done.stderr
    path.write_text(good)


def test_a_bad_configuration_is_one_line_naming_the_key(folder):
    values = copy.deepcopy(TINY)
    values["stage2"]["sampling_rat"] = 0.1
    write_preset(folder / "bad.yaml", values)
    done = snakemake(folder, "-n", "table1", preset="bad.yaml", check=False)
    assert done.returncode != 0
    assert "bad.yaml: stage2.sampling_rat: unknown key" in done.stdout + done.stderr
