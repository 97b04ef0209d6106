// What answers look like: small functions from data to elements.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role" || name === "for" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

export const percent = share => (share >= 0.0995 ? `${Math.round(100 * share)}%` : `${(100 * share).toFixed(1)}%`);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Spaces and line ends by themselves would be invisible.
export const spelled = token => token.trim() ? token : JSON.stringify(token).slice(1, -1).replaceAll(" ", "␣");

// Candidates with their probabilities, the best first.
export function bars(rows, label) {
  const table = element("table", {className: "bars", "aria-label": label});
  for (const [name, share] of rows) {
    const meter = element("meter", {min: 0, max: 1, value: share, "aria-label": `${name} ${percent(share)}`});
    table.append(element("tr", {}, element("th", {scope: "row", dir: "auto", textContent: spelled(name)}),
      element("td", {}, meter), element("td", {textContent: percent(share)})));
  }
  return table;
}

// A cell's colour by its share of the strongest; the letters stay readable at up to half of it.
function tint(cell, share, series = "--series-1") {
  const strength = Math.round(50 * Math.max(0, Math.min(1, share)));
  cell.style.background = `color-mix(in srgb, var(${series}) ${strength}%, var(--card))`;
}

export function heatTable(corner, columns, rows, label) {
  const head = element("tr", {}, element("td", {textContent: corner}),
    ...columns.map(name => element("th", {scope: "col", dir: "auto", textContent: name})));
  const body = rows.map(row => element("tr", {}, element("th", {scope: "row", dir: "auto", textContent: row.name}),
    ...row.cells.map(({text, share, title}) => {
      const cell = element("td", {textContent: text, title: title ?? "", dir: "auto"});
      tint(cell, share);
      return cell;
    })));
  const table = element("table", {className: "heat", "aria-label": label}, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", {className: "scroll", tabIndex: 0, role: "region", "aria-label": label}, table);
}

// Words side by side, the stronger coloured the larger their share.
export function colouredWords(words) {
  return element("p", {className: "words", dir: "auto"}, ...words.flatMap(({word, share, title}) => {
    const shown = element("span", {className: "word", textContent: word, title});
    tint(shown, share, "--series-2");
    return [shown, " "];
  }));
}

export function wordsView(words, say) {
  const most = Math.max(8, ...words.map(word => word.surprisal));
  return colouredWords(words.map(({word, surprisal}) => ({word, share: surprisal / most, title: `${surprisal.toFixed(2)} ${say("bits")}`})));
}

const written = text => element("p", {className: "written", dir: "auto"}, text);

// A text with some of its characters marked; places count characters as Python does.
function markedText(text, marks) {
  const letters = Array.from(text), shown = written("");
  let done = 0;
  for (const {start, end, label} of [...marks].sort((one, other) => one.start - other.start)) {
    if (start < done) continue;
    shown.append(letters.slice(done, start).join(""), element("mark", {}, letters.slice(start, end).join(""), ...(label ? [element("small", {textContent: ` ${label}`})] : [])));
    done = end;
  }
  shown.append(letters.slice(done).join(""));
  return shown;
}

// What a fine-tuned model answers to a row, by the form of its answer.
export function predictionView(answer, row, {task, columns, lists}, say) {
  const {prediction, probabilities, confidences} = answer, view = element("div");
  if (Array.isArray(probabilities)) {  // a choice
    const choices = lists.length ? row[lists[0]] : columns.slice(-probabilities.length).map(name => row[name]);
    const best = probabilities.indexOf(Math.max(...probabilities));
    view.append(written(choices[best] ?? String(prediction)), bars(choices.map((text, place) => [text, probabilities[place]]), say("probability")));
  } else if (Array.isArray(confidences)) {  // a tag for every word
    view.append(heatTable(say("word"), [say("tag name"), say("probability")], prediction.map((tag, place) => ({
      name: row[lists[0]]?.[place] ?? "", cells: [{text: tag, share: 0}, {text: percent(confidences[place]), share: confidences[place]}]})), say(task)));
  } else if (task === "tag") {  // entities
    view.append(markedText(String(row[columns[0]]), prediction));
    view.append(prediction.length ? bars(prediction.map(each => [`${each.text} (${each.label})`, each.confidence ?? 0]), say("probability")) : element("p", {textContent: say("no entities")}));
  } else if (task === "answer") {
    const context = String(row[columns.at(-1)]);
    view.append(written(prediction || say("no answer")));
    if (answer.start != null) view.append(markedText(context, [{start: answer.start, end: answer.stop}]));
    if (answer.best?.length) view.append(heatTable(say("answer"), [say("score of it")], answer.best.map(each => ({name: each.text || "–", cells: [{text: each.score.toFixed(2), share: 0}]})), say("answer")));
  } else {
    const shown = Array.isArray(prediction) ? prediction.join(", ") || "–" : typeof prediction === "number" ? prediction.toFixed(3) : String(prediction ?? "–");
    view.append(written(shown));
    if (probabilities) view.append(bars(Object.entries(probabilities).sort((one, other) => other[1] - one[1]), say("probability")));
    for (const [name, value] of Object.entries(answer))
      if (!["prediction", "probabilities"].includes(name) && typeof value !== "object") view.append(element("p", {textContent: `${name.replaceAll("_", " ")}: ${value}`}));
  }
  return view;
}

function meanOf(map, layer, head) {
  const [rows, columns] = [map.queries.length, map.keys.length];
  const sum = Array.from({length: rows}, () => new Float64Array(columns));
  let count = 0;
  map.weights.forEach((heads, l) => heads.forEach((weights, h) => {
    if ((layer !== "mean" && l !== Number(layer)) || (head !== "mean" && h !== Number(head))) return;
    weights.forEach((row, q) => row.forEach((weight, k) => { sum[q][k] += weight; }));
    count++;
  }));
  return sum.map(row => Array.from(row, value => value / count));
}

function thumbnail(weights) {
  const canvas = element("canvas", {width: weights[0].length, height: weights.length});
  const context = canvas.getContext("2d"), most = Math.max(1e-9, ...weights.map(row => Math.max(...row)));
  context.fillStyle = colour("--series-1");
  weights.forEach((row, q) => row.forEach((weight, k) => {
    context.globalAlpha = weight / most;
    context.fillRect(k, q, 1, 1);
  }));
  return canvas;
}

// A browser of layers and heads, and the matrix of what is chosen. `chosen` is kept in the link.
export function attentionView(maps, say, chosen, onChoose) {
  const view = element("div");
  const option = (value, text, isChosen) => new Option(text, value, false, isChosen);
  const select = (name, options) => {
    const made = element("select", {name}, ...options);
    return [made, element("div", {}, element("label", {}, say(name), element("br"), made))];
  };
  function draw() {
    const map = maps[Math.min(chosen.kind, maps.length - 1)];
    const [kind, kindField] = select("kind", maps.map((each, number) => option(number, say(each.kind), each === map)));
    const [layer, layerField] = select("layer", [option("mean", say("mean"), chosen.layer === "mean"),
      ...map.layers.map((number, l) => option(l, number, String(l) === chosen.layer))]);
    const [head, headField] = select("head", [option("mean", say("mean"), chosen.head === "mean"),
      ...map.heads.map((number, h) => option(h, number, String(h) === chosen.head))]);
    const choose = (changes, focus) => {
      Object.assign(chosen, changes);
      onChoose();
      draw();
      view.querySelector(focus)?.focus();
    };
    kind.onchange = () => choose({kind: Number(kind.value), layer: "mean", head: "mean"}, "select[name=kind]");
    layer.onchange = () => choose({layer: layer.value}, "select[name=layer]");
    head.onchange = () => choose({head: head.value}, "select[name=head]");
    const grid = element("div", {className: "heads", role: "group", "aria-label": say("heads")});
    grid.style.gridTemplateColumns = `repeat(${map.heads.length}, minmax(24px, 5rem))`;
    map.weights.forEach((heads, l) => heads.forEach((weights, h) => {
      const isChosen = chosen.layer === String(l) && chosen.head === String(h);
      const name = `${say("layer")} ${map.layers[l]}, ${say("head")} ${map.heads[h]}`;
      const button = element("button", {type: "button", title: name, "aria-label": name, "aria-pressed": isChosen}, thumbnail(weights));
      button.dataset.place = `${l} ${h}`;
      button.onclick = () => choose({layer: String(l), head: String(h)}, `[data-place="${l} ${h}"]`);
      grid.append(button);
    }));
    const weights = meanOf(map, chosen.layer, chosen.head);
    const most = Math.max(1e-9, ...weights.map(row => Math.max(...row)));
    const rows = weights.map((row, q) => ({name: spelled(map.queries[q]), cells: row.map((weight, k) => ({
      text: weight >= .005 ? weight.toFixed(2).replace(/^0/, "") : "", share: weight / most, title: `\u200e\u2068${map.queries[q]}\u2069 → \u2068${map.keys[k]}\u2069: ${weight.toFixed(3)}`}))}));
    view.replaceChildren(element("div", {className: "fields"}, kindField, layerField, headField), grid,
      heatTable("", map.keys.map(spelled), rows, `${map.kind}: ${say("attends")}`),
      element("p", {className: "status", textContent: say("attends")}));
  }
  draw();
  return view;
}
