// What the timeline shows, as the fragment of the page's address: a link to it can be followed, copied and sent.

const PART = "timeline";

// view: {step, run, begin, end, task, rank, at}. begin, end, at: ns from where the step's timeline begins. task: its number. rank, at: the
// task of a rank that runs then, where its number is not known or not drawn.
export function viewLink(view) {
  const known = Object.entries(view).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `#${PART}&${new URLSearchParams(known.map(([key, value]) => [key, typeof value === "number" ? String(Math.round(value)) : value]))}`;
}

// The view that a fragment names; null where it names none.
export function linkedView(fragment) {
  if (!fragment.startsWith(`#${PART}&`)) return null;
  const view = Object.fromEntries(new URLSearchParams(fragment.slice(PART.length + 2)));
  for (const key of ["begin", "end", "task", "rank", "at"]) {
    if (!(key in view)) continue;
    view[key] = Number(view[key]);
    if (!Number.isFinite(view[key])) delete view[key];
  }
  return view;
}
