const maps = JSON.parse(document.getElementById("data").textContent);
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
const value = document.getElementById("value"), words = document.getElementById("choice").dataset;
let shown = [], geometry = {};
const option = (select, text, number) => select.add(new Option(text, number));
const current = () => maps[kind.value];
// A text from right to left must not turn what stands around it.
const apart = text => `\u2068${text}\u2069`;

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
    const upright = [...name].length === 1;  // a Chinese character
    if (upright) context.translate(0, -8);
    else context.rotate(-Math.PI / 2);
    context.fillStyle = style(marked && marked[1] === k ? "--series-2" : "--ink");
    context.textAlign = upright ? "center" : "left";
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
    const button = Object.assign(document.createElement("button"), {type: "button", title: `${words.layer} ${l + 1}, ${words.head} ${h + 1}`});
    button.setAttribute("aria-label", button.title);
    button.dataset.place = `${l} ${h}`;
    button.onclick = () => { layer.value = l; head.value = h; update(); };
    button.append(small);
    grid.append(button);
  }
}

function update() {
  head.disabled = layer.value === "rollout";
  shown = weights(current(), layer.value, head.value);
  value.textContent = "";
  for (const small of grid.children)
    small.setAttribute("aria-pressed", small.dataset.place === `${layer.value} ${head.value}`);
  draw();
}

function choose() {
  const map = current(), [layers, heads] = map.shape;
  for (const select of [layer, head]) select.replaceChildren();
  option(layer, words.mean, "all");
  for (let l = 0; l < layers; l++) option(layer, l + 1, l);
  if (map.flow) option(layer, words.rollout, "rollout");
  option(head, words.mean, "all");
  for (let h = 0; h < heads; h++) option(head, h + 1, h);
  thumbnails();
  update();
}

canvas.onmousemove = event => {
  const map = current(), keys = map.shape[3], {left, top, cell} = geometry;
  const k = Math.floor((event.offsetX - left) / cell), q = Math.floor((event.offsetY - top) / cell);
  if (k < 0 || q < 0 || k >= keys || q >= map.shape[2]) return;
  // Tokens are isolated, so that the arrow stays between them in scripts from right to left.
  value.textContent = `\u200e\u2068${apart(map.queries[q])}\u2069 → \u2068${apart(map.keys[k])}\u2069: ${shown[q * keys + k].toFixed(3)}`;
  draw([q, k]);
};
maps.forEach((map, number) => option(kind, map.kind, number));
kind.onchange = choose;
layer.onchange = head.onchange = update;
matchMedia("(prefers-color-scheme: dark)").onchange = choose;
choose();
