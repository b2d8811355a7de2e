"use strict";
/** The tab "explore": asks the server for pictures of the state that the controls are in. */
const explore = (() => {
  const { make } = charts, { ask, post, tell, likely } = page;
  const root = document.getElementById("explore");
  const SHOWN_DIRECTIONS = 8, STRIP = 7, WALK = 24, FRAME = 70, LOOK = 500, LARGER = 14;
  const WHOLE = 2 ** 32 - 1;
  const FILMS = { ".gif": "GIF", ".webp": "WebP", ".mp4": "MP4" };
  const ABOUT_MP4 = "MP4 is for video programs (MPEG-4 Part 2): most browsers do not play it. GIF and WebP play everywhere.";
  const SPACES = { w: "one style for all layers (w): easy to change", "w+": "a style for each layer (w+): nearer",
    z: "random numbers that pictures are drawn from (z)" };

  let about = null, state = null, directions = [], strips = [], left = "";
  /** What is known of a generator by the weights that are open. */
  const opened = (name) => `explore/about?source=${encodeURIComponent(name)}`;
  const fresh = () => ({ seed: 1, start: "", class: 0, psi: 1, truncation: 1, noise: "const", noiseSeed: 0,
    mixing: false, mix: 2, from: 0, to: 0, moves: {} });

  // Small parts.

  const labelled = (text, ...inside) => make("label", {}, make("span", { textContent: text }), ...inside);
  const choice = (options, chosen, changed) => {
    const made = make("select", {}, ...options.map(([value, text]) => make("option", { value, textContent: text, selected: value === chosen })));
    made.onchange = () => changed(made.value);
    return made;
  };
  const whole = (value, most, changed) => {
    const made = make("input", { type: "number", min: 0, max: most, step: 1, value });
    made.oninput = () => { if (made.value !== "" && made.checkValidity()) changed(Number(made.value)); };
    return made;
  };
  const slider = (name, value, [least, most, step], changed) => {
    const shown = make("output", { textContent: value });
    const made = make("input", { type: "range", min: least, max: most, step, value, ariaLabel: name });
    made.oninput = () => { shown.textContent = made.value; changed(Number(made.value)); };
    made.set = (to) => { made.value = to; shown.textContent = made.value; };
    return [made, shown];
  };
  const group = (title, ...inside) => make("section", { ariaLabel: title }, make("h2", { textContent: title }), ...inside);
  const doing = (name, act, kind = "second") => {
    const made = make("button", { type: "button", textContent: name, className: kind });
    made.onclick = async () => {
      made.disabled = true;
      try { tell(); await act(); } catch (error) { if (error.message !== "overtaken") tell(error.message, true); }
      made.disabled = false;
    };
    return made;
  };
  const image = (src, alt) => make("img", { src, alt });

  // What is asked for.

  const moved = () => Object.fromEntries(Object.entries(state.moves).filter(([, amount]) => amount !== 0));
  const asked = (more = {}) => ({
    source: about.source,
    ...(state.start ? { kept: [state.start] } : { seeds: [state.seed] }),
    ...(about.classes.length && !state.start ? { classes: [state.class] } : {}),
    ...(about.styled ? { psi: state.psi, noise: state.noise, noise_seed: state.noiseSeed } : { truncation: state.truncation }),
    ...(state.mixing && !state.start ? { mix: state.mix, layers: layersOf() } : {}),
    moves: moved(),
    ...more,
  });
  const layersOf = () => Array.from({ length: Math.max(0, state.to - state.from + 1) }, (_, at) => state.from + at);

  /** Draw the state; while one picture is on its way, only the newest wish waits. */
  let drawing = false, again = false;
  const draw = async () => {
    if (drawing) { again = true; return; }
    drawing = true;
    do {
      again = false;
      try {
        showPicture(await post("explore/draw", asked()));
        tell();
      } catch (error) {
        if (error.message !== "overtaken") tell(error.message, true);
      }
    } while (again);
    drawing = false;
  };
  const turn = (name) => (value) => { state[name] = value; draw(); };

  // The picture, and how it is made again.

  const big = make("img", { alt: "picture", hidden: true }), coming = make("progress", { ariaLabel: "the picture is being drawn" });
  big.onload = () => { big.hidden = false; coming.hidden = true; };
  const save = make("a", { textContent: "Save this picture", download: "picture.png", className: "button" });
  const command = make("pre"), python = make("pre");
  const copying = (title, part) => {
    const copy = make("button", { type: "button", className: "second", textContent: "Copy" });
    copy.onclick = async () => {
      try { await navigator.clipboard.writeText(part.textContent); } catch { getSelection().selectAllChildren(part); }
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    };
    return make("div", { className: "told" }, make("div", { className: "bar" }, make("h2", { textContent: title }), copy), part);
  };
  const showPicture = (told) => {
    const [row] = told.rows;
    big.src = row[row.length - 1];
    big.style.maxWidth = `${Math.min(512, LARGER * about.side)}px`;
    save.href = big.src;
    save.download = `${state.start || `seed${String(state.seed).padStart(4, "0")}`}.png`;
    showTold(told);
  };
  const showTold = (told) => {
    command.textContent = told.command;
    python.textContent = told.python;
    if (told.step === undefined) return;
    if (told.step !== about.step) { open(about.source); return; } // somebody took newer weights in another window
    newer.hidden = told.newest === told.step;
    newer.textContent = `Take the newest weights, of step ${told.newest.toLocaleString("en")}`;
  };
  const newer = make("button", { type: "button", className: "second", hidden: true });
  newer.onclick = () => open(about.source);

  // Controls.

  const beginning = () => {
    const seed = whole(state.seed, WHOLE, turn("seed"));
    const to = (value) => { seed.value = state.seed = Math.min(WHOLE, Math.max(0, value)); draw(); };
    const step = (name, title, by) => make("button", { type: "button", className: "second", textContent: name, title, ariaLabel: title, onclick: () => to(by()) });
    const seeds = make("div", { className: "bar" }, seed, step("‹", "seed before", () => state.seed - 1), step("›", "next seed", () => state.seed + 1),
      step("Random", "random seed", () => Math.floor(Math.random() * 1e6)));
    const kept = choice([["", "a seed"], ...about.kept.map((name) => [name, name])], state.start, (value) => {
      state.start = value;
      show();
    });
    return group("Picture",
      ...(about.kept.length ? [labelled("Begin with", kept)] : []),
      ...(state.start ? [] : [labelled("Seed", seeds)]),
      ...(about.classes.length && !state.start
        ? [labelled("Class", choice(about.classes.map((name, at) => [String(at), name]), String(state.class), (value) => turn("class")(Number(value))))] : []),
      ...(state.start ? [] : about.styled
        ? [labelled("Truncation (psi)", ...slider("psi", state.psi, [-1, 1.5, 0.05], turn("psi")))]
        : [labelled("Truncation", ...slider("truncation", state.truncation, [0.05, 1.5, 0.05], turn("truncation")))]),
      ...(state.start ? [] : [make("small", { textContent: "Truncation below 1 gives cleaner pictures that are more alike." })]),
      ...(about.styled ? noises() : []));
  };
  const noises = () => {
    const seed = whole(state.noiseSeed, WHOLE, turn("noiseSeed")), line = labelled("Seed of the noise", seed);
    line.hidden = state.noise !== "random";
    const kinds = choice([["const", "its own"], ["random", "random"], ["none", "none"]], state.noise, (value) => {
      line.hidden = value !== "random";
      turn("noise")(value);
    });
    return [labelled("Noise", kinds), line];
  };
  const mixing = () => {
    const last = about.layers - 1;
    const use = make("input", { type: "checkbox", checked: state.mixing });
    use.onchange = () => turn("mixing")(use.checked);
    const and = (name) => (value) => { state.mixing = use.checked = true; turn(name)(value); };
    return group("Mix styles", labelled("Take styles of another seed", use), labelled("Seed", whole(state.mix, WHOLE, and("mix"))),
      labelled(`Layers, 0 to ${last}`, make("div", { className: "bar" }, whole(state.from, last, and("from")), "to", whole(state.to, last, and("to")))));
  };

  const walking = () => {
    const others = [["", "a seed"], ...about.kept.map((name) => [name, name])];
    let end = "", other = state.seed + 1, kind = state.start ? "0" : "", frames = [], timer = null;
    const to = whole(other, WHOLE, (value) => { other = value; });
    const same = state.start ? [] : [["", "the same"]]; // of a kept picture no class is known
    const into = labelled("Of class", choice([...same, ...about.classes.map((name, at) => [String(at), name])], kind, (value) => { kind = value; }));
    into.hidden = about.classes.length === 0;
    const [place] = slider("place on the way", 0, [0, WALK - 1, 1], (at) => { stop(); if (frames[at]) big.src = frames[at]; });
    const play = make("button", { type: "button", className: "second", textContent: "Play" });
    const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
    const bar = make("div", { className: "bar", hidden: true }, place, play);
    play.onclick = () => {
      if (timer) { stop(); return; }
      let at = Number(place.value), by = 1;
      play.textContent = "Pause";
      timer = setInterval(() => {
        if (!bar.isConnected || root.hidden) { stop(); return; }
        if (at + by < 0 || at + by >= frames.length) by = -by;
        at += by;
        place.value = at;
        big.src = frames[at];
      }, FRAME);
    };
    const ends = () => {
      const both = asked({ walk: true, columns: WALK });
      delete both.mix;
      if (end) both.kept = [...(both.kept || []), end];
      else {
        both.seeds = [...(both.seeds || []), other];
        if (kind !== "") both.classes = [...new Set([...(both.classes || []), Number(kind)])];
      }
      return both;
    };
    const go = doing("Walk there", async () => {
      const told = await post("explore/draw", ends());
      [frames] = told.rows;
      bar.hidden = false;
      showTold(told);
      play.click();
    });
    const kept = choice(others, end, (value) => {
      end = value;
      to.hidden = end !== "";
      into.hidden = end !== "" || about.classes.length === 0;
    });
    const keep = (ending) => doing(FILMS[ending] || ending, async () => {
      const told = await post("explore/film", { ...ends(), ending });
      make("a", { href: told.film, download: `walk${ending}` }).click();
      showTold(told);
    });
    const target = about.kept.length ? "To" : "To the picture of seed";
    return group("Walk to another picture",
      make("small", { textContent: `Pictures change step by step from this one into another${about.classes.length ? ", of the same class or of another one" : ""}: what lies between them shows what the generator has learnt.` }),
      labelled(target, make("div", { className: "bar" }, ...(about.kept.length ? [kept] : []), to, go)), into, bar,
      labelled("Save as", make("div", { className: "bar" }, ...about.films.map(keep))),
      ...(about.films.includes(".mp4") ? [make("small", { textContent: ABOUT_MP4 })] : []));
  };

  // Directions.

  const rows = make("div", { className: "directions" });
  const findings = () => {
    const layers = make("input", { placeholder: "all layers", pattern: "\\d+(-\\d+)?", size: 8, ariaLabel: "layers" });
    const find = (method) => async () => {
      const [first, last] = layers.value.split("-").map(Number);
      const of = layers.value ? Array.from({ length: (last ?? first) - first + 1 }, (_, at) => first + at) : [];
      state.moves = {};
      await post("explore/draw", asked({ method, of, rows: 1, columns: 2 }));
      about = await ask(opened(about.source));
      directions = about.directions;
      await look({ directions: true });
      show();
    };
    const none = make("button", { type: "button", className: "second", textContent: "All to 0" });
    none.onclick = () => { state.moves = {}; showDirections(); draw(); };
    const part = group("Directions",
      make("div", { className: "bar" }, doing("Find among samples", find("pca")), doing("Find in the weights", find("sefa")),
        ...(about.layers > 1 ? [layers] : []),
        ...(directions.length ? [doing("Show from this picture", () => look({ directions: true })), none] : [])),
      make("small", { textContent: directions.length
        ? "Names can be changed and are kept. Numbers are standard deviations."
        : "Ways in which this generator can change a picture: by its weights alone (SeFa), or by what varies most among its samples (PCA)." }),
      rows);
    part.classList.toggle("found", directions.length > 0);
    return part;
  };
  /** Rows of pictures along directions, from the present picture. */
  const look = async (how) => {
    const wish = asked({ ...how, rows: SHOWN_DIRECTIONS, columns: STRIP });
    delete wish.moves;
    const told = await post("explore/draw", wish);
    strips = told.rows;
    showTold(told);
    showDirections();
  };
  const showDirections = () => {
    rows.replaceChildren(...directions.slice(0, SHOWN_DIRECTIONS).map((name, number) => {
      const [range, shown] = slider(name, state.moves[name] || 0, [-5, 5, 0.1], (amount) => { state.moves[name] = amount; draw(); });
      const title = make("input", { value: name, maxLength: 60, ariaLabel: `name of ${name}`, spellcheck: false });
      title.onchange = async () => {
        try {
          const told = await post("explore/names", { source: about.source, names: { [name]: title.value } });
          const now = title.value.trim();
          if (now !== name && name in state.moves) { state.moves[now] = state.moves[name]; delete state.moves[name]; }
          directions = told.directions;
          showDirections();
          draw();
        } catch (error) {
          title.value = name;
          tell(error.message, true);
        }
      };
      const strip = (strips[number] || []).map((src, at) => {
        const amount = -3 + 6 * at / (STRIP - 1);
        const pick = make("button", { type: "button", className: "pick", title: `${name} ${amount}` }, image(src, `${name} ${amount}`));
        pick.onclick = () => { range.set(amount); state.moves[name] = amount; draw(); };
        return pick;
      });
      return make("div", { className: "direction" }, make("div", { className: "bar" }, title, range, shown),
        ...(strip.length ? [make("div", { className: "strip" }, ...strip)] : []));
    }));
  };

  // Somebody's own picture.

  const projecting = () => {
    const file = make("input", { type: "file", accept: "image/png,image/jpeg,image/webp,image/bmp,image/gif,image/tiff" });
    const space = choice(about.spaces.map((name) => [name, SPACES[name] || name]), about.spaces[0], () => {});
    const steps = whole(300, 5000, () => {});
    const progress = make("progress", { max: 1, value: 0, hidden: true }), told = make("small");
    const pictures = make("div", { className: "strip" });
    const stop = doing("Stop", () => post("explore/stop", {}));
    stop.hidden = true;
    const send = async () => {
      if (!file.files.length) throw new Error("Choose a picture first.");
      const [picture] = file.files;
      const words = new URLSearchParams({ source: about.source, name: picture.name, space: space.value, steps: steps.value });
      const answer = await fetch(`explore/project?${words}`, { method: "POST", body: picture, headers: { "Content-Type": "application/octet-stream" } });
      const begun = await answer.json().catch(() => ({ error: answer.status === 413 ? "The file is larger than 16 MiB." : answer.statusText }));
      if (!answer.ok) throw new Error(begun.error);
      progress.hidden = stop.hidden = false;
      pictures.replaceChildren();
      const mine = begun.going.name;
      for (;;) {
        await new Promise((done) => { setTimeout(done, LOOK); });
        const { going } = await ask("explore/project");
        if (!going || going.name !== mine) break;
        progress.value = going.done / going.steps;
        told.textContent = `step ${going.done} of ${going.steps}`;
        if (going.picture) pictures.replaceChildren(image(going.picture, "the nearest so far"));
        if (!going.ended) continue;
        progress.hidden = stop.hidden = true;
        if (going.error) { told.textContent = ""; if (going.error !== "stopped") throw new Error(going.error); break; }
        const titles = ["yours", "began with", "found"];
        const found = going.result;
        Object.assign(state, { start: going.name, moves: {} });
        strips = [];
        about = await ask(opened(about.source)) || about;
        show(group("Found", make("div", { className: "strip" }, ...found.pictures.map((src, at) => (
          make("figure", {}, image(src, titles[at]), make("figcaption", { textContent: titles[at] }))))),
        make("small", { textContent: `What was found is ${found.nearness}. Kept as ${going.name}.` })), found);
        break;
      }
    };
    return group("Your own picture", file, make("small", { textContent: "Looks for the picture of this generator that is most like yours." }),
      ...(about.spaces.length > 1 ? [labelled("Look among", space)] : []), labelled("Steps", steps),
      make("div", { className: "bar" }, doing("Find it in the generator", send), stop), progress, told, pictures);
  };

  // The whole tab.

  const show = (found = null, after = null) => {
    const sources = choice(all.map((name) => [name, name]), about.source, (name) => { location.hash = `explore/${encodeURIComponent(name)}`; });
    root.replaceChildren(
      make("div", { className: "head" }, labelled("Generator", sources),
        make("small", { textContent: `${about.family}, ${about.side} pixels, step ${about.step.toLocaleString("en")}${left}` }), newer),
      make("div", { className: "explore" },
        make("div", { className: "left" }, make("div", { className: "sheet" }, coming, big, make("div", { className: "bar" }, save)),
          make("div", { className: "again" }, copying("In a terminal", command), copying("In Python", python))),
        make("div", { className: "turning" }, ...(found ? [found] : []), beginning(), ...(about.layers > 1 && !state.start ? [mixing()] : []),
          walking(), projecting(), findings())));
    showDirections();
    draw().then(() => after && showTold(after));
  };
  let all = [];
  const NO_CHECKPOINT = "No run here has a checkpoint yet: train one, or put a weights file (.safetensors) into this folder.";
  const NO_SEEDS = "Face models make pictures of given faces: they have no seeds to explore. In a terminal, frugan swap puts a trained face into a film, and frugan sample draws a sheet.";
  const nothing = (line) => root.replaceChildren(make("p", { id: "none", textContent: line }));
  const open = async (name) => {
    try {
      const told = await ask("explore/sources");
      all = told.sources;
      if (!all.length) { nothing(told.show_given ? NO_SEEDS : NO_CHECKPOINT); return; }
      const wanted = all.includes(name) ? name : await likely(all);
      const before = about && about.source === wanted ? about : null;
      if (!before) nothing(`Opening ${wanted} …`);
      about = await ask(`${opened(wanted)}&newest`);
      if (!before) {
        state = fresh();
        state.to = Math.max(0, Math.floor(about.layers / 2) - 1);
      }
      left = "";
      if (!before || before.step !== about.step) { // a training has written newer weights
        if (before) left = `, in place of step ${before.step.toLocaleString("en")}: directions and pictures found there do not hold here`;
        Object.assign(state, { start: "", moves: {} });
        strips = [];
      }
      newer.hidden = true;
      directions = about.directions;
      if (!about.kept.includes(state.start)) state.start = "";
      show();
    } catch (error) {
      if (error.message === "overtaken") return;
      about = null;
      root.replaceChildren(...(all.length ? [labelled("Generator", choice([["", "choose"], ...all.map((each) => [each, each])], "", (each) => { location.hash = `explore/${encodeURIComponent(each)}`; }))] : []));
      tell(error.message, true);
    }
  };
  document.addEventListener("frugan-tab", ({ detail }) => { if (detail.tab === "explore") open(detail.names[0]); });
  const [tab, name] = location.hash.slice(1).split("/").map(decodeURIComponent);
  if (tab === "explore") open(name);
  return { open };
})();
