// Zoom and pan of the graph, values under the pointer, copy buttons, "/" for search, and refresh while something runs.
// Everything can be read without this.
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

// The values of a chart at the pointer's horizontal position.
function reading(svg, clientX) {
  svg.querySelectorAll(".pointer, .reading").forEach((each) => each.remove());
  if (clientX === null) return;
  const at = new DOMPoint(clientX, 0).matrixTransform(svg.getScreenCTM().inverse()).x;
  const axis = [...svg.querySelectorAll("text.tick")].at(-1).textContent.replace(/s$/, "");
  const names = [...svg.querySelectorAll(".word")].map((each) => each.textContent);
  const curves = [...svg.querySelectorAll("[data-values]:not([data-values=''])")].map((path, line) => {
    const stairs = path.classList.contains("reference");
    const values = path.dataset.values.split(";").map((pair) => pair.split(" ").map(Number));
    let places = (path.getAttribute("d") || `M${path.getAttribute("cx")} 0`).slice(1).split("L").map((each) => Number(each.split(" ")[0]));
    if (stairs) places = places.filter((_, corner) => corner % 2 === 0);
    const nearest = places.reduce((best, x, place) => Math.abs(x - at) < Math.abs(places[best] - at) ? place : best, 0);
    return { x: places[nearest], step: values[nearest][0], value: values[nearest][1], name: names[line] };
  });
  if (!curves.length) return;
  const nearest = curves.reduce((best, each) => Math.abs(each.x - at) < Math.abs(best.x - at) ? each : best);
  const draw = (name, attributes) => svg.appendChild(Object.entries(attributes).reduce((element, [key, value]) => {
    element.setAttribute(key, value);
    return element;
  }, document.createElementNS(svg.namespaceURI, name)));
  const right = nearest.x > svg.viewBox.baseVal.width / 2;
  draw("line", { class: "pointer", x1: nearest.x, x2: nearest.x, y1: 46, y2: svg.viewBox.baseVal.height - 40 });
  const lines = [`${axis} ${Number(nearest.step.toPrecision(6)).toLocaleString("en")}`, ...curves.map((each) =>
    `${each.name ? each.name + " " : ""}${Number(each.value.toPrecision(5)).toLocaleString("en", { maximumSignificantDigits: 5 })}`)];
  lines.forEach((text, row) => {
    draw("text", { class: `reading ${right ? "end" : "start"}`, x: nearest.x + (right ? -7 : 7), y: 58 + 15 * row }).textContent = text;
  });
}
let chart = null;
document.addEventListener("pointermove", (event) => {
  const over = event.target.closest?.("svg.chart") ?? null;
  if (chart && chart !== over) reading(chart, null);
  chart = over;
  if (chart && chart.querySelector("[data-values]")) reading(chart, event.clientX);
});

// A copy button for every element with data-copy: its value, or the element's text.
const ICON = '<svg viewBox="0 0 24 24" aria-hidden="true"><rect x="8" y="8" width="12" height="12" rx="2"/><path d="M16 8V4H4v12h4"/></svg>';
function copyButtons() {
  if (!navigator.clipboard) return;  // plain http from another machine
  document.querySelectorAll("[data-copy]").forEach((source) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.innerHTML = ICON;
    button.setAttribute("aria-label", `Copy ${(source.dataset.copy || source.textContent).trim().slice(0, 24)}`);
    button.addEventListener("click", async (event) => {
      event.preventDefault();
      await navigator.clipboard.writeText(source.dataset.copy || source.textContent.trim());
      button.classList.add("done");
      setTimeout(() => button.classList.remove("done"), 1500);
    });
    if (source.matches("pre")) {
      const frame = document.createElement("div");
      frame.className = "copied";
      source.replaceWith(frame);
      frame.append(source, button);
    } else source.after(button);
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  event.preventDefault();
  document.querySelector("#search").focus();
});

document.querySelectorAll(".canvas").forEach(graph);
copyButtons();

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
  copyButtons();
  if (seen) document.querySelector(".canvas").scrollTo(...seen);
  if (!fresh.hasAttribute("data-live")) clearInterval(timer);
}
const timer = document.querySelector("main[data-live]") && setInterval(refresh, 3000);
