"""Writing that is never half done: temporary name, fsync, rename.

Every artefact goes through one of these, so that a killed process or a full disk leaves
either the old file or the new one. Checkpoints are read without executing code. Torch is
imported by the two functions that need it, so that planning a grid stays quick.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


class DamagedFile(ValueError):
    """A file that exists but cannot be read as what it should be."""


@contextmanager
def made_by(folder: Path):
    """Around reading what a finished unit left in `folder`, which others share.

    What cannot be read is a :class:`DamagedFile` that says how to make it anew.
    """
    try:
        yield
    except (DamagedFile, FileNotFoundError, KeyError, TypeError, AttributeError) as error:
        named = isinstance(error, DamagedFile | FileNotFoundError)
        text = str(error) if named else f"{folder}: lacks or garbles {error}"
        raise DamagedFile(f"{text}; remove {folder} and run again") from error
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # out of memory, say: no fault of the file's
            raise
        first = str(error).splitlines()[0] if str(error) else "RuntimeError"
        raise DamagedFile(f"{folder}: {first}; remove {folder} and run again") from error


@contextmanager
def replacing(path: str | Path, private: bool = False):
    """Yield a temporary path beside `path`; on success it takes `path`'s place.

    `private` leaves the file readable by its owner alone; otherwise the umask decides.
    """
    path = Path(path)
    try:
        with _replacing(path, private) as temporary:
            yield temporary
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"{path}: cannot be written ({reason})") from error


@contextmanager
def _replacing(path: Path, private: bool):
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(descriptor)
    try:
        yield Path(name)
        with open(name, "rb+") as handle:
            os.fsync(handle.fileno())
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_text(path: str | Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Strict JSON (no NaN), keys in the order given."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Parse a JSON file; :class:`DamagedFile` names the file if that fails."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DamagedFile(f"{path}: not valid JSON ({error})") from error


def write_arrays(path: str | Path, **arrays: np.ndarray) -> None:
    with replacing(path) as temporary, open(temporary, "wb") as handle:
        np.savez_compressed(handle, **arrays)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz file, without pickles."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib and numpy each have their own
        raise DamagedFile(f"{path}: not a readable array file ({error})") from error


def save_tensors(path: str | Path, value: Any, private: bool = False) -> None:
    """Tensors in nested dicts and lists, with plain numbers and strings.

    Equal values give equal bytes: given a file's name, torch would write that name into it.
    """
    import torch

    with replacing(path, private) as temporary, open(temporary, "wb") as handle:
        try:
            torch.save(value, handle)
        except RuntimeError as error:  # torch's own writer, of a full disk
            raise OSError(str(error).splitlines()[0]) from error


def load_tensors(path: str | Path) -> Any:
    """Read what :func:`save_tensors` wrote, executing nothing that the file contains."""
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedFile(f"{path}: not a readable checkpoint ({first})") from error
