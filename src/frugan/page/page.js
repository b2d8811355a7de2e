"use strict";
/** The page of runs: asks the server every few seconds what is new, and shows it. */
const page = (() => {
  const { make, Chart } = charts;
  const part = (id) => document.getElementById(id);
  const EVERY = 2000, WHEN_GONE = 5000;
  const ON_CARD = { rows: 4, columns: 4 };
  const LEAST_SIDE = 96, USUAL_SIDE = 128, SHARE_OF_HEIGHT = 0.72; // of the pictures of a grid, and of the window
  const WORDS = { running: "running", starting: "starting", waiting: "waiting", finished: "finished", stopped: "stopped", died: "ended by itself", imported: "imported" };

  const tell = (line = "", wrong = false) => {
    part("told").textContent = line;
    part("told").classList.toggle("wrong", wrong);
    part("told").hidden = line === "";
  };

  /** What the server says; null: nothing new. tags: of what was told last, by address. */
  const tags = new Map();
  const ask = async (address) => {
    const answer = await fetch(address, { headers: tags.has(address) ? { "If-None-Match": tags.get(address) } : {} });
    if (answer.status === 304) return null;
    if (answer.status === 401) throw new Error("This page was started anew: open the address that `frugan page` printed.");
    const values = await answer.json();
    if (!answer.ok) throw new Error(values.error || answer.statusText);
    if (answer.headers.get("ETag")) tags.set(address, answer.headers.get("ETag"));
    return values;
  };
  const post = async (address, values) => {
    const answer = await fetch(address, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(values),
    });
    const told = await answer.json().catch(() => ({ error: answer.statusText }));
    if (!answer.ok) throw Object.assign(new Error(told.error || answer.statusText), { fields: told.fields });
    return told;
  };
  /** Put what is wrong with values beside the inputs of their names. Returns whether all of them have one. */
  const showFaults = (root, faults = {}) => {
    for (const old of root.querySelectorAll(".fault")) old.remove();
    const inputs = [...root.querySelectorAll("[name]")];
    for (const input of inputs) input.removeAttribute("aria-invalid");
    const found = Object.entries(faults).map(([name, reason]) => {
      const input = inputs.find((each) => each.name === name);
      if (!input) return null;
      const sentence = reason.replace(/^[a-z]+ /, (word) => word[0].toUpperCase() + word.slice(1)) + (/[.?!]$/.test(reason) ? "" : ".");
      input.setAttribute("aria-invalid", "true");
      input.after(make("small", { className: "fault", textContent: sentence }));
      for (let fold = input.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
      return input;
    });
    const [first] = found.filter(Boolean);
    if (first) { first.scrollIntoView({ block: "center" }); first.focus(); }
    return found.length > 0 && found.every(Boolean);
  };
  /** Do something on a click, once at a time, tell what the server says of it, and look at once what became of it. */
  const button = (name, doing, kind = "second") => {
    const made = make("button", { type: "button", textContent: name, className: kind });
    made.onclick = async () => {
      made.disabled = true;
      try {
        const answer = await doing();
        tell((answer || {}).told);
        await look();
      } catch (error) {
        tell(error.message, true);
      }
      made.disabled = false;
    };
    return made;
  };
  const path = (...words) => words.map(encodeURIComponent).join("/");
  /** part: rows and columns of a grid's pictures; null: the whole sheet. */
  const sheet = (name, kind, step, part, beginnings = "") => (
    `sheets/${path(name, kind, step)}?${part ? `rows=${part.rows}&columns=${part.columns}&` : ""}of=${beginnings}`);
  const stateOf = (about) => make("span", { className: `state ${about.state}`, textContent: WORDS[about.state] });
  const where = (about) => {
    if (about.step === undefined) return { starting: "reading pictures, choosing a plan …", imported: "not trained here yet" }[about.state] || "";
    const left = about.state === "running" && about.left ? ` · ${about.left} left` : "";
    return `step ${about.step.toLocaleString("en")} · ${about.spent}${left}`;
  };

  // The list.

  const picked = new Set(), cards = new Map();
  const card = (name) => {
    const picture = make("img", { className: "picture", alt: "", loading: "lazy" });
    const state = make("span"), told = make("span", { className: "where" }), score = make("span", { className: "where" }), progress = make("progress", { max: 1 });
    const frame = make("div", { className: "frame" }, picture);
    const link = make("a", { href: `#run/${encodeURIComponent(name)}` }, frame,
      make("div", { className: "about" }, make("b", { textContent: name }), state, told, score, progress));
    const tick = make("input", { type: "checkbox" });
    tick.onchange = () => { picked[tick.checked ? "add" : "delete"](name); showPicked(); };
    const element = make("div", { className: "card" }, link, make("label", {}, tick, make("span", { textContent: "compare" })));
    let src = "";
    return {
      element,
      show: (about) => {
        Object.assign(state, { className: `state ${about.state}`, textContent: WORDS[about.state] });
        told.textContent = where(about);
        score.textContent = about.score || "";
        progress.hidden = about.done === undefined;
        if (about.done !== undefined) progress.value = about.done;
        progress.setAttribute("aria-label", `${name}: done`);
        const now = about.sheet ? sheet(name, about.sheet.kind, about.sheet.step, ON_CARD, Math.round(about.changed)) : "";
        if (about.sheet && src !== `${about.sheet.kind} ${about.sheet.step}`) {
          src = `${about.sheet.kind} ${about.sheet.step}`;
          picture.src = now;
          picture.alt = `newest samples of ${name}`;
        }
        picture.hidden = !about.sheet;
      },
    };
  };
  const showPicked = () => {
    document.body.classList.toggle("picking", picked.size > 0);
    part("compare").hidden = picked.size < 2;
    part("compare").firstElementChild.textContent = `Compare ${picked.size} runs`;
  };
  part("compare").firstElementChild.onclick = () => {
    location.hash = `run/${[...picked].map(encodeURIComponent).join("/")}`;
  };

  const showList = (told) => {
    steps = new Map(told.runs.map((about) => [about.name, about.step || 0]));
    part("folder").textContent = told.folder;
    part("none").hidden = told.runs.length > 0;
    const runs = told.runs.filter((about) => about.changed || about.state !== "waiting"); // the queue shows those
    const names = runs.map((about) => about.name);
    part("gallery").classList.toggle("several", names.length > 1);
    for (const name of [...cards.keys()].filter((each) => !names.includes(each))) {
      cards.get(name).element.remove();
      cards.delete(name);
    }
    runs.forEach((about, number) => {
      if (!cards.has(about.name)) cards.set(about.name, card(about.name));
      const { element, show } = cards.get(about.name), gallery = part("gallery");
      show(about);
      if (gallery.children[number] !== element) gallery.insertBefore(element, gallery.children[number] || null);
    });
    part("queue").hidden = told.queue.every((entry) => entry.state !== "waiting");
    part("queue").querySelector("ol").replaceChildren(...told.queue.map((entry) => {
      const line = make("li", {}, make("span", { className: `state ${entry.state}`, textContent: entry.state }),
        make("b", { textContent: entry.run }));
      if (entry.state === "waiting") {
        line.append(button("next", () => post("api/queue", { run: entry.run, do: "first" })),
          button("take out", () => post("api/queue", { run: entry.run, do: "remove" })));
      }
      return line;
    }));
  };

  // One run, or several side by side.

  /** Takes in what the server tells of a run, and keeps its curves. */
  class Run {
    constructor(name) {
      this.name = name;
      this.curves = new Map(); // chart -> curve -> steps and values
      this.axes = new Map(); // chart -> name of its vertical axis
      this.about = null;
    }

    async look() {
      const known = this.about && this.about.after !== undefined ? `?after=${this.about.after}&beginnings=${this.about.beginnings}` : "";
      const told = await ask(`api/runs/${path(this.name)}${known}`);
      if (told === null) return false;
      if (told.whole || !told.charts) this.curves.clear();
      for (const chart of told.charts || []) {
        if (!this.curves.has(chart.title)) this.curves.set(chart.title, new Map());
        this.axes.set(chart.title, chart.axis);
        const kept = this.curves.get(chart.title);
        for (const { name, steps, values } of chart.curves) {
          const before = kept.get(name) || { steps: [], values: [] };
          let end = before.steps.length;
          while (end > 0 && before.steps[end - 1] >= steps[0]) end -= 1;
          kept.set(name, { steps: [...before.steps.slice(0, end), ...steps], values: [...before.values.slice(0, end), ...values] });
        }
      }
      this.about = told;
      return true;
    }
  }

  const tile = (value, name, about = "") => make("div", { className: "tile" }, make("b", { textContent: value }),
    make("span", { textContent: name }), ...(about ? [make("small", { textContent: about })] : []));

  class View {
    constructor(names) {
      this.runs = names.map((name) => new Run(name));
      this.several = names.length > 1;
      this.charts = new Map();
      this.step = null; // null: the newest
      this.kind = null;
      this.head = make("div", { className: "head" });
      this.figures = this.runs.map(() => make("div", { className: "sheet" }));
      this.side = make("aside");
      this.stage = make("div", { className: `stage${this.several ? " several" : ""}` }, ...this.figures);
      this.bar = make("div", { className: "bar" });
      this.chartsPart = make("section", { className: "charts" });
      this.chartsPart.setAttribute("aria-label", "curves");
      this.below = make("section");
      this.settings = this.several ? null : new Settings(names[0]);
      this.pictures = this.figures.map((figure) => {
        const image = make("img", { alt: "" }), empty = make("p", { className: "empty", textContent: "no samples yet" });
        const canvas = make("canvas", { hidden: true });
        canvas.setAttribute("role", "img");
        image.onload = () => this.paint();
        const title = make("div", { className: "head" }), rows = make("ol", { className: "rows", hidden: true, ariaLabel: "rows" });
        figure.append(...(this.several ? [title] : []), make("div", { className: "named" }, rows, image), canvas, empty);
        return { image, canvas, empty, title, rows };
      });
      if (this.several) {
        part("run").replaceChildren(this.stage, this.bar, this.chartsPart);
      } else {
        this.figures[0].append(this.bar);
        this.stage.append(this.side);
        this.sentence = make("p", { className: "sentence" });
        this.progress = make("progress", { max: 1, ariaLabel: "done", hidden: true });
        this.folded = make("details", {}, make("summary", { textContent: "Curves" }), this.chartsPart);
        this.folded.ontoggle = () => this.draw();
        part("run").replaceChildren(this.head, this.sentence, this.progress, this.stage, this.settings.element, this.folded, this.below);
      }
      this.makeBar();
      this.observer = new ResizeObserver(() => { if (this.steps && view === this) this.showSheets(); });
      this.observer.observe(this.stage);
    }

    makeBar() {
      this.slider = make("input", { type: "range", min: 0, step: 1 });
      this.slider.setAttribute("aria-label", "through time");
      this.output = make("output");
      this.all = make("button", { type: "button", className: "second", textContent: "whole sheet" });
      this.all.onclick = () => { this.whole = !this.whole; this.showSheets(); };
      this.kinds = make("span", { className: "buttons" });
      this.columns = make("span", { className: "buttons" });
      this.left = new Set(); // titles of columns that are left out
      this.play = make("button", { type: "button", className: "second", textContent: "play" });
      this.slider.oninput = () => {
        const last = Number(this.slider.value) === Number(this.slider.max);
        this.step = last ? null : this.steps[Number(this.slider.value)];
        this.showSheets();
      };
      this.play.onclick = () => (this.timer ? this.pause() : this.start());
      this.bar.append(make("div", { className: "time" }, this.play, this.slider, this.output), this.kinds, this.columns, this.all);
    }

    start() {
      this.play.textContent = "pause";
      if (this.step === null) this.slider.value = 0;
      this.timer = setInterval(() => {
        if (Number(this.slider.value) >= Number(this.slider.max)) return this.pause();
        this.slider.value = Number(this.slider.value) + 1;
        return this.slider.oninput();
      }, 250);
      this.slider.oninput();
    }

    pause() {
      clearInterval(this.timer);
      this.timer = null;
      this.play.textContent = "play";
    }

    async look() {
      const changed = await Promise.all(this.runs.map((run) => run.look()));
      if (changed.includes(true) && view === this) this.show();
    }

    show() {
      const [{ about }] = this.runs;
      document.title = `${this.runs.map((run) => run.name).join(" · ")} · frugan`;
      this.showHead();
      const kinds = [...new Set(this.runs.flatMap((run) => Object.keys(run.about.sheets || {})))];
      if (!kinds.includes(this.kind)) this.kind = kinds[0] ?? null;
      if (kinds.join() !== this.shownKinds) {
        this.shownKinds = kinds.join();
        this.kinds.replaceChildren(...(kinds.length > 1 ? kinds : []).map((kind) => {
          const made = make("button", { type: "button", className: "second", textContent: kind });
          made.onclick = () => { this.kind = kind; this.show(); };
          return made;
        }));
      }
      for (const made of this.kinds.children) made.setAttribute("aria-pressed", String(made.textContent === this.kind));
      this.showColumns();
      const steps = new Set(this.runs.flatMap((run) => (run.about.sheets || {})[this.kind] || []));
      this.steps = [...steps].sort((a, b) => a - b);
      this.bar.hidden = this.steps.length === 0;
      this.slider.max = Math.max(0, this.steps.length - 1);
      this.slider.value = this.step === null ? this.steps.length - 1 : this.steps.indexOf(this.step);
      this.play.hidden = this.slider.hidden = this.steps.length < 2;
      this.kinds.hidden = kinds.length < 2;
      this.showSheets();
      this.showCharts();
      if (!this.several) this.showSide(about);
    }

    showHead() {
      const [{ about, name }] = this.runs;
      const titles = this.runs.map((run) => make("h1", { textContent: run.name }));
      if (this.several) {
        this.runs.forEach((run, number) => this.pictures[number].title.replaceChildren(titles[number], stateOf(run.about)));
        return;
      }
      this.settings.trains = about.state === "running" || about.state === "starting";
      this.settings.ended = about.state === "finished";
      this.settings.count();
      const buttons = make("span", { className: "buttons" });
      if (about.state === "running") {
        for (const wish of ["save", "preview", "stop"]) {
          const made = button(wish, () => post(`api/runs/${path(name)}/ask`, { wish }), wish === "save" ? "" : "second");
          made.disabled = about.asked.includes(wish);
          if (made.disabled) made.textContent = `${wish} …`;
          buttons.append(made);
        }
      } else if (about.state === "waiting") {
        buttons.append(button("take out of the queue", () => post("api/queue", { run: name, do: "remove" })));
      } else if (about.state === "died" && !about.changed) {
        buttons.append(button("forget", async () => {
          await post("api/queue", { run: name, do: "remove" });
          location.hash = "";
        }));
      } else if (about.state === "finished") {
        const longer = make("button", { type: "button", textContent: "train longer" });
        longer.onclick = () => this.settings.open(LENGTH);
        buttons.append(longer);
      } else if (about.state !== "starting" && about.changed) {
        buttons.append(button("go on", () => goOn(name, {}).catch((error) => {
          this.settings.open("data"); // most likely nobody knows where its pictures are
          throw error;
        }), ""));
      }
      if (about.explorable) buttons.append(make("a", { href: `#explore/${encodeURIComponent(name)}`, textContent: "explore" }));
      if (about.changed) buttons.append(make("a", { href: `report/${path(name)}`, target: "_blank", rel: "noopener", textContent: "report" }));
      this.head.replaceChildren(titles[0], stateOf(about), buttons);
    }

    showSheets() {
      const step = this.step ?? this.steps[this.steps.length - 1];
      this.all.hidden = !this.runs.some((run) => (run.about.grids || {})[this.kind] && !(run.about.columns || {})[this.kind]);
      this.all.setAttribute("aria-pressed", String(Boolean(this.whole)));
      this.output.textContent = step === undefined ? "" : `step ${step.toLocaleString("en")}`;
      this.runs.forEach((run, number) => {
        const { image, empty, rows } = this.pictures[number], steps = (run.about.sheets || {})[this.kind] || [];
        const shown = steps.filter((each) => each <= step).pop();
        empty.hidden = shown !== undefined;
        if (shown === undefined) { rows.hidden = true; return; }
        const cut = this.nameRows(run, this.figures[number], rows);
        const src = sheet(run.name, this.kind, shown, cut, run.about.beginnings);
        if (image.getAttribute("src") !== src) image.src = src;
        image.alt = `${this.kind} of ${run.name} at step ${shown}`;
      });
      this.paint();
    }

    /** Names the rows of the pictures that fit, and returns what `part` does; a whole sheet has their names in it. */
    nameRows(run, figure, rows) {
      const names = (run.about.rows || {})[this.kind] || [], grid = (run.about.grids || {})[this.kind];
      rows.hidden = names.length === 0 || !grid || names.length !== grid.rows || this.part(run, figure, 0) === null;
      if (rows.hidden) return this.part(run, figure, 0);
      const list = (times) => rows.replaceChildren(...times.map(([name, share]) => make("li", { textContent: name, title: name, style: `flex-grow: ${share}` })));
      list(names.map((name) => [name, 1])); // as wide as the longest
      const cut = this.part(run, figure, rows.offsetWidth);
      // as the server cuts it: a sheet of fewer rows gives more of each
      const columns = Math.min(cut.columns, grid.columns);
      const each = Math.max(1, Math.min(Math.floor(cut.rows / grid.rows), Math.floor(grid.columns / columns)));
      const shown = Math.min(cut.rows, grid.rows * each);
      list(names.map((name, at) => [name, Math.min(each, shown - at * each)]).filter(([, share]) => share > 0));
      return cut;
    }

    /** Rows and columns of pictures that fit; null: the whole sheet, as it has titles, or is asked for. */
    part(run, figure, beside) {
      const grid = (run.about.grids || {})[this.kind], titled = (run.about.columns || {})[this.kind];
      if (!grid || titled || this.whole) return null;
      const width = figure.clientWidth - 26 - beside, least = width < 6 * LEAST_SIDE ? LEAST_SIDE : USUAL_SIDE;
      const columns = Math.max(1, Math.min(grid.columns, Math.floor(width / least)));
      const rows = Math.floor(SHARE_OF_HEIGHT * window.innerHeight / (width / columns));
      return { columns, rows: Math.max(2, Math.min(grid.rows * Math.floor(grid.columns / columns), rows)) };
    }

    /** Switches for the columns of a sheet that has titles: source, swap and so on. */
    showColumns() {
      const titles = [...new Set(this.runs.flatMap((run) => ((run.about.columns || {})[this.kind] || { titles: [] }).titles))];
      if (titles.join() === this.shownColumns) return;
      this.shownColumns = titles.join();
      this.columns.replaceChildren(...titles.map((title) => {
        const made = make("button", { type: "button", className: "second", textContent: title });
        made.onclick = () => {
          if (!this.left.delete(title)) this.left.add(title);
          if (titles.every((each) => this.left.has(each))) this.left.clear();
          this.paint();
        };
        return made;
      }));
      this.paint();
    }

    /** The columns that are wanted, cut out of the sheet; all of it where none is left out. */
    paint() {
      for (const made of this.columns.children) made.setAttribute("aria-pressed", String(!this.left.has(made.textContent)));
      this.runs.forEach((run, number) => {
        const { image, canvas, empty } = this.pictures[number], place = run.about && (run.about.columns || {})[this.kind];
        const wanted = place ? place.titles.map((title, at) => [title, at]).filter(([title]) => !this.left.has(title)) : [];
        const cut = empty.hidden && place && wanted.length > 0 && wanted.length < place.titles.length;
        if (cut && !(image.complete && image.naturalWidth > 0)) return; // what was shown stays until it has come
        canvas.hidden = !cut;
        image.hidden = Boolean(cut) || !empty.hidden;
        if (!cut) return;
        const { left, top, width } = place, height = image.naturalHeight - top;
        canvas.width = wanted.length * width;
        canvas.height = height;
        const paint = canvas.getContext("2d");
        wanted.forEach(([, from], to) => (
          paint.drawImage(image, left + from * width, top, width, height, to * width, 0, width, height)));
        canvas.setAttribute("aria-label", `${image.alt}: ${wanted.map(([title]) => title).join(", ")}`);
      });
    }

    showCharts() {
      const titles = [...new Set(this.runs.flatMap((run) => [...run.curves.keys()]))];
      for (const title of titles) {
        const curves = this.runs.flatMap((run, number) => (
          [...(run.curves.get(title) || new Map())].map(([name, curve]) => ({ name, run: number, ...curve }))));
        if (this.charts.has(title)) {
          this.charts.get(title).take(curves);
        } else {
          const axis = this.runs.map((run) => run.axes.get(title)).find(Boolean);
          const chart = new Chart({ title, curves, axis }, this.runs.map((run) => run.name));
          this.charts.set(title, chart);
          this.chartsPart.append(chart.element);
        }
      }
      this.draw();
    }

    draw() {
      if (this.folded && !this.folded.open) return; // a canvas that is not shown has no size
      for (const chart of this.charts.values()) chart.draw();
    }

    showSide(about) {
      const warnings = (about.notes || []).filter(([kind]) => kind === "warning").map(([, line]) => line).reverse();
      const rest = (about.notes || []).filter(([kind]) => kind !== "warning").map(([, line]) => line);
      const tiles = Object.entries(about.tiles || {})
        .filter(([name]) => name !== "state" && !name.includes("half_width") && (name !== "left" || about.state === "running"))
        .map(([name, value]) => tile(value, name));
      this.sentence.textContent = about.sentence || "";
      this.progress.hidden = about.done === undefined || about.state === "finished";
      this.progress.value = about.done || 0;
      this.side.replaceChildren(
        make("div", { className: "tiles large" },
          ...(about.state === "running" && about.left ? [tile(about.left, "left")] : []),
          ...(about.headlines || []).map(({ name, value, about: told }) => tile(value, name, told))),
        ...warnings.slice(0, 1).map((line) => make("p", { className: "warning", textContent: line })),
        ...((about.lines || []).length ? [make("pre", { textContent: about.lines.join("\n") })] : []),
      );
      this.stage.classList.toggle("alone", this.side.textContent === "");
      const open = new Set([...this.below.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
      const folded = (title, ...inside) => {
        const made = make("details", { open: open.has(title) }, make("summary", { textContent: title }), ...inside);
        return made;
      };
      const columns = [...new Set((about.scores || []).flatMap((row) => Object.keys(row)))];
      this.below.replaceChildren(
        ...(tiles.length ? [folded("Numbers", make("div", { className: "tiles" }, ...tiles))] : []),
        ...(warnings.length > 1 ? [folded("Earlier warnings",
          ...warnings.slice(1).map((line) => make("p", { className: "warning", textContent: line })))] : []),
        ...(columns.length ? [folded("Scores", make("div", { className: "scroll" }, make("table", {},
          make("tr", {}, ...columns.map((name) => make("th", { textContent: name }))),
          ...about.scores.map((row) => make("tr", {}, ...columns.map((name) => make("td", { textContent: row[name] ?? "" })))))))] : []),
        ...(rest.length ? [folded("What training said", make("ul", {}, ...rest.map((line) => make("li", { textContent: line }))))] : []),
        ...Object.entries(about.facts || {}).map(([title, rows]) => folded(title, make("table", {},
          ...Object.entries(rows).map(([name, value]) => make("tr", {}, make("th", { textContent: name }), make("td", { textContent: value })))))),
      );
    }
  }

  /** Asks where pictures are only if nobody knows. */
  const goOn = async (name, fields, data = "") => post(`api/runs/${path(name)}/go-on`, { fields, data });

  const LENGTH = "training.duration", TIME = "training.time", LENGTHS = { [TIME]: "Time in all", [LENGTH]: "Length of the training" };
  const ABOUT_LENGTHS = { // where it is the one that counts, and where the other does
    [TIME]: ["Of all its sessions, with start, samples and scores; such as 15min or 3h. Give more to train longer.",
      "Such as 3h, with start, samples and scores. Holds in place of the length."],
    [LENGTH]: ["Counted from the beginning, such as 150k steps or 25M images. Give more to train longer. endless: until you stop it.",
      "Such as 150k steps or 25M images. Holds in place of the time in all."],
  };
  /** What becomes of the learning rates of a run that goes on. */
  const aboutRates = (fields, ended) => {
    const within = (fields.find(({ key }) => key === "training.burn_in") || { value: "none" }).value;
    if (!fields.some(({ key, value }) => /^optimizers\..*\.final_learning_rate$/.test(key) && value !== "none")) return "Learning rates stay as they are.";
    if (ended) return "Learning rates have come to their last value, the lowest, and stay there.";
    return / /.test(within) ? `Learning rates go on falling as they would have, over ${within}.`
      : "Learning rates go on falling, evenly to their lowest at the new end.";
  };

  /** Fields of the recipe that a run may go on with other values of. */
  class Settings {
    constructor(name) {
      this.name = name;
      this.trains = false; // whether it is being trained now
      this.ended = false; // whether it has come to its end
      this.reading = null; // while the fields are asked for
      this.count = () => {}; // until the fields are there
      this.inside = make("div", { textContent: "reading …" });
      this.element = make("details", {}, make("summary", { textContent: "Change and go on" }), this.inside);
      this.element.ontoggle = () => this.element.open && this.read();
    }

    /** Once, whoever asks while it goes on: what was typed meanwhile would be lost. */
    read() {
      if (!this.fields) this.reading ||= this.readAnew().finally(() => { this.reading = null; });
      return this.reading;
    }

    async readAnew() {
      try {
        this.fields = await ask(`api/runs/${path(this.name)}/fields`);
        this.show();
      } catch (error) {
        this.inside.textContent = error.message;
      }
    }

    /** Show them, and go to one. */
    async open(key) {
      this.element.open = true;
      await this.read();
      const input = this.inside.querySelector(`[name="${key === LENGTH ? this.counts : key}"]`);
      if (input && input.closest("details")) input.closest("details").open = true;
      if (input) { input.scrollIntoView({ block: "center" }); input.focus(); }
    }

    show() {
      this.counts = this.fields.some((field) => field.key === TIME && field.value !== "none") ? TIME : LENGTH;
      const inputs = this.fields.map((field) => {
        const input = make("input", { name: field.key, value: field.value, autocomplete: "off", spellcheck: false });
        const about = field.key in LENGTHS ? ABOUT_LENGTHS[field.key][field.key === this.counts ? 0 : 1] : [field.description, field.values, field.limits].filter(Boolean).join("; ");
        const label = make("label", {}, LENGTHS[field.key] || field.key, input, make("small", { textContent: about }));
        input.oninput = () => { label.classList.toggle("changed", input.value !== field.value); count(); };
        return { field, input, label };
      });
      const changes = () => Object.fromEntries(inputs.filter(({ field, input }) => input.value !== field.value)
        .map(({ field, input }) => [field.key, input.value]));
      const data = make("input", { name: "data", autocomplete: "off", placeholder: "where they were" });
      const go = button("", async () => {
        let answer = null;
        showFaults(this.inside);
        try {
          answer = await goOn(this.name, changes(), data.value);
        } catch (error) {
          if (showFaults(this.inside, error.fields)) return null;
          window.scrollTo(0, 0); // where it is told
          throw error;
        }
        this.fields = null;
        this.element.open = false;
        window.scrollTo(0, 0);
        return answer;
      }, "");
      const count = () => {
        const many = Object.keys(changes()).length, what = many === 1 ? "this change" : `${many} changes`;
        go.disabled = many === 0 && data.value === "";
        go.textContent = many === 0 ? "Go on" : `${this.trains ? "Save, stop, go" : "Go"} on with ${what}`;
      };
      this.count = count;
      data.oninput = count;
      count();
      const length = inputs.filter(({ field }) => field.key === this.counts);
      const rest = inputs.filter(({ field }) => field.key !== this.counts).sort((one, other) => (other.field.key in LENGTHS) - (one.field.key in LENGTHS));
      this.inside.replaceChildren(make("div", { className: "fields" }, ...length.map(({ label }) => label)),
        make("p", { className: "rates", textContent: aboutRates(this.fields, this.ended) }),
        make("details", {}, make("summary", { textContent: "Everything else that may change" }),
          make("div", { className: "fields" }, ...rest.map(({ label }) => label))),
        make("div", { className: "buttons go" }, go, make("label", {}, "Pictures ", data)));
    }
  }

  // A new run.

  const form = part("new").querySelector("form");
  let recipes = null;
  const showNew = async () => {
    document.title = "new run · frugan";
    if (recipes) return;
    recipes = await ask("api/recipes");
    part("recipes").replaceChildren(...recipes.map((each) => make("option", { value: each.name, textContent: each.summary })));
  };
  const byRecipe = form.elements.recipe;
  byRecipe.addEventListener("input", () => {
    const found = (recipes || []).find((each) => each.name === byRecipe.value);
    part("recipe-told").textContent = found
      ? `${found.summary}. ${found.resolution} pixels, ${found.duration}, ${found.smallest_card_gib ? `from ${found.smallest_card_gib} GiB` : "for a large card"}.`
      : byRecipe.value ? "The path of a TOML file." : "Empty: frugan looks at the pictures, the machine and the time, and chooses.";
  });
  form.onsubmit = async (event) => {
    event.preventDefault();
    const send = form.querySelector("button");
    send.disabled = true;
    tell();
    showFaults(form);
    try {
      await post("api/start", Object.fromEntries(new FormData(form)));
      form.reset();
      location.hash = "";
    } catch (error) {
      if (!showFaults(form, error.fields)) tell(error.message, true);
    }
    send.disabled = false;
  };

  // Which part is shown, and when it looks.

  let view = null, shown = "", timer = null, lastRun = "", steps = new Map();
  const looks = {
    runs: async () => {
      const told = await ask("api/runs");
      if (told !== null) showList(told);
    },
    run: () => view.look(),
    new: showNew,
  };
  const turn = () => {
    const [tab, ...names] = location.hash.slice(1).split("/").map(decodeURIComponent);
    shown = part(tab) && part(tab).tagName === "MAIN" ? tab : "runs";
    if (view) { view.pause(); view.observer.disconnect(); }
    view = shown === "run" ? new View([...new Set(names)].slice(0, 6)) : null;
    if (view && names.length === 1) [lastRun] = names;
    document.title = "frugan";
    tags.clear();
    tell();
    for (const main of document.querySelectorAll("main")) main.hidden = main.id !== shown;
    for (const link of document.querySelectorAll("nav a")) {
      const mine = link.dataset.tab === shown || (shown === "run" && link.dataset.tab === "runs");
      if (mine) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    window.scrollTo(0, 0);
    document.dispatchEvent(new CustomEvent("frugan-tab", { detail: { tab: shown, names } }));
    look();
  };
  let gone = false;
  const look = async () => {
    clearTimeout(timer);
    const doing = looks[shown];
    let next = EVERY;
    try {
      if (!document.hidden && shown !== "runs" && !part("folder").textContent) await looks.runs(); // opened by its address
      if (doing && !document.hidden) await doing();
      if (gone) tell();
      gone = false;
    } catch (error) {
      gone = error instanceof TypeError;
      tell(gone ? "The page's server does not answer. Trainings go on; start it again with `frugan page`." : error.message, true);
      next = WHEN_GONE;
    }
    clearTimeout(timer);
    timer = setTimeout(look, next);
  };
  addEventListener("hashchange", turn);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  addEventListener("resize", () => view && view.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view && view.draw());
  turn();
  /** Which of some runs one most likely wants to see: the one clicked last, else the one that was trained longest. */
  const likely = async (names) => {
    if (names.includes(lastRun)) return lastRun;
    if (steps.size === 0) await looks.runs(); // opened by its address
    return [...names].sort((one, other) => (steps.get(other) || 0) - (steps.get(one) || 0))[0];
  };
  return { ask, post, button, tell, path, likely };
})();
