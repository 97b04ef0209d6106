"""The page of docs/browser runs a classifier in Chromium with Transformers.js, from local files alone."""

from __future__ import annotations

import contextlib
import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from etymon.exports.writing import export_model, find_target
from etymon.nn.batch import Batch
from tests.exports.conftest import shaken_model

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
PACKAGES = ROOT / ".browser" / "node_modules"
TEXT = "The captain remembered the river."

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


class Handler(SimpleHTTPRequestHandler):
    extensions_map = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_):
        """Nothing."""


@contextlib.contextmanager
def serving(folder):
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if not CHROMIUM.exists():
        pytest.skip("Chromium is not installed: make chromium")
    if not PACKAGES.is_dir():
        pytest.skip("Transformers.js is not installed: make transformers-js")
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_bytes((ROOT / "docs" / "browser" / "index.html").read_bytes())
    (folder / "transformers").symlink_to(PACKAGES / "@huggingface" / "transformers" / "dist")
    (folder / "onnxruntime").symlink_to(PACKAGES / "onnxruntime-web" / "dist")
    model = shaken_model("bert", "classification")
    model.labels = ("dull", "joyful")
    for name, quantization in (("reviews", "float32"), ("rounded", "int8")):
        target, _ = find_target("onnx", quantization)
        export_model(model, target, quantization, folder / "models" / name)
    with serving(folder) as address:
        yield address, model


def test_a_page_classifies_as_the_model_does(site):
    from playwright.sync_api import sync_playwright

    address, model = site
    frame = model.tokenizer.id
    row = [frame("class"), *model.tokenizer.encode(TEXT).tolist(), frame("separator")]
    expected = dict(
        zip(model.labels, model.answer("classification", Batch.of([row]))[0].softmax(-1).tolist())
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        for query, tolerance in (("", 1e-3), ("?model=rounded&dtype=q8", 0.1)):
            page = browser.new_page()
            asked = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(f"{address}/index.html{query}")
            page.wait_for_function(
                "!document.querySelector('#status').textContent.startsWith('Opening')", timeout=90_000
            )
            assert page.inner_text("#status") == "Ready."
            page.fill("#text", TEXT)
            page.click("button")
            page.wait_for_selector("#labels tr", timeout=90_000)
            cells = [row.inner_text().split() for row in page.query_selector_all("#labels tr")]
            scores = {cell[0]: float(cell[-1]) for cell in cells}
            assert scores.keys() == expected.keys()
            assert all(abs(scores[label] - expected[label]) < tolerance for label in scores)
            assert all(url.startswith((address, "blob:")) for url in asked)
        browser.close()
