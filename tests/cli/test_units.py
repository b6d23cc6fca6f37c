"""Units and what they share: what is damaged is named, with how to make it anew."""

import shutil
import threading

import pytest
from conftest import TINY, write_preset

from straightdp.cli.units import Workspace, locked, prerequisites, run_unit
from straightdp.config import load_preset
from straightdp.files import DamagedFile, load_tensors, save_tensors
from straightdp.studies.cells import resolve


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """What a latent cell and a voting one start from, made once."""
    folder = tmp_path_factory.mktemp("shared")
    preset = load_preset(write_preset(folder / "tiny.yaml", TINY))
    workspace = Workspace(folder / "tiny")
    cells = [
        resolve(preset, method, space, 1.0, 0)
        for method, space in (("uniform", "latent"), ("private_evolution", "pixel"))
    ]
    for cell in cells:
        for unit in prerequisites(cell):
            if not workspace.done(unit):
                run_unit(unit, workspace, preset.execution, threads=1)
    return preset, workspace, cells


def truncate(path):
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def drop_a_tensor(path):
    state = load_tensors(path)
    state["network"].popitem()
    save_tensors(path, state)


def forget_tau(path):
    path.write_text(path.read_text().replace('"tau"', '"tua"', 1))


@pytest.mark.parametrize(
    ("which", "kind", "name", "damage"),
    [
        (0, "public", "public.pt", truncate),
        (0, "public", "calibration.json", truncate),
        (0, "public", "calibration.json", forget_tau),
        (0, "autoencoder", "autoencoder.pt", truncate),
        (0, "autoencoder", "autoencoder.pt", drop_a_tensor),
        (1, "public_extractor", "extractor.json", truncate),
        (1, "public_extractor", "lenet.pt", truncate),
    ],
)
def test_a_damaged_shared_file_is_named_with_its_cure(shared, tmp_path, which, kind, name, damage):
    preset, workspace, cells = shared
    copied = Workspace(tmp_path / "tiny")
    shutil.copytree(workspace.root, copied.root)
    units = [unit for unit in prerequisites(cells[which]) if unit.kind == kind]
    folder = copied.folder(units[0])
    damage(folder / name)
    with pytest.raises(DamagedFile, match=f"; remove {folder} and run again$"):
        run_unit(cells[which], copied, preset.execution, threads=1)


def test_a_shared_unit_is_done_only_with_all_its_files(shared, tmp_path):
    preset, workspace, cells = shared
    copied = Workspace(tmp_path / "tiny")
    shutil.copytree(workspace.root, copied.root)
    public = next(unit for unit in prerequisites(cells[0]) if unit.kind == "public")
    (copied.folder(public) / "calibration.json").unlink()
    assert not copied.done(public)
    run_unit(cells[0], copied, preset.execution, threads=1)
    assert copied.done(public) and copied.done(cells[0])


def test_a_shared_unit_that_another_process_makes_is_waited_for(shared, tmp_path):
    """Two cells begun at once both need it: the second takes what the first one makes."""
    preset, workspace, cells = shared
    copied = Workspace(tmp_path / "tiny")
    shutil.copytree(workspace.root, copied.root)
    public = next(unit for unit in prerequisites(cells[0]) if unit.kind == "public")
    output = copied.output(public)
    hidden = output.rename(tmp_path / "public.pt")
    with locked(copied.folder(public)):
        waiting = threading.Thread(target=run_unit, args=(cells[0], copied, preset.execution, 1))
        waiting.start()
        waiting.join(1.5)
        assert waiting.is_alive()
        made = hidden.rename(output).stat().st_mtime_ns
    waiting.join()
    assert copied.done(cells[0]) and output.stat().st_mtime_ns == made
