// The same request as a command, as Python and as curl.

// In single quotes a shell changes nothing; a quote itself stands outside of them.
const quoted = text => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

function pythonValue(value) {
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (value !== null && typeof value === "object")
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonValue(each)}`).join(", ")}}`;
  if (typeof value === "boolean") return value ? "True" : "False";
  return value === null ? "None" : JSON.stringify(value);
}

export function asCommand(panel, values, model) {
  if (!panel.call) return null;
  const {verb, texts, options, data} = panel.call(values);
  const words = ["etymon", verb, quoted(model), ...texts.map(quoted)];
  for (const [name, value] of Object.entries(options)) {
    words.push(`--${name.replaceAll("_", "-")}`);
    if (value !== true) words.push(quoted(String(value)));
  }
  if (!data) return words.join(" ");
  // A table is a file: a line of JSON a row.
  return `echo ${quoted(JSON.stringify(data[0]))} > rows.jsonl\n${words.join(" ")} --data rows.jsonl`;
}

export function asPython(panel, values, model) {
  if (panel.python) return panel.python(values, model);
  const {verb, texts, options, data} = panel.call(values);
  // A source and its target are two arguments; texts are one list.
  const given = verb === "attention" ? texts.map(pythonValue) : texts.length ? [pythonValue(texts)] : [];
  const named = Object.entries({...options, ...(data ? {data} : {})}).map(([name, value]) => `${name}=${pythonValue(value)}`);
  return `import etymon\n\nmodel = etymon.load(${pythonValue(model)})\nprint(etymon.${verb}(${["model", ...given, ...named].join(", ")}))`;
}

export function asCurl(panel, values, model, language, hasKey) {
  return panel.requests(values, language).map(({path, body}) => ["curl", quoted(location.origin + path), ...(hasKey ? ['-H "Authorization: Bearer $KEY"'] : []),
    "-H 'Content-Type: application/json'", "-d", quoted(JSON.stringify({model, ...body}))].join(" ")).join("\n");
}
