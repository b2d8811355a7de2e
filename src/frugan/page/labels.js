"use strict";
/** Polygons around faces: points by clicks, saved when a face is left. */
const labels = (() => {
  const part = (id) => document.getElementById(id), canvas = document.querySelector("canvas"), pen = canvas.getContext("2d");
  const COLOURS = { true: "#ffdc00", false: "#ff3c3c" }, SHARE_OF_HEIGHT = 0.86, LARGEST = 1024, LEAST_POINTS = 3;
  const NEAR = { mouse: 9, pen: 12, touch: 20 }; // pixels of the screen around a point that are the point
  const picture = new Image();
  let busy = false; // a face is being saved or loaded: what was done to it meanwhile would be lost
  let faces = [], at = 0, size = { width: 1, height: 1 };
  let polygons = [], open = null, include = true, saved = "[]", before = [], dragged = null;

  const tell = (line = "", wrong = true) => {
    part("told").textContent = line;
    part("told").classList.toggle("wrong", wrong);
    part("told").hidden = line === "";
  };
  const answered = async (request) => {
    const answer = await request.catch(() => { throw new Error("The page's server does not answer: start it again with `frugan masks draw`."); });
    if (answer.status === 401) throw new Error("This page was started anew: open the address that `frugan masks draw` printed.");
    const values = await answer.json().catch(() => ({ error: answer.statusText }));
    if (!answer.ok) throw new Error(values.error || answer.statusText);
    return values;
  };

  // What is drawn.

  const scale = () => canvas.clientWidth / size.width;
  const show = () => {
    const room = canvas.parentElement.clientWidth, most = Math.min(LARGEST, window.innerHeight * SHARE_OF_HEIGHT);
    const wide = Math.round(Math.min(room, most * size.width / size.height)), high = Math.round(wide * size.height / size.width);
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
    canvas.width = wide * devicePixelRatio;
    canvas.height = high * devicePixelRatio;
    pen.scale(canvas.width / size.width, canvas.height / size.height);
    if (picture.complete && picture.naturalWidth) pen.drawImage(picture, 0, 0, size.width, size.height);
    const thin = 1.5 / scale();
    for (const polygon of [...polygons, ...(open ? [open] : [])]) {
      pen.strokeStyle = pen.fillStyle = COLOURS[polygon.include];
      pen.lineWidth = thin;
      pen.beginPath();
      polygon.points.forEach(([x, y]) => pen.lineTo(x, y));
      if (polygon !== open) {
        pen.closePath();
        pen.globalAlpha = 0.22;
        pen.fill();
        pen.globalAlpha = 1;
      }
      pen.stroke();
      polygon.points.forEach(([x, y], number) => {
        const half = (polygon === open && number === 0 ? 3 : 2) * thin;
        pen.fillRect(x - half, y - half, 2 * half, 2 * half);
      });
    }
    showState();
  };
  const showState = () => {
    const face = faces[at];
    part("include").setAttribute("aria-pressed", include);
    part("exclude").setAttribute("aria-pressed", !include);
    part("close").disabled = !open;
    part("undo").disabled = before.length === 0;
    part("delete").disabled = !open && polygons.length === 0;
    part("save").disabled = !unsaved();
    part("previous").disabled = at === 0;
    part("next").disabled = at === faces.length - 1;
    part("name").textContent = face.name;
    const many = faces.filter((one) => one.labelled).length;
    part("where").textContent = `${at + 1} of ${faces.length} · ${many} labelled${face.bits === null ? "" : ` · unsure: ${face.bits.toFixed(3)} bits a pixel`}`;
  };

  // What is changed.

  const state = () => JSON.stringify({ polygons, open, include });
  const unsaved = () => open !== null || JSON.stringify(polygons) !== saved;
  const change = (how) => {
    const was = state();
    tell();
    how();
    if (state() !== was) before.push(was);
    show();
  };
  const undo = () => {
    if (before.length === 0) return;
    ({ polygons, open, include } = JSON.parse(before.pop()));
    tell();
    show();
  };
  const close = () => {
    if (!open) return true;
    if (open.points.length < LEAST_POINTS) {
      tell(`This polygon has ${open.points.length === 1 ? "1 point" : `${open.points.length} points`}; it takes three or more to go round something. Add points, or undo.`);
      return false;
    }
    change(() => { polygons.push(open); open = null; });
    return true;
  };
  const choose = (value) => change(() => {
    include = value;
    if (open) open.include = value;
  });
  const remove = () => change(() => {
    if (open) open = null; else polygons.pop();
  });

  // Points under the pointer.

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const inside = (value, most) => Math.min(Math.max(value, 0), most);
    return [inside((event.clientX - box.left) / scale(), size.width), inside((event.clientY - box.top) / scale(), size.height)];
  };
  const nearest = (event, [x, y]) => {
    const reach = (NEAR[event.pointerType] || NEAR.mouse) / scale();
    const found = [...(open ? [open] : []), ...polygons].flatMap((polygon) => polygon.points.map((point, number) => ({ polygon, point, number, distance: Math.hypot(point[0] - x, point[1] - y) })));
    return found.filter(({ distance }) => distance <= reach).sort((one, other) => one.distance - other.distance)[0];
  };
  canvas.onpointerdown = (event) => {
    if (busy || event.button !== 0 || !event.isPrimary) return;
    event.preventDefault();
    canvas.focus({ preventScroll: true });
    const point = place(event), found = nearest(event, point);
    if (found && found.polygon === open && found.number === 0 && open.points.length >= LEAST_POINTS) {
      close();
    } else if (found) {
      dragged = { point: found.point, was: state() };
      canvas.setPointerCapture(event.pointerId);
    } else {
      change(() => {
        if (!open) open = { include, points: [] };
        open.points.push(point);
      });
    }
  };
  canvas.onpointermove = (event) => {
    if (!dragged) return;
    [dragged.point[0], dragged.point[1]] = place(event);
    show();
  };
  canvas.onpointerup = canvas.onpointercancel = () => {
    if (dragged && state() !== dragged.was) before.push(dragged.was);
    dragged = null;
    showState();
  };

  // From face to face.

  const save = async () => {
    if (!close()) return false;
    const sent = JSON.stringify(polygons);
    if (sent === saved) return true;
    try {
      await answered(fetch(`api/labels/${faces[at].index}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: `{"polygons":${sent}}` }));
    } catch (error) {
      tell(error.message);
      return false;
    }
    saved = sent;
    faces[at].labelled = JSON.parse(sent).length > 0;
    tell("saved", false);
    showState();
    return true;
  };
  const load = async (number) => {
    const told = await answered(fetch(`api/labels/${faces[number].index}`));
    picture.src = `pictures/${faces[number].index}`;
    await picture.decode().catch(() => tell("This picture cannot be shown."));
    [at, size, polygons, open, before, dragged] = [number, told, told.polygons, null, [], null];
    saved = JSON.stringify(polygons);
    show();
  };
  const once = async (doing) => {
    if (busy) return;
    busy = true;
    try { await doing(); } catch (error) { tell(error.message); }
    busy = false;
  };
  const go = (by) => once(async () => {
    if (faces[at + by] && await save()) {
      await load(at + by);
      tell();
    }
  });

  const KEYS = { Enter: close, Backspace: undo, Delete: remove, ArrowRight: () => go(1), ArrowLeft: () => go(-1),
    e: () => choose(!include), s: () => once(save) };
  addEventListener("keydown", (event) => {
    const undoing = event.key === "z" && (event.ctrlKey || event.metaKey);
    if ((event.ctrlKey || event.metaKey || event.altKey) && !undoing) return;
    if (busy) return;
    const doing = undoing ? undo : KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!doing || !faces.length || (event.key === "Enter" && event.target.closest("button, summary"))) return;
    event.preventDefault();
    doing();
  });
  const idle = (doing) => () => { if (!busy) doing(); };
  part("include").onclick = idle(() => choose(true));
  part("exclude").onclick = idle(() => choose(false));
  part("close").onclick = idle(close);
  part("undo").onclick = idle(undo);
  part("delete").onclick = idle(remove);
  part("save").onclick = () => once(save);
  part("previous").onclick = () => go(-1);
  part("next").onclick = () => go(1);
  addEventListener("resize", () => faces.length && show());
  addEventListener("beforeunload", (event) => { if (faces.length && unsaved()) event.preventDefault(); });
  const begun = once(async () => {
    const told = await answered(fetch("api/pictures"));
    faces = told.pictures;
    part("folder").textContent = told.folder;
    await load(0);
  });
  return { begun };
})();
