// Zoom and pan of the graph, and fresh content while something runs. Everything can be read without this.
"use strict";

function graph(canvas) {
  const svg = canvas.querySelector("svg.graph"), box = svg.viewBox.baseVal;
  const room = () => canvas.clientWidth - 18;
  let scale = 1;
  function zoom(to, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const before = scale;
    scale = Math.min(3, Math.max(0.15, to));
    const left = (canvas.scrollLeft + x) * scale / before - x, top = (canvas.scrollTop + y) * scale / before - y;
    svg.setAttribute("width", box.width * scale);
    svg.setAttribute("height", box.height * scale);
    canvas.scrollTo(left, top);
  }
  const fit = (high = Infinity) => zoom(Math.min(1.15, room() / box.width, high / box.height));
  document.querySelector(".zoom").hidden = false;
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () =>
    button.dataset.zoom === "fit" ? fit(0.7 * window.innerHeight) : zoom(scale * Number(button.dataset.zoom))));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const at = canvas.getBoundingClientRect();
    zoom(scale * Math.exp(-event.deltaY / 300), event.clientX - at.left, event.clientY - at.top);
  }, { passive: false });
  let from = null, moved = false;
  canvas.classList.add("grab");
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button) return;
    from = [event.clientX + canvas.scrollLeft, event.clientY + canvas.scrollTop];
    moved = false;
  });
  window.addEventListener("pointermove", (event) => {
    if (!from) return;
    const left = from[0] - event.clientX, top = from[1] - event.clientY;
    moved ||= Math.hypot(left - canvas.scrollLeft, top - canvas.scrollTop) > 4;
    if (moved) { canvas.classList.add("grabbed"); canvas.scrollTo(left, top); }
  });
  window.addEventListener("pointerup", () => { from = null; canvas.classList.remove("grabbed"); });
  canvas.addEventListener("click", (event) => { if (moved) event.preventDefault(); }, true);
  canvas.addEventListener("dragstart", (event) => event.preventDefault());
  if (room() / box.width > 0.66) fit();  // else as large as it can be read, to be scrolled
  const first = svg.querySelector(".chosen") || svg.querySelector("a");
  if (first) {
    const at = first.getBoundingClientRect(), here = canvas.getBoundingClientRect();
    canvas.scrollBy(at.left - here.left - (here.width - at.width) / 2, at.top - here.top - (here.height - at.height) / 2);
  }
}

document.querySelectorAll(".canvas").forEach(graph);

async function refresh() {
  const answer = await fetch(location.href).catch(() => null);
  if (!answer || !answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
  const main = document.querySelector("main"), canvas = document.querySelector(".canvas");
  const seen = canvas && [canvas.scrollLeft, canvas.scrollTop];
  const open = [...main.querySelectorAll("details")].map((each) => each.open);
  if (main.contains(document.activeElement) && document.activeElement.matches("input, select")) return;
  main.replaceChildren(...fresh.childNodes);
  main.querySelectorAll("details").forEach((each, number) => { each.open = open[number] ?? each.open; });
  document.querySelectorAll(".canvas").forEach(graph);
  if (seen) document.querySelector(".canvas").scrollTo(...seen);
  if (!fresh.hasAttribute("data-live")) clearInterval(timer);
}
const timer = document.querySelector("main[data-live]") && setInterval(refresh, 3000);
