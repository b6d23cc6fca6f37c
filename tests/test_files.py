"""Files that cannot be written are named, and never half there."""

import errno
from pathlib import Path

import numpy as np
import pytest
import torch

from straightdp import files
from straightdp.methods.progress import Progress


def full(*arguments, **others):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_json(path, {}),
        lambda path: files.write_arrays(path, a=np.zeros(3)),
        lambda path: files.save_tensors(path, {"a": torch.zeros(3)}),
    ],
)
def test_a_full_disk_is_said_with_the_files_name(tmp_path, monkeypatch, write, where):
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(files.os, where, full)
    with pytest.raises(OSError, match=f"^{path}: cannot be written .No space left on device.$"):
        write(path)
    assert [one.name for one in tmp_path.iterdir()] == ["file"] and path.read_text() == "old"


def test_torchs_own_word_for_it_too(tmp_path, monkeypatch):
    def fails(*arguments):
        raise RuntimeError("PytorchStreamWriter failed writing file data/0\nmore")

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(OSError, match="state.pt: cannot be written .PytorchStreamWriter failed"):
        files.save_tensors(tmp_path / "state.pt", {})
    assert list(tmp_path.iterdir()) == []


def test_equal_tensors_are_equal_bytes_whatever_the_file(tmp_path):
    value = {"a": torch.arange(3.0), "b": [torch.ones(2, 2), "c", 4]}
    paths = [tmp_path / name for name in ("model.pt", "other.pt", "model.pt")]
    written = []
    for path in paths:
        files.save_tensors(path, value)
        written.append(path.read_bytes())
    assert written[0] == written[1] == written[2]
    assert torch.equal(files.load_tensors(paths[0])["b"][0], torch.ones(2, 2))


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "file").touch()
    Progress("t", Path(tmp_path / "file" / "log.txt")).say("on it goes")
