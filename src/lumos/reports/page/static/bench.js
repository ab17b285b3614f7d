// The what-if bench: changes on the left, their effect on the step on the right, scenarios below.

import { ask, latest } from "lumos/api.js";
import { chart, plain } from "lumos/charts.js";
import { el, folded, table } from "lumos/dom.js";
import { bytes, duration, percent, seconds } from "lumos/format.js";
import { moved, outcome } from "lumos/parts.js";
import { PARTS } from "lumos/theme.js";

const KINDS = [["scale", "scale by name"], ["drop", "drop"], ["fuse", "fuse neighbours"], ["rank_slowdown", "slow a rank"], ["set", "plan or model"], ["network", "network"], ["base", "was recorded"]];
// What work may take the time of, in place of a factor.
const LIKE = ["peers", "steps", "usual"];
const PAUSE_MS = 350;

// doc: the report's document; names: of /api/names; settings: of /api/settings (by key {kind, words, least, most, help, valid_for}). Returns {element, set(changes)}.
export function bench(doc, names, settings) {
  let changes = [], saved = [], timer = 0;
  const list = el("div"), error = el("p", { class: "error", role: "alert" }), changedPath = el("div");
  const figures = el("div"), memory = el("p", { class: "hint" }), waiting = el("div", { class: "bar" });
  const clusters = (label, none) => el("select", { "aria-label": label, onchange: () => turn() }, el("option", { value: "" }, none), ...settings.clusters.map((c) => el("option", { value: c }, c)));
  const recordedOn = clusters("where the job was recorded", "as the trace says"), runOn = clusters("where it is to run", "where it was recorded");
  const command = el("pre", { tabindex: "0" }), python = el("pre", { tabindex: "0" }), scenarios = el("div");
  const element = el("div", { id: "bench" });

  // The changes in the words of the command line: KEY=VALUE, GLOB=F, RANK=F or GLOB, by kind.
  const request = () => {
    const asked = { ...(recordedOn.value ? { base_cluster: recordedOn.value } : {}), ...(runOn.value ? { cluster: runOn.value } : {}) };
    for (const { kind, name, value } of changes) (asked[kind] ??= []).push(value === undefined ? name : kind === "network" ? `${name}=x${value}` : `${name}=${value}`);
    return asked;
  };

  const answer = latest(async ({ full }) => {
    try {
      const asked = request(), long = ["set", "network", "cluster"].some((kind) => kind in asked);
      if (long && !full) return; // a change of the plan takes too long to answer while a slider moves: ask once it rests
      const found = long ? await slowly(asked) : await ask("/api/whatif", { ...asked, moved: full });
      if (!found) return;
      error.textContent = "";
      show(found, full);
    } catch (problem) {
      error.textContent = problem.message;
      element.dataset.state = "error";
    }
  });

  // Ask a question that takes long: show that it is under way, and a button that cancels it. Returns null where it was cancelled.
  async function slowly(asked) {
    const asking = new AbortController(), stop = el("button", { type: "button", onclick: () => asking.abort() }, "cancel");
    waiting.replaceChildren(el("progress"), el("span", { class: "hint" }, "changing and simulating …"), stop);
    try {
      return await ask("/api/whatif", { ...asked, moved: true }, "POST", asking.signal);
    } catch (problem) {
      if (problem.name !== "AbortError") throw problem;
      element.dataset.state = "cancelled";
      return null;
    } finally { waiting.replaceChildren(); }
  }

  function turn() {
    element.dataset.state = "asking";
    answer({ full: false });
    clearTimeout(timer);
    timer = setTimeout(() => answer({ full: true }), PAUSE_MS);
  }

  function show(found, full) {
    figures.replaceChildren(...outcome(found).elements);
    const m = found.memory;
    memory.textContent = m?.peak_bytes ? `Peak memory ${bytes(m.peak_bytes)}${m.fits === false ? ", which does not fit" : ""}.` : found.share ? "Memory: not known for this job." : "Memory: a change of durations moves none.";
    command.textContent = found.command;
    python.textContent = found.python;
    if (full) changedPath.replaceChildren(moved(found));
    Object.assign(element.dataset, { state: full ? "settled" : "answered", stepTime: found.step_time_s, baseTime: found.base.step_time_s });
  }

  function row(change) {
    const what = { rank_slowdown: `rank ${change.name} slower`, set: change.name, base: `${change.name} was` }[change.kind] ?? `${change.kind} ${change.name}`;
    const remove = el("button", { type: "button", "aria-label": `remove: ${what}`, onclick: () => { changes = changes.filter((c) => c !== change); render(); turn(); } }, "×");
    const out = el("div", { class: "change" }, el("div", { class: "what" }, what), remove);
    if (change.kind === "set") {
      const { words, least, most, help, valid_for: ways } = settings.settings[change.name];
      const input = words.length ? el("select", {}, ...words.map((v) => el("option", { value: v, selected: v === change.value }, v))) : el("input", { type: "number", min: least, max: most, step: "1", value: change.value });
      input.title = `${help}; can be changed through ${ways.join(" or ")}`;
      input.setAttribute("aria-label", what);
      input.addEventListener("change", () => { change.value = input.value; turn(); });
      out.append(input);
      return out;
    }
    if (change.value === undefined) return out;
    if (change.kind === "base" || LIKE.includes(change.value)) {
      const choices = change.kind === "base" ? null : LIKE;
      const input = choices ? el("select", {}, ...choices.map((v) => el("option", { value: v, selected: v === change.value }, v))) : el("input", { value: change.value });
      input.setAttribute("aria-label", what);
      input.addEventListener("change", () => { change.value = input.value.trim(); turn(); });
      out.append(input);
      return out;
    }
    const set = (value) => {
      if (!Number.isFinite(value) || value < 0) return;
      change.value = value;
      slider.value = value;
      field.value = Number(value.toFixed(4));
      turn();
    };
    const slider = el("input", { type: "range", min: "0", max: change.kind === "network" ? "4" : "2", step: "0.01", value: change.value, "aria-label": `factor of ${what}`, oninput: () => set(Number(slider.value)) });
    const field = el("input", { type: "number", min: "0", step: "0.05", value: change.value, "aria-label": `factor of ${what}, as a number`, onchange: () => set(Number(field.value)) });
    out.append(slider, field);
    return out;
  }

  function render() {
    list.replaceChildren(...(changes.length ? changes.map(row) : [el("p", { class: "hint" }, "No change yet: the step is the replayed one.")]));
  }

  function add(change) {
    changes = [...changes, change];
    render();
    turn();
  }

  function adder() {
    const options = el("datalist", { id: "names" }, ...names.map((n) => el("option", { value: escapeGlob(n.name) }, `${n.class}, ${duration(n.time_ns)}`)));
    const kind = el("select", { "aria-label": "kind of change", onchange: () => { glob.hidden = ["rank_slowdown", "set", "base", "network"].includes(kind.value); rank.hidden = kind.value !== "rank_slowdown"; key.hidden = !["set", "base"].includes(kind.value); like.hidden = kind.value !== "scale"; link.hidden = kind.value !== "network"; } }, ...KINDS.map(([v, t]) => el("option", { value: v }, t)));
    const glob = el("input", { list: "names", placeholder: "name or pattern, e.g. *gemm*", "aria-label": "name or pattern", size: "26" });
    const rank = el("select", { "aria-label": "rank", hidden: true }, ...doc.classes.ranks.map((r) => el("option", { value: r }, `rank ${r}`)));
    const key = el("select", { "aria-label": "setting", hidden: true }, ...Object.entries(settings.settings).map(([k, s]) => el("option", { value: k, title: s.help }, k)));
    const link = el("select", { "aria-label": "of the network", hidden: true }, ...["bandwidth", "latency"].map((k) => el("option", { value: k }, k)));
    const like = el("select", { "aria-label": "by what" }, el("option", { value: "" }, "by a factor"), ...LIKE.map((v) => el("option", { value: v }, `as ${v}`)));
    const form = el("form", { class: "bar", onsubmit: (e) => {
      e.preventDefault();
      if (kind.value === "rank_slowdown") add({ kind: "rank_slowdown", name: rank.value, value: 1.2 });
      else if (kind.value === "set") add({ kind: "set", name: key.value, value: settings.settings[key.value].words[0] ?? known(key.value) });
      else if (kind.value === "base") add({ kind: "base", name: key.value, value: String(known(key.value)) });
      else if (kind.value === "network") add({ kind: "network", name: link.value, value: link.value === "bandwidth" ? 2 : 0.5 });
      else if (glob.value.trim()) add({ kind: kind.value, name: glob.value.trim(), ...(kind.value === "scale" ? { value: like.value || 0.5 } : {}) });
      glob.value = "";
    } }, kind, glob, like, rank, key, link, el("button", {}, "add"), options);
    const quick = names.slice(0, 6).map((n) => el("button", { type: "button", title: n.name, onclick: () => add({ kind: "scale", name: escapeGlob(n.name), value: 0.8 }) }, n.name.length > 34 ? `${n.name.slice(0, 33)}…` : n.name));
    return [form, el("div", { class: "bar" }, el("span", { class: "hint" }, "most time:"), ...quick)];
  }

  // The present value of a setting where the blocks or the ranks show it, else 1.
  const known = (key) => (key === "layers" && doc.outline?.layers ? doc.outline.layers : key === "dp" ? doc.classes.ranks.length : 1);

  async function listScenarios() {
    const rows = saved.map((s) => [
      el("span", { class: "group" }, el("button", { type: "button", onclick: () => set(s.asked) }, "load"),
        el("button", { type: "button", "aria-label": `remove scenario ${s.name}`, onclick: () => { saved = saved.filter((other) => other !== s); listScenarios(); } }, "×")),
      s.name, seconds(s.answer.step_time_s), { value: `${seconds(s.answer.difference_s, true)} (${percent(s.answer.change, { signed: true, decimals: 1 })})`, class: s.answer.difference_s < 0 ? "good" : s.answer.difference_s > 0 ? "bad" : "" },
      ...PARTS.map(([key]) => seconds(s.answer.breakdown[`${key}_s`])), s.answer.changes.join("; ") || "none",
    ]);
    const side = el("div");
    scenarios.replaceChildren(...(saved.length ? [side, table("Scenarios", [
      { title: "use" }, { title: "scenario", text: true }, { title: "step" }, { title: "difference" }, ...PARTS.map(([, name]) => ({ title: name })), { title: "changes", text: true },
    ], rows)] : [el("p", { class: "hint" }, "None saved.")]));
    if (!saved.length) return;
    const base = saved[0].answer.base.breakdown, bars = [...saved.map((s, i) => [`${i + 1}. ${s.name}`, s.answer.breakdown]).reverse(), ["base", base]];
    await chart(side, PARTS.map(([key, name, colour]) => ({
      type: "bar", orientation: "h", name, y: bars.map(([n]) => plain(n)), x: bars.map(([, b]) => 1e3 * b[`${key}_s`]), marker: { color: colour }, hovertemplate: "%{y}<br>%{x:.3f} ms<extra>" + name + "</extra>",
    })), { barmode: "stack", height: 110 + 28 * bars.length, xaxis: { title: { text: "ms" } }, margin: { l: 120, r: 16, t: 50, b: 40 } });
  }

  function set(wanted) {
    [recordedOn.value, runOn.value] = [wanted.base_cluster ?? "", wanted.cluster ?? ""];
    changes = KINDS.flatMap(([kind]) => (wanted[kind] ?? []).map((text) => {
      const at = ["drop", "fuse"].includes(kind) ? -1 : text.lastIndexOf("="), value = text.slice(at + 1);
      return at < 0 ? { kind, name: text } : { kind, name: text.slice(0, at), value: ["set", "base"].includes(kind) || LIKE.includes(value) ? value : Number(value.replace(/^x/, "")) };
    }));
    render();
    turn();
  }

  const name = el("input", { placeholder: "name of the scenario", "aria-label": "name of the scenario" });
  const save = el("form", { class: "bar", onsubmit: async (e) => {
    e.preventDefault();
    try {
      const asked = request(), title = name.value.trim() || `scenario ${saved.length + 1}`, answer = await slowly(asked);
      if (answer) saved = [...saved, { name: title, asked, answer }];
      name.value = "";
      await listScenarios();
    } catch (problem) { error.textContent = problem.message; }
  } }, name, el("button", {}, "save"));
  const copy = (from) => el("button", { type: "button", onclick: async (e) => { await navigator.clipboard.writeText(from.textContent); e.target.textContent = "copied"; } }, "copy");

  element.append(
    el("div", { class: "bench" },
      el("div", { class: "card" }, ...adder(), list, waiting, save, el("div", { class: "bar" }, el("label", { class: "hint" }, "recorded on ", recordedOn), el("label", { class: "hint" }, "run on ", runOn)), error),
      el("div", { class: "card" }, figures, memory, changedPath,
        folded("The same on the command line, and in Python", el("div", { class: "bar" }, "command line ", copy(command)), command, el("div", { class: "bar" }, "Python ", copy(python)), python))),
    el("h3", {}, "Scenarios side by side"), scenarios,
  );
  render();
  return { element, set, start: async () => { await Promise.all([answer({ full: true }), listScenarios()]); } };
}

// A pattern that matches exactly this name.
const escapeGlob = (text) => text.replace(/[[*?]/g, "[$&]");
