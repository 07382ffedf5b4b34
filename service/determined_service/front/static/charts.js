// Charts of curves: <figure class="chart" data-chart="ADDRESS"> is drawn with what the address answers.
"use strict";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const compact = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 5 });
const large = new Intl.NumberFormat(undefined, { notation: "compact", maximumSignificantDigits: 4 });
const atTick = (value) => (value === null ? "" : (Math.abs(value) < 1e5 ? compact : large).format(value));
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

// All curves over one axis, as the library wants them.
function joined(curves) {
  const tables = curves.map((curve) => [curve.x, curve.y]);
  if (tables.length === 0) return [[], []];
  if (tables.length === 1) return tables[0];
  return uPlot.join(tables);
}

function smoothed(values, weight) {
  if (!weight) return values;
  let last = null;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    last = last === null ? value : last * weight + value * (1 - weight);
    return last;
  });
}

function series(curve, home) {
  // The colour belongs to the trial, on every page; eight trials with one colour differ in their dashes.
  const number = curve.color ?? curve.trial;
  const color = style(`--c${number % 8}`);
  return {
    label: curve.label ?? `trial ${curve.trial}`,
    stroke: color,
    width: 1.5,
    dash: DASHES[Math.floor(number / 8) % DASHES.length],
    spanGaps: true,
    points: { show: curve.x.length < 2 },
    value: (_, raw) => (raw === null || raw === undefined ? "" : compact.format(raw)),
    trial: curve.trial,
  };
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.plot = null;
    this.key = "";
    const { low, high } = figure.dataset;
    this.range = low && high ? [Number(low), Number(high)] : null;
    this.rests = 0;
    this.asked = 0;
    // Of a curve of many points some are shown at once, before the rest have been read.
    this.load("long" in figure.dataset).then(() => { if ("long" in figure.dataset) this.load(); });
  }

  address() {
    const controls = this.figure.dataset.controls && document.getElementById(this.figure.dataset.controls);
    const address = new URL(this.figure.dataset.chart, location.href);
    if (controls) {
      for (const [name, value] of new FormData(controls)) if (name === "metric" || name === "x") address.searchParams.set(name, value);
    }
    if (this.range) {
      address.searchParams.set("low", this.range[0]);
      address.searchParams.set("high", this.range[1]);
    }
    return address;
  }

  // A zoomed chart asks for the points of what it shows: their steps are low and high.
  zoom(plot) {
    const { left, width, height } = plot.select;
    if (width < 8 || height < plot.over.clientHeight) return;
    const from = plot.posToVal(left, "x");
    const to = plot.posToVal(left + width, "x");
    const inside = this.found.curves.flatMap((curve) =>
      (curve.steps ?? curve.x).filter((_, at) => curve.x[at] >= from && curve.x[at] <= to));
    const isSteps = this.found.x === "steps";
    const low = isSteps ? Math.ceil(from) : Math.min(...inside);
    const high = isSteps ? Math.floor(to) : Math.max(...inside);
    if (!(high > low)) return;
    this.show([Math.max(low, 0), high]);
  }

  show(range) {
    this.range = range;
    this.load();
    this.figure.dispatchEvent(new CustomEvent("zoomed", { bubbles: true, detail: range }));
  }

  control(name) {
    const controls = this.figure.dataset.controls && document.getElementById(this.figure.dataset.controls);
    return controls ? new FormData(controls).get(name) : null;
  }

  async load(quick = false) {
    // A report has its points with it.
    if (this.figure.dataset.points) {
      this.found = JSON.parse(this.figure.dataset.points);
      this.draw();
      return;
    }
    const address = this.address();
    if (quick) address.searchParams.set("quick", "true");
    const began = performance.now();
    const mine = ++this.asked;
    let found;
    try {
      const answer = await fetch(address);
      if (!answer.ok) return;
      found = await answer.json();
    } catch { return; } // The page says that the service is away.
    if (mine !== this.asked) return;
    this.found = found;
    this.draw();
    // What takes long to read is read again the less often.
    this.rests = performance.now() + 10 * (performance.now() - began);
  }

  renew() { if (performance.now() > this.rests) this.load(); }

  draw() {
    const { curves, x, metric } = this.found;
    const weight = Number(this.control("smooth") || 0);
    const log = this.control("scale") === "log";
    const shown = curves.filter((curve) => curve.x.length);
    const data = joined(shown.map((curve) => ({ ...curve, y: smoothed(curve.y, weight) })));
    const key = JSON.stringify([shown.map((curve) => curve.trial), x, metric, log, weight]);
    if (!shown.length) {
      this.plot?.destroy();
      this.plot = null;
      this.key = "";
      this.figure.querySelector(".drawing").textContent = "No value of this metric has been reported yet.";
      return;
    }
    if (this.plot && key === this.key) { this.plot.setData(data); return; }
    this.plot?.destroy();
    this.key = key;
    const room = this.figure.querySelector(".drawing");
    room.textContent = "";
    const ink = style("--soft");
    const axis = { stroke: ink, grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
    this.plot = new uPlot({
      width: room.clientWidth || 600,
      height: Number(this.figure.dataset.height || 320),
      series: [{ label: x === "time" ? "seconds" : x === "steps" ? "step" : x, value: (_, raw) => (raw === null || raw === undefined ? "" : compact.format(raw)) },
        ...shown.map((curve) => series(curve))],
      scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(atTick), label: x === "time" ? "seconds since the trial began" : x },
        { ...axis, label: metric, size: 70, values: (_, ticks) => ticks.map(atTick) }],
      legend: { show: shown.length <= 12, live: true },
      focus: { alpha: 0.25 },
      cursor: { focus: { prox: 24 }, drag: { x: true, y: true, uni: 20 } },
    }, data, room);
    if (shown.length > 12 || this.figure.dataset.open) {
      this.plot.over.addEventListener("dblclick", () => {}, false);
    }
    this.plot.over.addEventListener("click", (event) => {
      if (!event.shiftKey) return;
      const near = this.plot.series.find((one) => one.trial && one._focus);
      if (near) location.href = `${document.body.dataset.home}/trials/${near.trial}`;
    });
    if ("zoom" in this.figure.dataset) {
      this.plot.hooks.setSelect = [(plot) => this.zoom(plot)];
      this.plot.over.addEventListener("dblclick", () => { if (this.range) this.show(null); });
    }
    if (shown.length > 12) this.tell(room);
  }

  // Where a legend would be too long, the curve under the pointer is named.
  tell(room) {
    const name = document.createElement("p");
    name.className = "legend";
    name.textContent = "Point at a curve to read its trial.";
    room.append(name);
    this.plot.hooks.setSeries = [(plot, index) => {
      const one = plot.series[index];
      if (one?.trial) name.textContent = `trial ${one.trial}`;
    }];
  }
}

const charts = [];
for (const figure of document.querySelectorAll("figure.chart")) charts.push(new Chart(figure));
document.addEventListener("renewed", () => { for (const chart of charts) chart.renew(); });
for (const form of document.querySelectorAll("form[data-chart-controls]")) {
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    for (const chart of charts) if (chart.figure.dataset.controls === form.id) chart.load();
    if ("inAddress" in form.dataset) history.replaceState(null, "", `${location.pathname}?${new URLSearchParams(new FormData(form))}`);
  });
}
new ResizeObserver(() => {
  for (const chart of charts) chart.plot?.setSize({ width: chart.figure.clientWidth, height: chart.plot.height });
}).observe(document.getElementById("main"));
