"""Make the packaged MNIST subset from a data folder in torchvision's layout.

    python scripts/make_embedded.py FOLDER

Takes the first images of each digit, in MNIST's order, and prints the checksum to put into
embedded.py and EMBEDDED.md of src/straightdp/data.
"""

import hashlib
import lzma
import sys
from pathlib import Path

import numpy as np

from straightdp.data.embedded import FILE, PER_CLASS, pack
from straightdp.data.sources import load
from straightdp.files import replacing


def main(folder: str) -> None:
    sets = {}
    for split, count in PER_CLASS.items():
        source = load("mnist", split, root=Path(folder))
        chosen = np.sort(
            np.concatenate([np.flatnonzero(source.labels == digit)[:count] for digit in range(10)])
        )
        sets[split] = source.images[chosen], source.labels[chosen]
    raw = pack(sets)
    with replacing(FILE) as temporary:
        temporary.write_bytes(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME))
    print(f"{FILE}: {FILE.stat().st_size} bytes, sha256 of the contents:")
    print(hashlib.sha256(raw).hexdigest())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/make_embedded.py FOLDER")
    main(sys.argv[1])
