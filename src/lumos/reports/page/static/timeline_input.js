// The mouse and the keyboard on a timeline.


export function listen(timeline) {
  const { canvas } = timeline;
  let drag = null;
  const place = (e) => { const box = canvas.getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (e) => {
    if (e.button) return;
    canvas.setPointerCapture(e.pointerId);
    drag = { x: e.clientX, y: e.clientY, view: timeline.view, top: timeline.lanes.top, moved: false };
    canvas.classList.add("dragging");
  });
  canvas.addEventListener("pointermove", (e) => {
    if (!drag) return timeline.hover(...place(e));
    const dx = e.clientX - drag.x, dy = e.clientY - drag.y;
    drag.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
    if (!drag.moved) return;
    timeline.hideTip();
    timeline.lanes.scroll(drag.top - dy);
    const shift = (-dx / timeline.width) * (drag.view.end - drag.view.begin);
    timeline.show(drag.view.begin + shift, drag.view.end + shift);
  });
  canvas.addEventListener("pointerup", (e) => {
    canvas.classList.remove("dragging");
    if (drag && !drag.moved) {
      const [x, y] = place(e), at = timeline.lanes.at(y);
      if (at && x < timeline.lanes.gutter) timeline.operators.toggle(at.lane);
      else timeline.select(at && timeline.operators.under(at, timeline.timeAt(x)));
    }
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => timeline.hideTip());
  canvas.addEventListener("dblclick", (e) => {
    const s = timeline.selected;
    if (s) timeline.show(s.start - s.duration, s.start + 2 * s.duration);
    else timeline.zoom(0.25, (place(e)[0] - timeline.lanes.gutter) / timeline.width);
  });
  canvas.addEventListener("wheel", (e) => {
    if (e.ctrlKey || e.metaKey) timeline.zoom(Math.exp(e.deltaY / 300), (place(e)[0] - timeline.lanes.gutter) / timeline.width);
    else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) timeline.pan((e.deltaX || e.deltaY) / timeline.width);
    else if (document.activeElement === canvas && timeline.lanes.deepest > 0) timeline.scroll(e.deltaY / 40);
    else return;
    e.preventDefault();
  }, { passive: false });
  const keys = {
    ArrowLeft: () => timeline.pan(-0.2), ArrowRight: () => timeline.pan(0.2), a: () => timeline.pan(-0.2), d: () => timeline.pan(0.2),
    ArrowUp: () => timeline.scroll(-3), ArrowDown: () => timeline.scroll(3), "+": () => timeline.zoom(0.5), "=": () => timeline.zoom(0.5), w: () => timeline.zoom(0.5),
    "-": () => timeline.zoom(2), s: () => timeline.zoom(2), Home: () => timeline.show(0, timeline.length), n: () => timeline.neighbour(1), p: () => timeline.neighbour(-1),
    e: () => timeline.operators.toggle(), Escape: () => timeline.select(null),
  };
  canvas.addEventListener("keydown", (e) => {
    if (!(e.key in keys) || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    keys[e.key]();
  });
}
