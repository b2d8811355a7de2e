"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { make, shown, Chart } = charts;
  const LEAST_SIDE = 96; // pixels of a picture in a sheet

  /** Sheets of one kind of one run, with a slider over the steps. */
  const sheets = (pictures, run) => {
    const shown = [...new Set(pictures.map((picture) => picture.kind))];
    const kinds = [...shown.filter((kind) => kind === "samples"), ...shown.filter((kind) => kind !== "samples")];
    const image = make("img", { alt: "samples" });
    const slider = make("input", { type: "range", min: 0, step: 1 });
    slider.setAttribute("aria-label", "step");
    const told = make("output");
    const rows = make("p", { className: "rows" });
    const scroll = make("div", { className: "scroll" }, image);
    /** Where not all columns fit, as many whole ones as do; the others are scrolled to. */
    const fit = () => {
      const { columns } = chosen[Number(slider.value)], room = scroll.clientWidth;
      const fitting = Math.max(1, Math.floor(room / LEAST_SIDE));
      image.style.width = room && columns > fitting ? `${room * columns / fitting}px` : "100%";
      more.textContent = room && columns > fitting ? `${fitting} of ${columns} columns are in view; the others are to the right.` : "";
    };
    const more = make("p", { className: "rows" });
    new ResizeObserver(() => requestAnimationFrame(fit)).observe(scroll);
    const choice = make("select", {}, ...kinds.map((kind) => make("option", { textContent: kind, value: kind })));
    let chosen = [];
    const show = () => {
      const picture = chosen[Number(slider.value)];
      image.src = picture.uri;
      told.textContent = `step ${picture.step.toLocaleString("en")}`;
      const names = (picture.rows || []).join(", ");
      image.alt = names ? `samples, rows from the top: ${names}` : "samples";
      rows.textContent = names ? `Rows from the top: ${names}` : "";
      fit();
    };
    const choose = () => {
      chosen = pictures.filter((picture) => picture.kind === choice.value);
      slider.max = chosen.length - 1;
      slider.value = chosen.length - 1;
      show();
    };
    slider.oninput = show;
    choice.onchange = choose;
    const bar = make("div", { className: "bar" });
    if (data.runs.length > 1) bar.append(make("b", { textContent: data.runs[run] }));
    if (kinds.length > 1) bar.append(choice);
    bar.append(slider, told);
    choose();
    return make("div", { className: "sheet" }, bar, scroll, more, rows);
  };

  const scales = {
    norms: ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"], // viridis: even steps look even, in grey too
    zeros: ["--line", "#f2a65a", "#c1121f"],
  };
  const dead = "#e5383b"; // a layer whose gradients were all exactly zero
  const mix = (stops, share) => {
    const style = getComputedStyle(document.body);
    const place = Math.min(1, Math.max(0, share)) * (stops.length - 1), from = Math.min(stops.length - 2, place | 0);
    const parts = [stops[from], stops[from + 1]].map((stop) => {
      const hex = stop.startsWith("--") ? style.getPropertyValue(stop).trim() : stop;
      return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    });
    return `rgb(${parts[0].map((low, i) => Math.round(low + (parts[1][i] - low) * (place - from))).join(",")})`;
  };
  const power = (logarithm) => shown(Number((10 ** logarithm).toPrecision(2)));

  /** Layers from the top, reports from the left; the networks of a run in one figure each, with a choice of phases. */
  class HeatMap {
    constructor(maps, run) {
      this.maps = maps;
      this.kind = "norms";
      this.choice = make("select", {}, ...maps.map((map, i) => make("option", { textContent: map.phase, value: i })));
      this.choice.setAttribute("aria-label", "phase");
      this.choice.onchange = () => { this.cell = null; this.draw(); };
      this.canvas = make("canvas");
      this.legend = make("div", { className: "legend" });
      const name = (data.runs.length > 1 ? `${data.runs[run]}: ` : "") + maps[0].network;
      const caption = make("figcaption", {}, name);
      if (maps.length > 1) caption.append(make("label", {}, "in phase ", this.choice));
      this.element = make("figure", {}, caption, this.legend, this.canvas);
      this.canvas.onmousemove = (event) => { this.cell = this.cellAt(event.offsetX, event.offsetY); this.draw(); };
      this.canvas.onmouseleave = () => { this.cell = null; this.draw(); };
    }

    cellAt(x, y) {
      const map = this.maps[this.choice.value || 0];
      const column = Math.floor((x - this.left) / this.wide), row = Math.floor(y / this.high);
      return map.layers[row] !== undefined && map.steps[column] !== undefined ? [row, column] : null;
    }

    /** Ends of the scale: of norms those of the map, of shares nothing and all. */
    range(map) {
      if (this.kind === "zeros") return [0, 1];
      const values = map.norms.flat().filter((value) => typeof value === "number");
      return values.length ? [Math.min(...values), Math.max(...values)] : [0, 0];
    }

    draw() {
      const map = this.maps[this.choice.value || 0], rows = map.layers.length, [low, high] = this.range(map);
      this.high = Math.max(3, Math.min(14, Math.floor(560 / rows)));
      this.canvas.style.height = `${rows * this.high + 22}px`;
      const ratio = window.devicePixelRatio || 1, width = this.canvas.clientWidth, height = this.canvas.clientHeight;
      this.canvas.width = width * ratio;
      this.canvas.height = height * ratio;
      const paint = this.canvas.getContext("2d");
      paint.scale(ratio, ratio);
      paint.font = "11px system-ui, sans-serif";
      const widest = Math.max(...map.layers.map((layer) => paint.measureText(layer).width));
      this.left = Math.ceil(Math.min(widest, width * 0.42)) + 8;
      this.wide = (width - this.left - 4) / map.steps.length;
      const style = getComputedStyle(document.body), every = Math.ceil(12 / this.high);
      map.layers.forEach((layer, row) => {
        map[this.kind][row].forEach((value, column) => {
          if (value === null) return;
          paint.fillStyle = value === "zero" ? dead : mix(scales[this.kind], (value - low) / (high - low || 1));
          // a little over its edge: neighbours leave no seam
          paint.fillRect(this.left + column * this.wide, row * this.high, this.wide + 0.5, this.high - (this.high > 6));
        });
        if (row % every) return;
        let text = layer;
        while (paint.measureText(text).width > this.left - 8) text = `…${text.replace("…", "").slice(1)}`;
        paint.fillStyle = style.getPropertyValue("--soft");
        paint.textAlign = "right";
        paint.fillText(text, this.left - 5, row * this.high + Math.max(this.high, 11) - 2);
      });
      paint.fillStyle = style.getPropertyValue("--soft");
      paint.textAlign = "center";
      let free = -Infinity;
      map.steps.forEach((step, column) => {
        const text = step.toLocaleString("en"), half = paint.measureText(text).width / 2;
        const x = Math.min(width - half, this.left + (column + 0.5) * this.wide);
        if (x - half < free) return;
        paint.fillText(text, x, height - 6);
        free = x + half + 24;
      });
      if (this.cell) {
        paint.strokeStyle = style.getPropertyValue("--ink");
        paint.strokeRect(this.left + this.cell[1] * this.wide, this.cell[0] * this.high, this.wide, this.high);
      }
      this.legend.replaceChildren(...(this.cell ? this.told(map) : this.scale(map, low, high)));
    }

    told(map) {
      const [row, column] = this.cell, norm = map.norms[row][column], zeros = map.zeros[row][column];
      const values = norm === null
        ? "no gradient"
        : `norm ${norm === "zero" ? 0 : power(norm)}, exact zeros ${(100 * zeros).toFixed(zeros && zeros < 0.1 ? 1 : 0)} %`;
      return [make("span", {}, `${map.layers[row]}, step ${map.steps[column].toLocaleString("en")}: `,
        make("b", { textContent: values }))];
    }

    scale(map, low, high) {
      const ends = this.kind === "norms" ? [power(low), power(high)] : ["0 %", "100 %"];
      const bar = make("i", { className: "scale-bar" });
      bar.style.background = `linear-gradient(to right, ${scales[this.kind].map((stop) => (
        stop.startsWith("--") ? `var(${stop})` : stop)).join(", ")})`;
      const parts = [make("span", {}, `${ends[0]} `, bar, ends[1])];
      if (this.kind === "norms" && map.norms.flat().includes("zero")) {
        const mark = make("i");
        mark.style.background = dead;
        parts.push(make("span", {}, mark, "exactly zero"));
      }
      if (map[this.kind].flat().includes(null)) parts.push(make("span", {}, "blank: no gradient"));
      return parts;
    }
  }

  const heatMaps = data.gradients.flatMap((maps, run) => (
    [...new Set(maps.map((map) => map.network))].map((network) => (
      new HeatMap(maps.filter((map) => map.network === network), run)))));
  document.getElementById("gradient-maps").append(...heatMaps.map((map) => map.element));
  document.getElementById("gradients").hidden = heatMaps.length === 0;
  const kinds = { norms: "norms", zeros: "share of exact zeros" };
  const kind = make("select", {}, ...Object.entries(kinds).map(([value, textContent]) => make("option", { value, textContent })));
  kind.id = "gradient-kind";
  kind.onchange = () => { heatMaps.forEach((map) => { map.kind = kind.value; }); redraw(); };
  const about = "a row is a layer, a column a report; the scale of norms is logarithmic, and each map's own";
  document.getElementById("gradient-bar").append(make("label", {}, "Show ", kind), make("span", { textContent: about }));

  const drawn = data.charts.map((about) => new Chart(about, data.runs));
  document.getElementById("charts").append(...drawn.map((chart) => chart.element));
  const redraw = () => [...drawn, ...heatMaps].forEach((each) => {
    if (each.element.offsetParent) each.draw(); // a canvas that is folded away has no size
  });
  for (const part of document.querySelectorAll("details.drawn")) part.addEventListener("toggle", redraw);
  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const rows = data.pictures.map((pictures, run) => (pictures.length ? sheets(pictures, run) : null)).filter(Boolean);
  document.getElementById("sheet-rows").append(...rows);
  document.getElementById("sheets").hidden = rows.length === 0;

  if (data.live) {
    window.scrollTo(0, Number(sessionStorage.getItem("frugan-y") || 0));
    setInterval(async () => {
      const answer = await fetch("state").catch(() => null);
      if (answer === null || !answer.ok) return;
      const state = await answer.text();
      const before = sessionStorage.getItem("frugan-state");
      sessionStorage.setItem("frugan-state", state);
      if (before !== null && before !== state && !document.querySelector("input:active")) {
        sessionStorage.setItem("frugan-y", window.scrollY);
        location.reload();
      }
    }, data.live * 1000);
  }
})();
