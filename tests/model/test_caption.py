"""The caption encoder is fixed, tells captions apart, and keeps the table's contract."""

from __future__ import annotations

import subprocess
import sys

import torch

from straightdp.model.caption import CaptionEncoder, CaptionSpec


def test_the_table_is_the_captions_then_the_null_caption():
    encoder = CaptionEncoder(CaptionSpec())
    table = encoder.table(10)
    assert table.shape == (11, 8, 64)
    torch.testing.assert_close(table[3], encoder.encode(["class 3"])[0])
    torch.testing.assert_close(table[10], encoder.encode([""])[0])


def test_captions_are_told_apart():
    table = CaptionEncoder(CaptionSpec()).table(10).flatten(1)
    distances = torch.cdist(table, table)[~torch.eye(11, dtype=bool)]
    assert distances.min() > 0.2 * table.norm(dim=1).mean()


def test_the_order_of_the_letters_counts():
    first, second = CaptionEncoder(CaptionSpec()).encode(["ab", "ba"])
    # A bag of letters would keep the mean over the caption.
    assert (first.mean(0) - second.mean(0)).norm() > 0.01 * first.mean(0).norm()


def test_embeddings_are_layer_normalised_and_frozen():
    embedded = CaptionEncoder(CaptionSpec(width=32)).encode(["class 7", "Straße", "x" * 50])
    assert embedded.shape == (3, 8, 32)
    torch.testing.assert_close(embedded.mean(-1), torch.zeros(3, 8), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        embedded.var(-1, unbiased=False), torch.ones(3, 8), atol=1e-3, rtol=0
    )
    assert not embedded.requires_grad


def test_another_process_and_another_random_state_give_the_same_table():
    code = (
        "import torch; torch.manual_seed(5)\n"
        "from straightdp.model.caption import CaptionEncoder, CaptionSpec\n"
        "print(CaptionEncoder(CaptionSpec(width=16)).table(3).double().sum((1, 2)).tolist())\n"
        "print(CaptionEncoder(CaptionSpec(width=16)).table(3).flatten()[:8].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    table = CaptionEncoder(CaptionSpec(width=16)).table(3)
    sums, first = done.stdout.splitlines()
    assert sums == str(table.double().sum((1, 2)).tolist())
    assert first == str(table.flatten()[:8].tolist())
