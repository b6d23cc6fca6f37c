"""Fetching, from servers on this machine that are good, wrong, cut off, silent or absent."""

import gzip
import hashlib
import socket
import struct
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from straightdp.data.fetch import Catalogue, catalogue, fetch
from straightdp.data.sources import SOURCES, DataError, load


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


FILES = {
    f"{prefix}-{part}.gz": gzip.compress(_idx(array), mtime=0)
    for prefix, size in (("train", 3), ("t10k", 2))
    for part, array in (
        ("images-idx3-ubyte", np.full((size, 28, 28), size, np.uint8)),
        ("labels-idx1-ubyte", np.arange(size, dtype=np.uint8)),
    )
}
MD5 = {name: hashlib.md5(body).hexdigest() for name, body in FILES.items()}


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's `behave` says; remembers what was asked for."""

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        self.server.asked.append(name)
        status, body, length = self.server.behave(name)
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def good(name):
    return 200, FILES[name], len(FILES[name])


def other_file(name):
    body = gzip.compress(b"another file")
    return 200, body, len(body)


def web_page(name):
    return 200, b"<html>log in</html>", 19


def cut_off(name):
    return 200, FILES[name][:20], len(FILES[name])


def absent(name):
    return 404, b"", 0


@pytest.fixture
def serve(monkeypatch):
    """Start servers; returns a function from a behaviour to (address, names asked for)."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setitem(SOURCES, "kmnist", replace(SOURCES["kmnist"], train_size=3, test_size=2))
    servers = []

    def start(behave):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.behave, server.asked = behave, []
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/kmnist/", server.asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


def run(root, *mirrors, **options):
    lines = []
    folder = fetch("kmnist", root, Catalogue(mirrors, MD5), report=lines.append, **options)
    return folder, lines


def contents(root):
    return {path.name: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_good_host_fills_the_folder_that_load_reads(tmp_path, serve):
    address, asked = serve(good)
    folder, lines = run(tmp_path, address)
    assert folder == tmp_path / "KMNIST" / "raw"
    assert contents(tmp_path) == FILES
    assert sorted(asked) == sorted(FILES)
    assert len(lines) == 4 and all(address in line for line in lines)
    assert load("kmnist", "train", root=tmp_path).labels.tolist() == [0, 1, 2]
    assert (load("kmnist", "test", root=tmp_path).images == 2).all()


def test_what_is_there_is_not_fetched_again(tmp_path, serve):
    address, asked = serve(good)
    run(tmp_path, address)
    (tmp_path / "KMNIST" / "raw" / "train-labels-idx1-ubyte.gz").unlink()
    asked.clear()
    run(tmp_path, address)
    assert asked == ["train-labels-idx1-ubyte.gz"]
    run(tmp_path, closed_port())  # nothing is missing, so no host is needed
    assert contents(tmp_path) == FILES


@pytest.mark.parametrize("packed_again", [True, False])
def test_a_whole_file_put_there_by_hand_is_kept_and_reported(tmp_path, serve, packed_again):
    address, asked = serve(good)
    raw = tmp_path / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    name = "t10k-images-idx3-ubyte.gz"
    body = gzip.decompress(FILES[name])
    own = raw / name if packed_again else raw / name.removesuffix(".gz")
    own.write_bytes(gzip.compress(body, compresslevel=1, mtime=7) if packed_again else body)
    before = own.read_bytes()
    _, lines = run(tmp_path, address)
    assert own.read_bytes() == before and name not in asked and len(asked) == 3
    assert ["not as published" in line for line in lines].count(True) == 1
    assert (load("kmnist", "test", root=tmp_path).images == 2).all()


def test_a_damaged_file_is_replaced(tmp_path, serve):
    address, _ = serve(good)
    raw = tmp_path / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(b"half a fi")
    run(tmp_path, address)
    assert contents(tmp_path) == FILES


def test_a_damaged_unpacked_file_does_not_hide_the_fetched_one(tmp_path, serve):
    address, _ = serve(good)
    raw = tmp_path / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(b"half a fi")
    run(tmp_path, address)
    assert len(load("kmnist", "train", root=tmp_path).labels) == 3


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        (other_file, "wrong checksum"),
        (web_page, "no gzip file"),
        (cut_off, "cut off after 20 bytes"),
        (absent, "404"),
    ],
)
def test_a_bad_host_leaves_nothing_behind_and_the_next_is_asked(tmp_path, serve, behave, said):
    bad, _ = serve(behave)
    with pytest.raises(DataError) as caught:
        run(tmp_path, bad)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("kmnist", bad, said, str(tmp_path / "KMNIST" / "raw"), *FILES):
        assert part in message
    assert contents(tmp_path) == {}
    address, _ = serve(good)
    run(tmp_path, bad, address)
    assert contents(tmp_path) == FILES


def test_a_failed_fetch_leaves_the_old_file_even_if_damaged(tmp_path, serve):
    bad, _ = serve(other_file)
    raw = tmp_path / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte.gz").write_bytes(b"half a fi")
    with pytest.raises(DataError):
        run(tmp_path, bad)
    assert contents(tmp_path) == {"train-images-idx3-ubyte.gz": b"half a fi"}


def test_when_no_host_answers_all_are_named(tmp_path, serve):
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    silent.listen()
    try:
        quiet = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        mirrors = [closed_port(), quiet]
        with pytest.raises(DataError) as caught:
            run(tmp_path, *mirrors, timeout=0.2)
    finally:
        silent.close()
    message = str(caught.value)
    assert "\n" not in message and "by hand" in message and "timed out" in message
    assert all(mirror in message for mirror in mirrors)
    assert contents(tmp_path) == {}


def test_a_folder_that_cannot_be_written_is_named(tmp_path, serve):
    address, _ = serve(good)
    (tmp_path / "KMNIST").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="KMNIST.*cannot be written"):
        run(tmp_path, address)


@pytest.mark.parametrize("name", ["embedded", "glyphs"])
def test_what_comes_with_the_package_needs_no_host(name, tmp_path):
    lines = []
    where = Catalogue((closed_port(),), MD5)
    assert fetch(name, tmp_path, where, report=lines.append).is_dir()
    assert len(lines) == 1 and name in lines[0] and "nothing needs fetching" in lines[0]
    assert contents(tmp_path) == {}


def test_letters_are_drawn_into_files_that_a_second_fetch_keeps(tmp_path, monkeypatch):
    small = replace(SOURCES["letters"], train_size=30, test_size=20)
    monkeypatch.setitem(SOURCES, "letters", small)
    folder = fetch("letters", tmp_path, report=lambda line: None)
    before = contents(tmp_path)
    train, test = load("letters", "train", root=tmp_path), load("letters", "test", root=tmp_path)
    np.testing.assert_array_equal(train.images, load("letters", "train", size=30).images)
    np.testing.assert_array_equal(test.images, load("letters", "test", size=20).images)
    assert test.labels.tolist() == list(range(10)) * 2
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    lines = []
    fetch("letters", tmp_path, report=lines.append)
    assert contents(tmp_path) == before
    assert "train files" in lines[0] and "drawing 20 images" in lines[1]


def test_an_unknown_source_is_refused(tmp_path):
    with pytest.raises(DataError, match="emnist: no such data set; known: mnist"):
        fetch("emnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "published"),  # md5 of the training images, from each data set's own page
    [
        ("mnist", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("fashion_mnist", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("kmnist", "bdb82020997e1d708af4cf47b453dcf7"),
    ],
)
def test_the_catalogue_has_four_files_and_more_than_one_host(name, published):
    listed = catalogue(name)
    assert sorted(listed.files) == sorted(FILES)
    assert listed.files["train-images-idx3-ubyte.gz"] == published
    assert len(listed.mirrors) >= 2
    assert all(mirror.startswith("http") and mirror.endswith("/") for mirror in listed.mirrors)
