"use strict";
/** Curves on canvases: of the report, and of the page that watches runs. */
const charts = (() => {
  const colours = ["#2f6fed", "#e8590c", "#2b9348", "#9c36b5", "#d6336c", "#0c8599", "#b08900", "#5c677d"];
  const dashes = [[], [6, 4], [2, 3], [8, 3, 2, 3]];
  const ABOVE = 22, BELOW = 36; // pixels for the names of the axes and the numbers of the steps
  const DOT = 4; // pixels of a mark at a value
  const PEAK = 20; // a largest value so many times the middle one would flatten the others
  const make = (name, given = {}, ...inside) => {
    const made = Object.assign(document.createElement(name), given);
    made.append(...inside);
    return made;
  };
  const shown = (value) => {
    if (value === undefined) return "-";
    if (Math.abs(value) < 1e-12) return "0";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(2);
    return value.toLocaleString("en", { maximumSignificantDigits: 4 });
  };

  /** Where a step would stand among rising steps: the last one not after it. */
  const at = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle - 1;
    }
    return low;
  };

  const ticks = (low, high, count) => {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const values = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) values.push(value);
    return values;
  };

  /** Values to name on a logarithmic axis between two powers of ten. */
  const powers = (low, high) => {
    const values = [];
    for (let power = Math.floor(low); power <= high; power += Math.max(1, Math.ceil((high - low) / 5))) {
      for (const factor of high - low < 2 ? [1, 2, 5] : [1]) values.push(Math.log10(factor) + power);
    }
    return values.filter((value) => value >= low && value <= high);
  };

  class Chart {
    /** runs: names of those that are compared, one or more. */
    constructor(about, runs) {
      this.runs = runs;
      this.take(about.curves);
      this.log = null; // not chosen by hand: as the values need it
      this.axis = about.axis || "";
      this.fromZero = about.title.startsWith("Memory");
      this.step = null;
      this.canvas = make("canvas");
      this.legend = make("div", { className: "legend" });
      const scale = make("button", { className: "scale", textContent: "log", type: "button" });
      scale.title = "logarithmic or linear";
      scale.onclick = () => { this.log = !this.logarithmic; this.draw(); };
      this.scale = scale;
      const positive = this.curves.every((curve) => curve.values.every((value) => value > 0));
      const caption = make("figcaption", {}, about.title);
      if (positive) caption.append(scale);
      this.element = make("figure", {}, caption, this.legend, this.canvas);
      this.canvas.onmousemove = (event) => { this.step = this.stepAt(event.offsetX); this.draw(); };
      this.canvas.onmouseleave = () => { this.step = null; this.draw(); };
    }

    /** Show these curves from now on. */
    take(curves) {
      // of several runs each has its colour, and each curve its dash; of one run each curve has its colour
      const names = [...new Set(curves.map((curve) => curve.name))];
      const several = this.runs.length > 1;
      this.curves = curves.map((curve, number) => ({
        ...curve,
        colour: colours[(several ? curve.run : number) % colours.length],
        dash: dashes[several ? names.indexOf(curve.name) % dashes.length : 0],
      }));
    }

    stepAt(x) {
      const share = (x - 52) / Math.max(1, this.canvas.clientWidth - 60);
      return this.first + Math.min(1, Math.max(0, share)) * (this.last - this.first);
    }

    range() {
      const all = this.curves.flatMap((curve) => curve.values).sort((a, b) => a - b);
      const low = all[0], high = all[all.length - 1];
      // peaks are shown whole; where they would flatten the rest, by a logarithmic axis
      this.logarithmic = low > 0 && (this.log ?? (!this.fromZero && high > PEAK * all[all.length >> 1]));
      this.scale.textContent = this.logarithmic ? "linear" : "log";
      if (this.logarithmic) return [Math.log10(low) - 0.02, Math.log10(high) + 0.02];
      const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      if (this.fromZero) return [0, high * 1.06];
      const floor = low >= 0 ? Math.max(0, low - room) : low - room;
      return [low >= 0 && low < (high - low) * 0.5 ? 0 : floor, high + room];
    }

    draw() {
      const ratio = window.devicePixelRatio || 1, width = this.canvas.clientWidth, height = this.canvas.clientHeight;
      this.canvas.width = width * ratio;
      this.canvas.height = height * ratio;
      const paint = this.canvas.getContext("2d");
      paint.scale(ratio, ratio);
      const style = getComputedStyle(document.body);
      this.first = Math.min(...this.curves.map((curve) => curve.steps[0]));
      this.last = Math.max(...this.curves.map((curve) => curve.steps[curve.steps.length - 1]));
      let [low, high] = this.range();
      if (high <= low) high = low + 1;
      const x = (step) => ( // a single step stands in the middle
        this.last > this.first ? 52 + (step - this.first) / (this.last - this.first) * (width - 60) : 52 + (width - 60) / 2);
      const y = (value) => (
        height - BELOW - ((this.logarithmic ? Math.log10(value) : value) - low) / (high - low) * (height - BELOW - ABOVE));
      paint.font = "11px system-ui, sans-serif";
      paint.fillStyle = style.getPropertyValue("--soft");
      paint.strokeStyle = style.getPropertyValue("--line");
      paint.textAlign = "right";
      for (const tick of this.logarithmic ? powers(low, high) : ticks(low, high, 4)) {
        const value = this.logarithmic ? 10 ** tick : tick;
        paint.beginPath();
        paint.moveTo(52, y(value));
        paint.lineTo(width - 8, y(value));
        paint.stroke();
        paint.fillText(shown(value), 46, y(value) + 4);
      }
      paint.textAlign = "center";
      for (const tick of ticks(this.first, this.last, Math.max(3, Math.floor(width / 90)))) {
        paint.fillText(tick.toLocaleString("en"), Math.min(width - 24, x(tick)), height - BELOW + 15);
      }
      paint.fillText("step", 52 + (width - 60) / 2, height - 4);
      paint.textAlign = "left";
      paint.fillText(this.axis, 4, 11);
      paint.save();
      paint.beginPath();
      paint.rect(52 - DOT, ABOVE - 4, width - 60 + 2 * DOT, height - BELOW - ABOVE + 6); // marks at the ends are whole
      paint.clip();
      paint.lineWidth = 1.5;
      for (const curve of this.curves) {
        paint.strokeStyle = curve.colour;
        paint.setLineDash(curve.dash);
        paint.beginPath();
        curve.values.forEach((value, i) => {
          if (i) paint.lineTo(x(curve.steps[i]), y(value)); else paint.moveTo(x(curve.steps[i]), y(value));
        });
        paint.stroke();
        if (curve.values.length < 30) {
          paint.fillStyle = curve.colour;
          const size = curve.values.length === 1 ? 2 * DOT : DOT;
          curve.values.forEach((value, i) => paint.fillRect(x(curve.steps[i]) - size / 2, y(value) - size / 2, size, size));
        }
      }
      paint.setLineDash([]);
      if (this.step !== null) {
        paint.strokeStyle = style.getPropertyValue("--soft");
        paint.lineWidth = 1;
        paint.beginPath();
        paint.moveTo(x(this.step), ABOVE);
        paint.lineTo(x(this.step), height - BELOW);
        paint.stroke();
      }
      paint.restore();
      this.legend.replaceChildren(...this.curves.map((curve) => {
        const i = this.step === null ? curve.values.length - 1 : at(curve.steps, this.step);
        const mark = make("i"), [drawn, gap] = curve.dash; // the mark is dashed as the curve is
        mark.style.background = drawn ? `repeating-linear-gradient(to right, ${curve.colour} 0 ${drawn}px, transparent ${drawn}px ${drawn + gap}px)` : curve.colour;
        if (this.runs.length > 1) mark.style.width = "22px";
        const run = this.runs.length > 1 ? `${this.runs[curve.run]} ` : "";
        return make("span", {}, mark, `${run}${curve.name} `, make("b", { textContent: shown(curve.values[i]) }));
      }));
      if (this.step !== null) {
        this.legend.append(make("span", { textContent: `step ${Math.round(this.step).toLocaleString("en")}` }));
      }
    }
  }

  return { make, shown, at, Chart };
})();
