// Line charts over steps: measured values thin, smoothed ones bold, intervals as bands.
import { el, number, svg } from "/page/dom.js";

export const COLOURS = ["var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)"];
const [W, H, LEFT, RIGHT, TOP, BOTTOM] = [340, 170, 46, 8, 8, 22];

function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * size).find((each) => each >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(k * step);
  return found;
}

export function smoothed(values, amount) {
  if (!amount) return values;
  let held = 0;
  let weight = 0; // corrects the bias of the first values towards 0
  return values.map((value) => {
    held = amount * held + (1 - amount) * value;
    weight = amount * weight + (1 - amount);
    return held / weight;
  });
}

// series: [{name, x, y, low, high, colour, points}]
export function chart(series, { label, share = false, smooth = 0, xLabel = "step", wide = false }) {
  const width = wide ? 720 : W;
  const shown = series.filter((each) => each.x.length);
  const xs = shown.flatMap((each) => [each.x[0], each.x[each.x.length - 1]]);
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = [Infinity, -Infinity];
  for (const each of shown) {
    for (const list of [each.y, each.low ?? [], each.high ?? []]) {
      for (const y of list) {
        if (y < y0) y0 = y;
        if (y > y1) y1 = y;
      }
    }
  }
  if (share && y0 >= 0 && y1 <= 1) [y0, y1] = [0, 1];
  else if (y0 === y1) [y0, y1] = [y0 - (Math.abs(y0) * 0.1 || 0.5), y1 + (Math.abs(y1) * 0.1 || 0.5)];
  else if (y0 > 0 && y0 < 0.4 * y1) y0 = 0;
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
  const py = (y) => H - BOTTOM - ((y - y0) / (y1 - y0)) * (H - TOP - BOTTOM);
  const form = (y) => (share ? `${Math.round(100 * y)} %` : number(y, 3));
  const last = shown.map((each) => `${each.name}: ${form(each.y[0])} to ${form(each.y[each.y.length - 1])}`);
  const plot = svg("svg", { viewBox: `0 0 ${width} ${H}`, role: "img", "aria-label": `${label}. ${last.join("; ")}` });
  for (const y of ticks(y0, y1, 4)) {
    plot.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: py(y), y2: py(y), class: "grid" }));
    const text = svg("text", { x: LEFT - 5, y: py(y) + 3.5, class: "tick", "text-anchor": "end" });
    text.textContent = form(y);
    plot.append(text);
  }
  for (const x of ticks(x0, x1, wide ? 8 : 5)) {
    if (x !== Math.round(x)) continue;
    const text = svg("text", { x: px(x), y: H - 7, class: "tick", "text-anchor": "middle" });
    text.textContent = x >= 1e6 ? `${x / 1e6}M` : x >= 1e4 ? `${x / 1e3}k` : String(x);
    plot.append(text);
  }
  const path = (x, y) => x.map((each, i) => `${i ? "L" : "M"}${px(each).toFixed(1)} ${py(y[i]).toFixed(1)}`).join("");
  for (const each of shown) {
    const bold = smoothed(each.y, each.points ? 0 : smooth);
    if (each.low?.length && !each.points) {
      const [low, high] = [smoothed(each.low, smooth), smoothed(each.high, smooth)];
      const back = [...each.x.keys()].reverse().map((i) => `L${px(each.x[i]).toFixed(1)} ${py(low[i]).toFixed(1)}`);
      plot.append(svg("path", { d: `${path(each.x, high)}${back.join("")}Z`, class: "band", fill: each.colour }));
    }
    if (smooth && !each.points) plot.append(svg("path", { d: path(each.x, each.y), class: "raw", stroke: each.colour }));
    if (each.x.length > 1) plot.append(svg("path", { d: path(each.x, bold), class: "line", stroke: each.colour }));
    if (each.points || each.x.length === 1) {
      each.x.forEach((x, i) => {
        if (each.low?.length) {
          const ends = { x1: px(x), x2: px(x), y1: py(each.low[i]), y2: py(each.high[i]) };
          plot.append(svg("line", { ...ends, class: "line", stroke: each.colour }));
        }
        plot.append(svg("circle", { cx: px(x), cy: py(each.y[i]), r: 3, fill: each.colour }));
      });
    }
    each.bold = bold;
  }
  const cross = svg("line", { x1: 0, x2: 0, y1: TOP, y2: H - BOTTOM, class: "cross", visibility: "hidden" });
  plot.append(cross);
  const said = el("p", { class: "reading", "aria-hidden": "true" });
  const tell = (at) => {
    const parts = shown.map((each) => {
      let i = each.x.findIndex((x) => x >= at);
      if (i < 0) i = each.x.length - 1;
      if (i > 0 && at - each.x[i - 1] < each.x[i] - at) i -= 1;
      return { each, i };
    });
    if (!parts.length) return;
    const x = parts[0].each.x[parts[0].i];
    cross.setAttribute("visibility", "visible");
    cross.setAttribute("x1", px(x));
    cross.setAttribute("x2", px(x));
    said.replaceChildren(`${xLabel} ${number(x, 6)}`, ...parts.flatMap(({ each, i }) => [
      "  ", el("i", { class: "dot", style: { "--dot": each.colour } }), ` ${form(each.y[i])}`,
      each.low?.length ? ` (${form(each.low[i])} to ${form(each.high[i])})` : ""]));
  };
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    tell(x0 + (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT) * (x1 - x0));
  });
  plot.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    said.replaceChildren();
  });
  return el("div", { class: "chart" }, plot, said);
}
