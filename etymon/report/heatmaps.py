"""Pictures of attention: a page to look around in, or one picture as SVG or PNG.

Legend: Q queries, T keys.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from etymon.files import atomic_write
from etymon.report.page import escape, page
from etymon.report.plots import printable

LARGEST = 50.0
"""Inches of a picture's longer side: tokens of a long text become smaller, and no picture takes gigabytes."""


@dataclass(frozen=True)
class Attended:
    """`weights[layer, head, query, key]` of one kind of attention; every query's weights add up to one."""

    kind: str
    """self, encoder, decoder, or cross: from what is written to what was read."""
    queries: list[str]
    keys: list[str]
    weights: np.ndarray

    @property
    def square(self) -> bool:
        return self.kind != "cross"

    def rolled_out(self) -> np.ndarray:
        """How much of every token's input is left in each last state, if half of a layer's output is what came in and half
        what was attended to, heads in equal parts: `prod((A + I) / 2)` (Abnar and Zuidema 2020)."""
        flow = np.eye(len(self.queries))
        for layer_QT in self.weights.mean(1):
            flow = (layer_QT + np.eye(len(flow))) / 2 @ flow
        return flow


def attention_page(title: str, subtitle: str, maps: Sequence[Attended]) -> str:
    """One HTML file that needs nothing else: kinds, layers and heads to choose, every weight to point at."""
    records = [
        {
            "kind": one.kind, "queries": one.queries, "keys": one.keys, "shape": list(one.weights.shape),
            # Sixteen bits a weight: what is shown has three digits.
            "weights": _packed(one.weights), "rollout": _packed(one.rolled_out()) if one.square else None,
        }
        for one in maps
    ]  # fmt: skip
    # In a script element only "</" could end the data early.
    data = json.dumps(records, ensure_ascii=True).replace("</", "<\\/")
    lead = f'<p class="subtitle">{escape(subtitle)}</p>'
    script = f'<script type="application/json" id="data">{data}</script>\n<script>\n{_SCRIPT}</script>\n'
    return page(title, _SECTIONS, lead, style=_OWN_STYLE, script=script)


def _packed(weights: np.ndarray) -> str:
    return base64.b64encode((weights.clip(0, 1) * 65535).round().astype("<u2").tobytes()).decode("ascii")


def attention_picture(path: str | PathLike[str], one: Attended, layer: int | None, head: int | None) -> None:
    """One heat map (None: the mean of all layers, of all heads) to an .svg or .png file."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = one.weights if layer is None else one.weights[layer : layer + 1]
    weights_QT = (chosen if head is None else chosen[:, head : head + 1]).mean((0, 1))
    rows, columns = weights_QT.shape
    width, height = 2 + 0.28 * columns, 1.6 + 0.24 * rows
    scale = min(1, LARGEST / max(width, height))
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "etymon", "font.size": max(1, 9 * scale)}
    ):
        figure = Figure(figsize=(scale * width, scale * height), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        image = axes.imshow(weights_QT, cmap="Blues", vmin=0, aspect="auto")
        axes.set_xticks(range(columns), [_plain(token) for token in one.keys], rotation=90)
        axes.set_yticks(range(rows), [_plain(token) for token in one.queries])
        where = "mean of all layers" if layer is None else f"layer {layer + 1}"
        axes.set_title(
            f"{one.kind} attention, {where}, {'mean of all heads' if head is None else f'head {head + 1}'}"
        )
        figure.colorbar(image, ax=axes, shrink=0.8)
        with atomic_write(path, "wb") as file:
            figure.savefig(file, format=Path(path).suffix[1:].lower(), dpi=160)


def _plain(token: str) -> str:
    # A dollar sign would begin a formula.
    return printable(token).replace("$", r"\$") or "·"


_SECTIONS = """<section>
<form id="choice">
<label>attention <select id="kind"></select></label>
<label>layer <select id="layer"></select></label>
<label>head <select id="head"></select></label>
<output id="value" aria-live="polite"></output>
</form>
<div class="wide"><canvas id="map" role="img" aria-label="attention weights: rows are queries, columns keys"></canvas></div>
</section>
<section><h2>All layers (down) and heads (across)</h2><div class="wide"><div id="grid"></div></div></section>"""

_OWN_STYLE = """body { max-width: 72rem; }
form { display: flex; flex-wrap: wrap; gap: .5rem 1.2rem; align-items: baseline; margin-bottom: .8rem; }
select { font: inherit; padding: .1rem .3rem; }
output { color: var(--muted); font-variant-numeric: tabular-nums; min-height: 1.5em; }
#grid { display: grid; gap: 4px; }
#grid canvas { width: 100%; min-width: 28px; image-rendering: pixelated; border: 1px solid var(--grid); cursor: pointer; }
#grid canvas.chosen { outline: 2px solid var(--series-2); }
"""

_SCRIPT = """const maps = JSON.parse(document.getElementById("data").textContent);
const unpack = text => {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  return new Uint16Array(bytes.buffer);
};
for (const map of maps) {
  map.values = unpack(map.weights);
  if (map.rollout) map.flow = unpack(map.rollout);
}
const [kind, layer, head] = ["kind", "layer", "head"].map(name => document.getElementById(name));
const canvas = document.getElementById("map"), grid = document.getElementById("grid");
const value = document.getElementById("value");
let shown = [], geometry = {};
const option = (select, text, number) => select.add(new Option(text, number));
const current = () => maps[kind.value];

// The mean over what was not chosen: "all" layers, "all" heads.
function weights(map, oneLayer, oneHead) {
  const [layers, heads, queries, keys] = map.shape, size = queries * keys;
  if (oneLayer === "rollout") return Array.from(map.flow, number => number / 65535);
  const sum = new Float64Array(size);
  let count = 0;
  for (let l = 0; l < layers; l++) for (let h = 0; h < heads; h++) {
    if ((oneLayer !== "all" && l != oneLayer) || (oneHead !== "all" && h != oneHead)) continue;
    const start = (l * heads + h) * size;
    for (let i = 0; i < size; i++) sum[i] += map.values[start + i];
    count++;
  }
  return Array.from(sum, number => number / count / 65535);
}

const style = name => getComputedStyle(document.documentElement).getPropertyValue(name);

// As arguments of Math.max they would be too many.
const largest = numbers => numbers.reduce((one, other) => Math.max(one, other), 1e-9);

function draw(marked) {
  const map = current(), [, , queries, keys] = map.shape;
  const context = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
  context.font = "13px system-ui, sans-serif";
  const width = names => Math.min(160, Math.max(...names.map(name => context.measureText(name).width))) + 10;
  const left = width(map.queries), top = width(map.keys), cell = Math.max(16, Math.min(34, 900 / keys));
  geometry = {left, top, cell};
  const [wide, high] = [left + keys * cell + 4, top + queries * cell + 4];
  Object.assign(canvas, {width: wide * ratio, height: high * ratio});
  Object.assign(canvas.style, {width: wide + "px", height: high + "px"});
  context.scale(ratio, ratio);
  context.font = "13px system-ui, sans-serif";
  context.textBaseline = "middle";
  const most = largest(shown);
  for (let q = 0; q < queries; q++) for (let k = 0; k < keys; k++) {
    context.globalAlpha = shown[q * keys + k] / most;
    context.fillStyle = style("--series-1");
    context.fillRect(left + k * cell, top + q * cell, cell - 1, cell - 1);
  }
  context.globalAlpha = 1;
  map.queries.forEach((name, q) => {
    context.fillStyle = style(marked && marked[0] === q ? "--series-2" : "--ink");
    context.textAlign = "right";
    context.fillText(name, left - 6, top + (q + .5) * cell, 160);
  });
  map.keys.forEach((name, k) => {
    context.save();
    context.translate(left + (k + .5) * cell, top - 6);
    context.rotate(-Math.PI / 2);
    context.fillStyle = style(marked && marked[1] === k ? "--series-2" : "--ink");
    context.textAlign = "left";
    context.fillText(name, 0, 0, 160);
    context.restore();
  });
}

function thumbnails() {
  const map = current(), [layers, heads, queries, keys] = map.shape;
  grid.replaceChildren();
  grid.style.gridTemplateColumns = `repeat(${heads}, minmax(28px, ${heads > 1 ? "1fr" : "16rem"}))`;
  for (let l = 0; l < layers; l++) for (let h = 0; h < heads; h++) {
    const small = Object.assign(document.createElement("canvas"), {width: keys, height: queries});
    const context = small.getContext("2d"), one = weights(map, l, h), most = largest(one);
    context.fillStyle = style("--series-1");
    one.forEach((number, i) => {
      context.globalAlpha = number / most;
      context.fillRect(i % keys, Math.floor(i / keys), 1, 1);
    });
    small.title = `layer ${l + 1}, head ${h + 1}`;
    small.dataset.place = `${l} ${h}`;
    small.onclick = () => { layer.value = l; head.value = h; update(); };
    grid.append(small);
  }
}

function update() {
  head.disabled = layer.value === "rollout";
  shown = weights(current(), layer.value, head.value);
  value.textContent = "";
  for (const small of grid.children)
    small.classList.toggle("chosen", small.dataset.place === `${layer.value} ${head.value}`);
  draw();
}

function choose() {
  const map = current(), [layers, heads] = map.shape;
  for (const select of [layer, head]) select.replaceChildren();
  option(layer, "mean of all", "all");
  for (let l = 0; l < layers; l++) option(layer, l + 1, l);
  if (map.flow) option(layer, "rollout", "rollout");
  option(head, "mean of all", "all");
  for (let h = 0; h < heads; h++) option(head, h + 1, h);
  thumbnails();
  update();
}

canvas.onmousemove = event => {
  const map = current(), keys = map.shape[3], {left, top, cell} = geometry;
  const k = Math.floor((event.offsetX - left) / cell), q = Math.floor((event.offsetY - top) / cell);
  if (k < 0 || q < 0 || k >= keys || q >= map.shape[2]) return;
  value.textContent = `${map.queries[q]} → ${map.keys[k]}: ${shown[q * keys + k].toFixed(3)}`;
  draw([q, k]);
};
maps.forEach((map, number) => option(kind, map.kind, number));
kind.onchange = choose;
layer.onchange = head.onchange = update;
matchMedia("(prefers-color-scheme: dark)").onchange = choose;
choose();
"""
