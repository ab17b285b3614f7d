// The parts of a report: each takes the document and an element, and fills the element. Report and explorer use the same.

import { decode } from "lumos/columns.js";
import { chart, plain, short } from "lumos/charts.js";
import { choice, el, folded, selector, table } from "lumos/dom.js";
import { bytes, count, cut, duration, percent, rate, seconds } from "lumos/format.js";
import { viewLink } from "lumos/view_link.js";
import { byColour, called, NAMED, NAMED_COLOUR, palette, PARTS, RUN, style } from "lumos/theme.js";

const ms = (ns) => ns / 1e6;
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

export function tiles(facts) {
  return el("div", { class: "tiles" }, ...facts.filter(Boolean).map(([label, value, note]) =>
    el("div", { class: "tile" }, el("div", { class: "label" }, label), el("div", { class: "value" }, value), note ? el("div", { class: "note" }, note) : null),
  ));
}

// How far an answer can be trusted: the grade, and the reasons why it is no better.
export function trustLine(trust, beside = "") {
  const style = { sound: "good", limited: "", unsound: "bad" }[trust.grade], [first, ...others] = trust.reasons;
  return el("div", { class: "trust" }, "Trust: ", el("b", { class: style }, trust.grade), first ? `: ${first.message}. ` : ". ", beside, others.length ? folded(count(others.length, "more reason"), diagnosticList(others)) : null);
}

// Whether a replayed time can be told from the measured one in a drawing of a step.
const SEEN = 0.01;
const differ = (measured, replayed, whole) => Math.abs(measured - replayed) > SEEN * whole;
const UNSEEN = "The replay is not drawn: it differs by less than 1 % of the step.";

// A link to a task; where its number is not drawn, to the time at which it starts, ns from the step's first start.
function atTask(doc, { step, start_ns: start, number }, rank, text) {
  const begin = doc.steps.find((s) => s.name === step)?.begin_ns;
  return begin === undefined ? text : el("a", { href: viewLink({ step, run: "measured", task: number, rank, at: start + begin }) }, text);
}

// What a figure of a step is, in words.
const BASIS = { period: "from one step's completion to the next", latency: "from its first work to its completion" };

// Why a step does not count, in a word; empty where it does.
const uncounted = (doc, s) => (s.counts ? "" : s.basis !== doc.basis ? s.basis : s.once || "does not count");

// The steps to choose from: [name, text].
export const stepOptions = (doc) => doc.steps.map((s) => [s.name, uncounted(doc, s) ? `${s.name} (${uncounted(doc, s)})` : s.name]);

export function summary(doc, node) {
  const { replay, use, diagnosis } = doc, counted = doc.steps.filter((s) => s.counts), first = diagnosis?.findings[0];
  const part = (key) => mean(counted.map((s) => s.measured.four[`${key}_ns`] / s.time_ns)), peak = Math.max(0, ...doc.memory.map((m) => Math.max(...m.allocated_bytes)));
  const tera = (flops) => (flops < 1e12 ? `${(flops / 1e9).toPrecision(3)} GFLOP/s` : `${(flops / 1e12).toPrecision(3)} TFLOP/s`), errors = replay.steps.filter((s) => s.scored).map((s) => Math.abs(s.error));
  const worst = (key) => percent(Math.max(...replay.steps.map((s) => s[key])), { decimals: 1 });
  node.append(tiles([
    ["step", duration(doc.step_time_ns), `${doc.basis}: ${BASIS[doc.basis]}${counted.length > 1 ? `; mean of ${counted.length} steps${Math.abs(doc.median_ns / doc.step_time_ns - 1) > 0.05 ? `, their median ${duration(doc.median_ns)}` : ""}` : ""}`],
    doc.basis === "period" ? ["latency", duration(doc.latency_ns), `of the same steps: ${BASIS.latency}`] : null,
    first ? ["the first fix saves", seconds(first.worth_s), `${percent(first.worth_s / diagnosis.step_time_s, { decimals: 1 })} of the step`] : null,
    counted.length ? ["busy", percent(1 - part("other"), { decimals: 1 }), "of the step on the ranks, the mean"] : null,
    counted.length && replay.ranks > 1 ? ["exposed communication", percent(part("exposed_communication"), { decimals: 1 }), "of the step, nothing else beside it"] : null,
    use.flops_per_s === null ? null : use.peak_flops_per_s === null ? ["products", tera(use.flops_per_s), "and attention, a device"] : ["MFU", percent(use.flops_per_s / use.peak_flops_per_s, { decimals: 1 }), `${tera(use.flops_per_s)} of a device's ${tera(use.peak_flops_per_s)} in 16 bits`],
    use.matrix_units === null ? null : ["on matrix units", percent(use.matrix_units, { decimals: 1 }), "of the time on devices, by the names of kernels"],
    use.occupancy === null ? null : ["occupancy", percent(use.occupancy, { decimals: 0 }), "of the devices' warps, the profiler's estimate"],
    peak ? ["peak memory", bytes(peak), "of tensors on one device"] : null,
    ["ranks", replay.ranks.toLocaleString("en"), count(replay.tasks, "task")],
  ]), trustLine(doc.trust, `Replayed, the step is ${percent(replay.replayed_step_time_ns / doc.step_time_ns - 1, { signed: true })} off${errors.length ? ` (one step ${percent(Math.max(...errors))} at most)` : ""}; no rule explains ${worst("kept_wait")} of the worst step as waiting and ${worst("unexplained_idle")} as idle.`));
}

// The bars of every step as the mean of its ranks, or those of every rank in one step. Each bar is as long as the step of the job.
export function breakdown(doc, node) {
  const drawing = el("div"), note = el("p", { class: "hint" }), named = el("div"), most = 32, several = doc.replay.ranks > 1;
  const first = several && (doc.steps.length === 1 || doc.steps.length > 12) ? doc.step : "";
  // The parts that a bar has: the four, or by name, of which those are shown that some step has. [key in a document, its group, name, colour]
  const four = PARTS.map(([key, name, colour]) => [`${key}_ns`, "four", name, colour]);
  const byName = Object.keys(NAMED).map((key) => [`${key}_ns`, "named", NAMED[key][0], NAMED_COLOUR[key]]).filter(([key]) => doc.steps.some((s) => s.measured.named[key] || s.replayed.named[key]));
  let kinds = four, at = first;
  const draw = (by = at) => {
    at = by;
    const step = doc.steps.find((s) => s.name === by);
    const whole = (s, name) => ({ name, measured: s.measured, replayed: s.replayed });
    const bars = step
      ? [...(several ? [whole(step, "mean")] : []), ...step.ranks.map((r) => whole(r, `rank ${r.rank}`))]
      : doc.steps.map((s) => whole(s, `${cut(s.name.replace("ProfilerStep#", "#"), 16)}${uncounted(doc, s) ? ` (${uncounted(doc, s)})` : ""}`));
    const seen = (b) => kinds.some(([key, group]) => differ(b.measured[group][key], b.replayed[group][key], Object.values(b.measured.four).reduce((x, y) => x + y)));
    const rows = bars.slice(0, most).reverse().flatMap((b) => (seen(b) ? ["replayed", "measured"] : ["measured"]).map((run) => [run === "measured" ? plain(b.name) : `${plain(b.name)} · ${called(run)}`, b[run]]));
    const traces = kinds.map(([key, group, name, colour]) => ({
      type: "bar", orientation: "h", name, marker: { color: colour, line: { width: 0 } }, y: rows.map(([label]) => label),
      x: rows.map(([, parts]) => ms(parts[group][key])), hovertemplate: "%{y}<br>%{x:.3f} ms<extra>" + name + "</extra>",
    }));
    named.replaceChildren(namedTable(doc, step ?? doc.steps.find((s) => s.name === doc.middle)));
    note.textContent = `${bars.length > most ? `The first ${most} of ${bars.length}. ` : ""}${bars.some(seen) ? "" : UNSEEN}`;
    return chart(drawing, traces, { barmode: "stack", height: 70 + rows.length * 17, yaxis: { dtick: 1 }, xaxis: { title: { text: several && !step ? "ms, mean over the ranks" : "ms" } }, bargap: 0.25, margin: { l: 150, r: 16, t: 28, b: 40 } });
  };
  node.append(el("div", { class: "bar" }, selector("step", [["", "all"], ...stepOptions(doc)], first, draw),
    choice("parts", [["four", "four parts"], ["named", "bubble, imbalance, host, …"]], "four", (chosen) => { kinds = chosen === "four" ? four : byName; return draw(); })), drawing, note, named, stepTable(doc), rankTable(doc));
  return draw(first);
}

// What the time of a step went to, by name, the mean over the ranks.
function namedTable(doc, s) {
  const found = Object.entries(s.measured.named).map(([key, time]) => [NAMED[key.replace(/_ns$/, "")] ?? [key, ""], time, s.replayed.named[key]]).filter(([, time, other]) => time || other).sort((a, b) => b[1] - a[1]);
  const both = found.some(([, time, other]) => differ(time, other, s.time_ns));
  return table(`Where the time of ${s.name} goes${doc.replay.ranks > 1 ? ", mean over the ranks" : ""}`, [
    { title: "part", text: true }, { title: "time" }, { title: "of the step" }, ...(both ? [{ title: "replayed" }] : []), { title: "what it is", text: true },
  ], found.map(([[name, what], time, other]) => [name, duration(time), percent(s.time_ns ? time / s.time_ns : null, { decimals: 1 }), ...(both ? [duration(other)] : []), what]));
}

// Every step of the job with its time.
function stepTable(doc) {
  const remark = (s) => (s.name === doc.middle ? "nearest to the mean" : s.counts ? "" : s.once ? `${s.once}, which happens once: counts in no figure` : s.basis === doc.basis ? "outside the longest run of steps: counts in no figure" : "no step before it, so no period: counts in no figure");
  const both = doc.steps.some((s) => differ(s.time_ns, s.replayed_ns, s.time_ns));
  const rows = table("Steps of the job", [
    { title: "step", text: true }, { title: "time" }, { title: "basis", text: true }, { title: "latency" }, ...(both ? [{ title: "replayed" }, { title: "error" }] : []), { title: "remark", text: true },
  ], doc.steps.map((s) => [
    el("a", { href: viewLink({ step: s.name }) }, s.name), duration(s.time_ns), s.basis, duration(s.latency_ns), ...(both ? [duration(s.replayed_ns), offBy(s.time_ns ? s.replayed_ns / s.time_ns - 1 : null)] : []), remark(s),
  ]));
  return doc.steps.length > 24 ? folded("Every step", rows) : rows;
}

// How well every step of every rank is replayed.
function rankTable(doc) {
  const rows = doc.replay.steps.map((s) => [
    atRank(s.name, s.rank), s.name, offBy(s.error), percent(s.kernel_start_error.p95), percent(s.utilization_error), percent(s.kept_wait), percent(s.unexplained_idle), s.scored ? "yes" : s.unscored_reason,
  ]);
  return folded("The replay of every rank", table("Replay of every rank, by its own completions, in shares of its step", [
    { title: "rank" }, { title: "step", text: true }, { title: "error" }, { title: "start p95" }, { title: "busy" }, { title: "kept waiting" }, { title: "unexplained" }, { title: "scored", text: true },
  ], rows));
}

const offBy = (error) => ({ value: percent(error, { signed: true }), class: Math.abs(error ?? 0) > 0.02 ? "bad" : "" });

export async function busy(doc, node) {
  const drawing = el("div");
  const draw = async (step) => {
    const { curves, bin_ms } = doc.busy.find((b) => b.step === step);
    const traces = [];
    for (const [i, c] of curves.entries()) {
      const both = await Promise.all([decode(c.measured), decode(c.replayed)]), off = both[0].reduce((sum, v, bin) => sum + Math.abs(v - (both[1][bin] ?? 0)), 0);
      for (const [at, run] of (differ(off, 0, 255 * both[0].length) ? ["measured", "replayed"] : ["measured"]).entries()) {
        const values = both[at];
        traces.push({
          type: "scatter", mode: "lines", name: called(run), legendgroup: run, showlegend: !traces.some((t) => t.legendgroup === run), x0: bin_ms / 2, dx: bin_ms, y: Array.from(values, (v) => v / 255),
          xaxis: "x", yaxis: i ? `y${i + 1}` : "y", line: { color: RUN[run], width: run === "measured" ? 2.4 : 1.2, dash: run === "measured" ? "solid" : "dot" },
          hovertemplate: `${plain(c.name)}<br>%{x:.1f} ms: %{y:.0%}<extra>${called(run)}</extra>`,
        });
      }
    }
    const layout = { height: 90 + 110 * curves.length, xaxis: { title: { text: "ms from the begin of the step" }, anchor: curves.length > 1 ? `y${curves.length}` : "y" } };
    curves.forEach((c, i) => {
      const high = 1 - i / curves.length;
      layout[i ? `yaxis${i + 1}` : "yaxis"] = { domain: [high - 0.86 / curves.length, high], range: [0, 1.05], tickformat: ".0%", nticks: 3, title: { text: plain(c.name), font: { size: 11 } } };
    });
    return chart(drawing, traces, layout);
  };
  node.append(el("div", { class: "bar" }, selector("step", stepOptions(doc), doc.step, draw)), drawing);
  await draw(doc.step);
}

export function classes(doc, node) {
  const { measured, replayed } = doc.classes;
  const total = (run, i) => run.time_ns.reduce((sum, row) => sum + row[i], 0) / run.time_ns.length;
  const of = (run, label) => { const i = run.labels.indexOf(label); return i < 0 ? 0 : total(run, i); };
  const labels = [...measured.labels], colour = palette(labels);
  const waits = [mean(measured.waiting_ns), mean(replayed.waiting_ns)];
  const bars = labels.map((l) => [l, of(measured, l), of(replayed, l), colour(l)]);
  if (waits.some(Boolean)) bars.push(["waiting", ...waits, colour("waiting")]);
  bars.sort((a, b) => b[1] - a[1]);
  const shown = bars.slice(0, 18).reverse(), drawing = el("div"), both = bars.some(([, m, r]) => differ(m, r, doc.step_time_ns));
  node.append(drawing, folded("As a table", table("Time by class, mean over ranks and steps", [
    { title: "class", text: true }, { title: both ? called("measured") : "time" }, ...(both ? [{ title: "replayed" }, { title: "difference" }] : []),
  ], bars.map(([l, m, r]) => [l, duration(m), ...(both ? [duration(r), duration(r - m, true)] : [])]))));
  const y = shown.map(([l]) => plain(l));
  return chart(drawing, [
    !both ? null : { type: "bar", orientation: "h", name: "replayed", y, x: shown.map((b) => ms(b[2])), marker: { color: shown.map((b) => b[3]), opacity: 0.45 }, hovertemplate: "%{y}<br>%{x:.3f} ms<extra>replayed</extra>" },
    { type: "bar", orientation: "h", name: called("measured"), y, x: shown.map((b) => ms(b[1])), marker: { color: shown.map((b) => b[3]) }, hovertemplate: `%{y}<br>%{x:.3f} ms<extra>${called("measured")}</extra>` },
  ].filter(Boolean), { height: 70 + (both ? 30 : 20) * shown.length, barmode: "group", bargap: 0.25, showlegend: false, xaxis: { title: { text: `ms a step, mean over the ranks${both ? ` (solid: ${called("measured")}, pale: replayed)` : ""}` } } });
}

export function collectives(doc, node) {
  const { rows, model, known } = doc.collectives;
  const label = (r) => `${r.kind} ${r.size_bytes === null ? "" : bytes(r.size_bytes)}${r.group ? ` · ${r.group}` : ""}`;
  const shown = rows.slice(0, 16).reverse(), colour = palette([]), drawing = el("div"), at = shown.map((_, i) => i);
  const bars = (name, of, fill) => ({
    type: "bar", orientation: "h", name, y: at, x: shown.map((r) => ms(of(r) ?? 0)), marker: { color: fill }, text: shown.map((r) => short(label(r))), textposition: "none",
    hovertemplate: "%{text}<br>%{x:.3f} ms<extra>" + name + "</extra>",
  });
  const whole = (r) => (r.transfer_ns === null ? r.time_ns : null);
  const traces = [bars("waiting", (r) => r.waiting_ns, colour("waiting")), bars("transfer", (r) => r.transfer_ns, colour("transfer"))];
  if (rows.some((r) => r.transfer_ns === null)) traces.push(bars("both (peers not recorded)", whole, colour("communication, waiting unknown")));
  if (known) traces.push({
    type: "scatter", mode: "markers", name: `the model's transfer (${model})`, y: at, text: shown.map((r) => short(label(r))), x: shown.map((r) => (r.modelled ? ms(r.modelled.transfer_ns) : null)),
    marker: { symbol: "line-ns-open", size: 14, color: style("--ink"), line: { width: 2 } }, hovertemplate: "%{text}<br>%{x:.3f} ms<extra>model</extra>",
  });
  node.append(drawing, el("p", { class: "hint" }, known ? "" : `No model to compare with: ${model}`), table("Collectives, mean of one call on one rank", [
    { title: "kind", text: true }, { title: "group", text: true }, { title: "ranks" }, { title: "size" }, { title: "calls" }, { title: "time" }, { title: "waiting" },
    { title: "transfer" }, { title: "bus bandwidth" }, ...(known ? [{ title: "model" }, { title: `${called("measured")} / model` }] : []),
  ], rows.map((r) => [
    r.kind, r.group, r.ranks ?? "–", bytes(r.size_bytes), r.calls.toLocaleString("en"), duration(r.time_ns), duration(r.waiting_ns), duration(r.transfer_ns), rate(r.bus_bytes_per_s),
    ...(known ? [r.modelled ? duration(r.modelled.transfer_ns) : "–", r.modelled && r.transfer_ns ? (r.transfer_ns / r.modelled.transfer_ns).toFixed(2) : "–"] : []),
  ])));
  return chart(drawing, traces, { height: 80 + 26 * shown.length, barmode: "stack", xaxis: { title: { text: "ms, mean of one call on one rank" } }, yaxis: { tickvals: at, ticktext: shown.map((r) => short(label(r), 48)) } });
}

export function path(doc, node) {
  const drawing = el("div"), below = el("div");
  const draw = (step) => {
    const found = doc.path.find((p) => p.step === step);
    const labels = [...new Set([...Object.keys(found.by_class), ...Object.keys(found.replayed.by_class)])];
    const both = labels.some((label) => differ(found.by_class[label] ?? 0, found.replayed.by_class[label] ?? 0, found.duration_ns));
    const rows = both ? [["replayed", found.replayed], [called("measured"), found]] : [[called("measured"), found]];
    const traces = byColour(labels).map(([colour, all]) => ({
      type: "bar", orientation: "h", name: plain(all.join(", ")), y: rows.map(([run]) => run), x: rows.map(([, p]) => ms(all.reduce((sum, label) => sum + (p.by_class[label] ?? 0), 0))), marker: { color: colour, line: { width: 1, color: style("--paper") } },
      hovertemplate: "%{y}<br>%{x:.3f} ms<extra>" + plain(all.join(", ")) + "</extra>",
    }));
    below.replaceChildren(
      folded(`The longest of ${count(found.count, "link")}`, table("Longest stretches of work on the critical path, in order", [
        { title: "from" }, { title: "time" }, { title: "class", text: true }, { title: "rank" }, { title: "on", text: true }, { title: "task", text: true },
      ], found.links.map((l) => [el("a", { href: viewLink({ step, run: "measured", rank: l.rank, task: l.task }) }, duration(l.start_ns)), duration(l.time_ns), l.class, `${l.rank}`, l.processor, l.name]))),
      ...(found.by_rank.length > 1 ? [folded("By rank", table("Ranks on the critical path", [
        { title: "rank" }, { title: "of the path" }, { title: "waited for others" }, { title: "others waited for it" },
      ], found.by_rank.map((r) => [atRank(step, r.rank), duration(r.path_ns), duration(r.waited_ns), duration(r.waited_for_ns)])))] : []),
    );
    return chart(drawing, traces, { barmode: "stack", height: both ? 210 : 160, xaxis: { title: { text: "ms of the critical path" } }, yaxis: { visible: both }, margin: { l: 80, r: 16, t: 60, b: 40 } });
  };
  node.append(el("div", { class: "bar" }, selector("step", stepOptions(doc), doc.step, draw)), drawing, below);
  return draw(doc.step);
}

const atRank = (step, rank) => el("a", { href: viewLink({ step, run: "measured", rank }) }, `${rank}`);

// Two worths that differ by less than this share of the step are one.
const SAME = 0.005;

// What to fix first: one block a finding, and what the recording does not show.
export function findings(doc, node) {
  const { findings: found, lacks, step_time_s: step } = doc.diagnosis;
  const ranks = (of) => (of.length === 1 ? `rank ${of[0]}` : of.length > 8 ? `${of.length} ranks` : `ranks ${of.join(", ")}`);
  const one = (f, i) => el("div", { class: "finding" },
    el("h3", {}, `${i + 1}. ${f.title}`),
    el("div", { class: "worth" }, el("strong", {}, `worth ${seconds(f.worth_s)} a step`), ` (${percent(f.worth_s / step)}; 80 % interval ${seconds(f.worth_low_s)} to ${seconds(f.worth_high_s)}${f.grade === "sound" ? "" : `; ${f.grade}`})${i && Math.abs(f.worth_after_s - f.worth_s) > SAME * step ? `, ${seconds(f.worth_after_s)} once those above are fixed` : ""}`),
    el("div", {}, f.evidence),
    el("div", {}, el("strong", {}, "Fix: "), f.fix),
    el("div", { class: "hint" }, atTask(doc, f.where, f.where.ranks[0], `${f.where.step} at ${duration(f.where.start_ns)}`), `, ${ranks(f.where.ranks)}: ${cut(f.where.task)}`),
    el("div", { class: "hint" }, el("code", {}, f.command)));
  node.append(
    ...(found.length ? found.slice(0, 6).map(one) : [el("p", { class: "good" }, "Nothing was found that is worth 2 % of the step.")]),
    ...(found.length > 6 ? [el("p", { class: "hint" }, `and ${found.length - 6} more: lumos diagnose --json lists all`)] : []),
    ...(lacks.length ? [folded("What the recording does not show", diagnosticList(lacks))] : []));
}

// Of more ranks than a drawing has rows for, those that are furthest off; a row of less than a few pixels shows no rank.
const MOST_ROWS = 128, FURTHEST = 64;

function rowsShown(number, off) {
  const all = Array.from({ length: number }, (_, r) => r);
  if (number <= MOST_ROWS) return all;
  const away = all.map((r) => Math.max(...off.map((values) => Math.abs(values[r]))));
  return all.sort((a, b) => away[b] - away[a]).slice(0, FURTHEST).sort((a, b) => a - b);
}

export function stragglers(doc, node) {
  const found = doc.stragglers;
  const { measured: run, ranks } = doc.classes;
  const median = (values) => { const s = [...values].sort((a, b) => a - b); return (s[(s.length - 1) >> 1] + s[s.length >> 1]) / 2; };
  const columns = run.labels.map((label, i) => ({ label, times: run.time_ns.map((row) => row[i]) })).filter(({ times }) => median(times) > 0).slice(0, 16);
  if (run.waiting_ns.some(Boolean)) columns.push({ label: "waiting", times: run.waiting_ns });
  const off = columns.map(({ times }) => { const m = median(times); return times.map((t) => ms(t - m)); });
  const most = Math.max(...off.flat().map(Math.abs), 1e-9);
  const drawing = el("div"), shown = rowsShown(ranks.length, off), z = shown.map((r) => columns.map((_, c) => off[c][r]));
  node.append(tiles([
    [found.steps > 1 ? "mean step" : "step", duration(found.measured_step_ns), found.steps > 1 ? `${called("measured")}, over ${count(found.steps, "step")}` : called("measured")], ["ideal step", duration(found.ideal_step_ns), "if equal work took equal time"], ["slowdown", found.slowdown.toFixed(3)],
    ["worst rank", `${[...found.by_rank].sort((a, b) => b.worth_ns - a.worth_ns)[0].rank}`, `fixing it is worth ${duration(Math.max(...found.by_rank.map((r) => r.worth_ns)))} a step`],
  ]), ...(shown.length < ranks.length ? [el("p", { class: "hint" }, `The ${shown.length} of ${ranks.length} ranks that are furthest off the median in a class of work or in waiting; "By rank" has all.`)] : []), drawing,
  ...(found.findings.length ? [table("Causes", [{ title: "cause", text: true }, { title: "rank" }, { title: "what", text: true }, { title: "worst at", text: true }, { title: "longer than ideal" }, { title: "slowdown" }, { title: "worth a step" }],
    found.findings.map((f) => [f.cause.replace("-", " "), `${f.where.rank}`, cut(f.name), atTask(doc, f.where, f.where.rank, `${duration(f.where.start_ns)} of ${f.where.step}`), duration(f.excess_ns), f.slowdown.toFixed(3), duration(f.worth_ns, true)]))] : []),
  folded("By rank", table("Ranks", [{ title: "rank" }, { title: "work" }, { title: "ideal" }, { title: "slowdown" }, { title: "worth a step" }],
    found.by_rank.map((r) => [atRank(doc.step, r.rank), duration(r.work_ns), duration(r.ideal_work_ns), r.slowdown.toFixed(3), duration(r.worth_ns, true)]))),
  folded("By class", table("Classes of work over all ranks", [{ title: "class", text: true }, { title: "work" }, { title: "ideal" }, { title: "slowdown" }, { title: "worth a step" }],
    found.by_class.map((c) => [c.name, duration(c.work_ns), duration(c.ideal_work_ns), c.slowdown.toFixed(3), duration(c.worth_ns, true)]))),
  ...(found.diagnostics.length ? [diagnosticList(found.diagnostics)] : []));
  return chart(drawing, [{
    type: "heatmap", z, x: columns.map((c) => plain(c.label)), y: shown.map((r) => `rank ${ranks[r]}`), zmin: -most, zmax: most, zmid: 0, xgap: 1, ygap: shown.length > 64 ? 0 : 1,
    colorscale: [[0, "#0072b2"], [0.5, "rgba(140, 150, 160, 0.15)"], [1, "#d55e00"]], colorbar: { title: { text: "ms off" }, thickness: 12, len: 1, nticks: 5 },
    hovertemplate: "%{y}, %{x}<br>%{z:+.3f} ms off the median rank<extra></extra>",
  }], { height: Math.max(250, Math.min(120 + 22 * shown.length, 760)), yaxis: { autorange: "reversed", type: "category", showgrid: false }, xaxis: { side: "top", type: "category", tickangle: -35, showgrid: false }, margin: { l: 70, r: 16, t: 120, b: 16 } });
}

// Why an interval is as wide as it is, as words to append; none where that is not known.
function intervalCauses(causes) {
  if (!causes) return "";
  const differ = percent(causes.step_spread, { decimals: 1 });
  const words = [
    `the simulated base is ${percent(causes.base_error)} off`,
    causes.few_steps ? `${differ} for steps that differ, as there are too few to see by how much` : `the recorded steps differ by ${differ}`,
    causes.unknown_s ? `${seconds(causes.unknown_s)} at each end for what the recording does not show` : null,
    causes.prices_s ? `${seconds(causes.prices_s)} for what work costs that was scaled or modelled` : null,
    causes.gaps_s ? `${seconds(causes.gaps_s)} for pauses of the device that were not measured` : null,
  ];
  return ` (${words.filter(Boolean).join("; ")})`;
}

// The effect of a what-if on a step: figures and the four parts. Returns the elements and the promise of the chart.
export function outcome(found) {
  const faster = found.difference_s < 0, drawing = el("div"), runs = [["changed", found.breakdown], ["base", found.base.breakdown]];
  const elements = [
    el("div", { class: "big", "aria-live": "polite" }, seconds(found.step_time_s)),
    el("div", { class: found.difference_s === 0 ? "" : faster ? "good" : "bad" }, `${seconds(found.difference_s, true)} (${percent(found.change, { signed: true })}) against ${seconds(found.base.step_time_s)} replayed`),
    el("div", { class: "hint" }, `80 % interval ${seconds(found.step_time_low_s)} to ${seconds(found.step_time_high_s)}${intervalCauses(found.interval)}; ${seconds(found.measured_step_s)} ${called("measured")}${found.seconds_s === undefined ? "" : `; answered in ${seconds(found.seconds_s)}`}`),
    ...(found.trust && found.trust.grade !== "sound" ? [trustLine(found.trust)] : []),
    drawing,
  ];
  const done = chart(drawing, PARTS.map(([key, name, colour]) => ({
    type: "bar", orientation: "h", name, y: runs.map(([run]) => run), x: runs.map(([, b]) => 1e3 * b[`${key}_s`]), marker: { color: colour },
    hovertemplate: "%{y}<br>%{x:.3f} ms<extra>" + name + "</extra>",
  })), { barmode: "stack", height: 190, xaxis: { title: { text: "ms" } }, margin: { l: 70, r: 16, t: 50, b: 40 } });
  return { elements, done };
}

export function moved(found) {
  if (!found.moved.length) return el("p", { class: "hint" }, "Nothing moved on the critical path.");
  const columns = [{ title: "class", text: true }, { title: "base" }, { title: "changed" }, { title: "difference" }];
  return table("What moved on the critical path", columns, found.moved.map((m) => [m.what, seconds(m.base_s), seconds(m.changed_s), { value: seconds(m.delta_s, true), class: m.delta_s < 0 ? "good" : "bad" }]));
}

export function whatif(doc, node) {
  const { elements, done } = outcome(doc.whatif);
  node.append(el("ul", {}, ...doc.whatif.changes.map((c) => el("li", {}, c))), ...elements, moved(doc.whatif));
  return done;
}

const PHASE = { forward: "#56b4e9", recompute: "#f0d97a", backward: "#0072b2", optimizer: "#e69f00", other: "#b9c0c8" };

export function outline(doc, node) {
  const { outline: o } = doc;
  if (!o.rows.length) return node.append(el("p", {}, "No block found."));
  const total = (r) => ms((r.device_ns || 0) * r.repeats), cpu = (r) => ms(r.cpu_ns * r.repeats), device = o.rows.some((r) => r.device_ns);
  const drawing = el("div"), name = (r) => `${r.repeats > 1 ? `${r.repeats} × ` : ""}${r.block}`;
  const phases = [...new Set(o.rows.map((r) => r.phase))], several = new Set(o.rows.map((r) => r.microbatch)).size > 1;
  let at = 0;
  const begins = o.rows.map((r) => { const begin = at; at += device ? total(r) : cpu(r); return begin; });
  const traces = phases.map((phase) => {
    const rows = o.rows.map((r, i) => [r, i]).filter(([r]) => r.phase === phase);
    return {
      type: "bar", orientation: "h", name: phase, marker: { color: PHASE[phase] ?? "#999999", line: { width: 1, color: style("--paper") } }, y: rows.map(() => "step"), base: rows.map(([, i]) => begins[i]),
      x: rows.map(([r]) => (device ? total(r) : cpu(r))), text: rows.map(([r]) => short(name(r), 24)), textposition: "inside", insidetextanchor: "middle",
      customdata: rows.map(([r]) => [plain(name(r)), r.tasks, r.microbatch]), hovertemplate: "%{customdata[0]}<br>%{x:.3f} ms<br>%{customdata[1]} tasks each, microbatch %{customdata[2]}<extra>" + phase + "</extra>",
    };
  });
  const evidence = Object.entries(o.evidence).filter(([, how]) => how).map(([phase, how]) => `${phase} by ${how}`).join(", ");
  node.append(el("p", {}, o.layers ? `${count(o.layers, "layer")} (confidence ${percent(o.confidence, { decimals: 0 })}): ${evidence}` : "No layers found: nothing repeats, and no operator holds weights."),
    drawing, folded("Every block", table(`Blocks of a step of rank ${o.rank}`, [
      { title: "phase", text: true }, ...(several ? [{ title: "microbatch" }] : []), { title: "block", text: true }, { title: "tasks" }, { title: "CPU each" }, { title: "device each" },
    ], o.rows.map((r) => [r.phase, ...(several ? [`${r.microbatch}`] : []), name(r), r.tasks.toLocaleString("en"), duration(r.cpu_ns), duration(r.device_ns)]))));
  return chart(drawing, traces, { barmode: "overlay", height: 150, xaxis: { title: { text: `ms of ${device ? "device" : "CPU"} work, block after block` } }, yaxis: { showticklabels: false }, margin: { l: 16, r: 16, t: 40, b: 40 } });
}

export function memory(doc, node) {
  const drawing = el("div");
  node.append(drawing);
  return chart(drawing, doc.memory.map((m) => ({
    type: "scatter", mode: "lines", line: { shape: "hv", width: 1.5 }, name: plain(m.name), x: m.time_ns.map(ms), y: m.allocated_bytes.map((b) => b / 1e9), hovertemplate: "%{x:.2f} ms<br>%{y:.3f} GB<extra>" + plain(m.name) + "</extra>",
  })), { height: 300, xaxis: { title: { text: "ms from the first row" } }, yaxis: { title: { text: "GB allocated" }, rangemode: "tozero" } });
}

export function diagnosticList(found) {
  const by = new Map();
  for (const d of found) by.set(d.code, [...(by.get(d.code) ?? []), d.message]);
  return el("ul", { class: "findings" }, ...[...by].map(([code, messages]) =>
    el("li", {}, el("code", {}, code), ` ${messages[0]} `, messages.length > 1 ? folded(`and ${messages.length - 1} more like it`, ...messages.slice(1).map((m) => el("p", {}, m))) : null),
  ));
}

export function diagnostics(doc, node) {
  node.append(doc.diagnostics.length ? diagnosticList(doc.diagnostics) : el("p", {}, "Nothing odd or missing in the input."));
}

export function about(doc, node) {
  const { about: a, replay } = doc;
  const facts = [["command", el("code", {}, a.command.join(" "))], ["lumos", a.lumos], ["Python, NumPy", `${a.python}, ${a.numpy}`], ["devices", a.devices.join(", ") || "none named"]];
  for (const [name, values] of Object.entries(replay.constants)) {
    const [low, high] = [Math.min(...values), Math.max(...values)], show = (v) => (name.endsWith("_ns") ? duration(v) : v.toLocaleString("en"));
    facts.push([name.replace(/_ns$/, "").replaceAll("_", " "), low === high ? show(low) : `${show(low)} … ${show(high)} over the ranks`]);
  }
  if (replay.ignored.length) facts.push(["dependencies ignored", replay.ignored.join(", ")]);
  node.append(el("dl", { class: "facts" }, ...facts.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)])),
    folded(`Files (${a.files.length})`, table("What was read", [{ title: "rank" }, { title: "rank from", text: true }, { title: "events" }, { title: "file", text: true }],
      a.files.map((f) => [`${f.rank}`, f.rank_source, f.events.toLocaleString("en"), f.path]))));
}
