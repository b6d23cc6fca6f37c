"""How a workflow is told its preset: any path will do, and a slip of the pen is refused."""

import copy

import pytest
from conftest import TINY, copy_workflow, run, write_preset

from straightdp.config import Preset
from straightdp.studies.cells import data_unit, resolve


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return copy_workflow(tmp_path_factory.mktemp("named"), "config")


def snakemake(folder, *arguments):
    words = ("snakemake", "--profile", "profiles/local", "--cores", "1", *arguments)
    return run(*words, cwd=folder, check=False)


@pytest.mark.parametrize(
    "path", ["my preset.yaml", "a{b}c.yaml", "{threads}.yaml", "it's $HOME;.yaml"]
)
def test_a_presets_path_may_hold_what_a_shell_or_snakemake_would_read(folder, path):
    values = copy.deepcopy(TINY)
    values["data"]["glyph_count"] = 100 + len(path)
    write_preset(folder / path, values)
    cell = resolve(Preset(**values), "dp_merf", "pixel", 1.0, 0)
    target = f"results/tiny/data/{data_unit(cell.config['public']['data']).id}/images.npz"
    done = snakemake(folder, "--config", f"preset={path}", "--", target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / target).exists()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("presset=lab", "presset: unknown"),
        ("preset=", "name a preset"),
        ("preset=nowhere", "nowhere.yaml: no such preset"),
    ],
)
def test_a_slip_in_the_configuration_runs_nothing(folder, setting, said):
    done = snakemake(folder, "-n", "table1", "--config", setting)
    assert done.returncode != 0 and said in done.stdout + done.stderr
