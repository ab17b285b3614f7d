// Make elements of text. Names come from traces, so nothing here parses markup.

// el("td", {class: "bad", onclick: f}, "text", child, …)
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// A table. columns: [{title, text (left-aligned)}], rows: arrays of strings, nodes or {value, class}.
export function table(caption, columns, rows) {
  // A column without a title, such as one of buttons, is headed by a plain cell: a header without text is none for a screen reader.
  const head = columns.map((c) => (c.title ? el("th", { class: c.text ? "text" : null, scope: "col" }, c.title) : el("td")));
  const body = rows.map((row) =>
    el("tr", {}, ...row.map((cell, i) => {
      const { value, class: kind } = cell !== null && typeof cell === "object" && "value" in cell ? cell : { value: cell };
      return el("td", { class: [columns[i].text ? "text" : "", kind ?? ""].join(" ").trim() || null }, value ?? "–");
    })),
  );
  const made = el("table", { class: "rows" }, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, made);
}

export const folded = (title, ...content) => el("details", {}, el("summary", {}, title), ...content);

// A group of buttons of which one is pressed.
export function choice(label, options, chosen, onchoose) {
  const buttons = options.map(([value, text]) =>
    el("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text),
  );
  function choose(value) {
    buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(options[i][0] === value)));
    onchoose(value);
  }
  return el("span", { class: "group", role: "group", "aria-label": label }, ...buttons);
}

// options: values, or [value, text].
export function selector(label, options, chosen, onchoose) {
  const pairs = options.map((o) => (Array.isArray(o) ? o : [o, o]));
  const select = el("select", { onchange: () => onchoose(select.value) }, ...pairs.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  return el("label", {}, `${label} `, select);
}
