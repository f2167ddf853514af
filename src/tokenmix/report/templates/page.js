// What a page can do: sort tables, show values under the pointer, hide series, and look through mixing matrices.
// Everything stands in the page itself: no request is made, nothing is evaluated, text is only ever set as text.
"use strict";
(() => {
  const DATA = JSON.parse(document.getElementById("data").textContent);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, attributes = {}, text = null) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== null) element.textContent = text;
    return element;
  };
  const short = (v) => {
    if (v === null || !isFinite(v)) return "–";
    if (v === 0) return "0";
    const size = Math.abs(v);
    if (size >= 1e6) return (v / 1e6).toPrecision(3) + "M";
    if (size >= 1e4) return (v / 1e3).toPrecision(3) + "k";
    return size >= 1e-3 ? String(+v.toPrecision(3)) : v.toExponential(1);
  };

  // ------------------------------------------------------------------------------------------------ tooltip
  const tip = document.getElementById("tip");
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 16 + width > innerWidth ? x - width - 12 : x + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - height - 4))}px`;
  };
  const hide = () => { tip.hidden = true; };

  // ------------------------------------------------------------------------------------------------- tables
  for (const table of $$("table.sortable")) {
    const heads = $$("thead th", table);
    heads.forEach((head, column) => {
      const button = head.querySelector("button.sort");
      if (!button) return;
      button.addEventListener("click", () => {
        const first = head.dataset.first || "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const order = head.getAttribute("aria-sort") === first ? other : first;
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === "" || y === "") return (x === "") - (y === ""); // what is missing stays below
          const [p, q] = [Number(x), Number(y)];
          return sign * (isNaN(p) || isNaN(q) ? x.localeCompare(y) : p - q);
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  // ------------------------------------------------------------------------------------------------- charts
  const hidden = new Set();
  const place = (svg, event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [((event.clientX - box.left) * view.width) / box.width, ((event.clientY - box.top) * view.height) / box.height];
  };
  for (const figure of $$("figure.chart[data-chart]")) {
    const chart = DATA.charts[figure.dataset.chart], svg = figure.querySelector("svg");
    if (!chart || !chart.curves) continue;
    const { left, top, width, height, x: range } = chart.frame;
    const cross = document.createElementNS("http://www.w3.org/2000/svg", "line");
    for (const [name, value] of [["y1", top], ["y2", top + height], ["stroke", "var(--muted)"], ["stroke-dasharray", "2 3"]]) cross.setAttribute(name, value);
    cross.classList.add("gone");
    svg.append(cross);
    svg.addEventListener("pointermove", (event) => {
      const [px] = place(svg, event);
      if (px < left - 8 || px > left + width + 8) { hide(); cross.classList.add("gone"); return; }
      const wanted = range[0] + ((px - left) / width) * (range[1] - range[0]);
      let at = null;
      for (const curve of chart.curves) for (const [x] of curve.points) if (at === null || Math.abs(x - wanted) < Math.abs(at - wanted)) at = x;
      if (at === null) return;
      const lines = [];
      for (const curve of chart.curves) {
        if (hidden.has(curve.series)) continue;
        const point = curve.points.find(([x]) => x === at);
        if (point) lines.push([point[1], `${short(point[1])}  ${curve.name}`]);
      }
      lines.sort((a, b) => (chart.higher ? b[0] - a[0] : a[0] - b[0]));
      const cx = left + ((at - range[0]) / (range[1] - range[0] || 1)) * width;
      cross.setAttribute("x1", cx); cross.setAttribute("x2", cx);
      cross.classList.remove("gone");
      show(`${chart.x} ${at}\n` + lines.map((line) => line[1]).join("\n"), event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", () => { hide(); cross.classList.add("gone"); });
  }
  document.addEventListener("pointerover", (event) => {
    const target = event.target.closest && event.target.closest("[data-tip]");
    if (target) show(target.dataset.tip, event.clientX, event.clientY);
  });
  document.addEventListener("pointerout", (event) => {
    if (event.target.closest && event.target.closest("[data-tip]")) hide();
  });
  for (const legend of $$(".legend")) {
    const own = legend.closest("section");
    for (const button of $$("button[data-series]", legend)) {
      const number = button.dataset.series;
      const mine = () => $$(`svg [data-series="${number}"]`, own);
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        on ? hidden.delete(+number) : hidden.add(+number);
        mine().forEach((shape) => shape.classList.toggle("gone", !on));
      });
      const dim = (on) => $$(".chart svg [data-series]", own).forEach((shape) => shape.classList.toggle("dim", on && shape.dataset.series !== number));
      button.addEventListener("pointerenter", () => dim(true));
      button.addEventListener("pointerleave", () => dim(false));
    }
  }

  // ----------------------------------------------------------------------------------------------- matrices
  const maps = Object.fromEntries(Object.entries(DATA.maps).map(([name, stops]) => {
    const rgb = stops.map((stop) => [1, 3, 5].map((k) => parseInt(stop.slice(k, k + 2), 16)));
    return [name, Array.from({ length: 256 }, (_, level) => {
      const at = (level / 255) * (rgb.length - 1), k = Math.min(Math.floor(at), rgb.length - 2);
      return rgb[k].map((channel, c) => Math.round(channel + (rgb[k + 1][c] - channel) * (at - k)));
    })];
  }));
  const numbers = new Map();
  const unpack = (packed) => { // 16-bit steps between the smallest and the largest value
    if (numbers.has(packed)) return numbers.get(packed);
    const bytes = Uint8Array.from(atob(packed.bits), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer), step = (packed.high - packed.low) / 65535;
    const values = Float32Array.from({ length: bytes.length / 2 }, (_, k) => packed.low + step * view.getUint16(2 * k, true));
    numbers.set(packed, values);
    return values;
  };
  const limits = (values, rows = 1, columns = 0) => {
    let low = 0, high = 0, causal = rows === columns && rows > 4;
    for (let i = 0; causal && i < rows; i++) for (let j = i + 1; j < columns; j++) if (values[i * columns + j]) causal = false;
    if (causal) values = values.subarray(2 * columns); // the first rows have nobody else to draw from
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    const top = Math.max(-low, high) || 1;
    return low < 0 ? ["diverging", -top, top] : ["sequential", 0, top];
  };
  const level = (v, low, high) => Math.max(0, Math.min(255, Math.round(((v - low) / (high - low)) * 255)));
  const paint = (values, rows, columns, [map, low, high]) => {
    const canvas = make("canvas", { width: columns, height: rows });
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    for (let k = 0; k < rows * columns; k++) {
      const [r, g, b] = maps[map][level(values[k], low, high)];
      image.data.set([r, g, b, 255], 4 * k);
    }
    context.putImageData(image, 0, 0);
    return canvas;
  };

  for (const image of $$("image[data-matrix]")) { // heatmaps of the figures: the value under the pointer
    const packed = DATA.matrices[image.dataset.matrix];
    if (!packed) continue;
    const [rows, columns] = packed.shape;
    const name = (names, k) => (names.length ? `${names[k]} (${k + 1})` : String(k + 1));
    image.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect();
      const i = Math.floor(((event.clientY - box.top) / box.height) * rows), j = Math.floor(((event.clientX - box.left) / box.width) * columns);
      if (i < 0 || j < 0 || i >= rows || j >= columns) return;
      const value = unpack(packed)[i * columns + j];
      show(`${name(packed.rows, i)} ← ${name(packed.columns, j)}\n${short(value)}`, event.clientX, event.clientY);
    });
    image.addEventListener("pointerleave", hide);
  }

  const explore = (root) => {
    const models = DATA.explorers[root.dataset.explorer];
    const part = (name) => root.querySelector(`[data-part="${name}"]`);
    const selects = { model: part("model"), kind: part("kind"), layer: part("layer"), head: part("head") };
    const canvas = part("map"), state = { row: null, pinned: false };
    const unique = (list) => [...new Set(list)];
    const fill = (select, options) => {
      const before = select.value;
      select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
      if (options.some(([value]) => String(value) === before)) select.value = before;
      select.closest("label").hidden = options.length < 2 && select === selects.model;
    };
    const model = () => models[+selects.model.value || 0];
    const matrix = () => model().matrices.find((m) => m.label === selects.kind.value && String(m.layer) === selects.layer.value);
    const options = (from) => {
      if (from === "model") fill(selects.kind, unique(model().matrices.map((m) => m.label)).map((label) => [label, label]));
      if (from !== "layer") fill(selects.layer, model().matrices.filter((m) => m.label === selects.kind.value).map((m) => [m.layer, `layer ${m.layer}`]));
      const heads = matrix().packed.shape[0];
      fill(selects.head, matrix().mean ? [["mean", "mean of all heads"]] : heads === 1 ? [["1", "the only one"]] : [["mean", "mean of all heads"], ...Array.from({ length: heads }, (_, h) => [String(h + 1), `head ${h + 1}`])]);
    };
    const current = () => {
      const { packed } = matrix(), [heads, rows, columns] = packed.shape, all = unpack(packed), size = rows * columns;
      if (selects.head.value !== "mean") return { rows, columns, values: all.subarray((selects.head.value - 1) * size, selects.head.value * size) };
      const values = new Float32Array(size);
      for (let h = 0; h < heads; h++) for (let k = 0; k < size; k++) values[k] += all[h * size + k] / heads;
      return { rows, columns, values };
    };
    let drawn = null;
    const draw = () => {
      const { rows, columns, values } = current(), m = matrix(), names = [model().tokens[m.rows], model().tokens[m.columns]];
      const colours = limits(values, rows, columns), style = getComputedStyle(root), ratio = devicePixelRatio || 1;
      const room = Math.min(432, root.querySelector(".views").clientWidth);
      const context = canvas.getContext("2d");
      context.font = "11px " + style.fontFamily;
      const widest = (list) => Math.min(96, Math.max(...list.map((t) => context.measureText(t).width)) + 8);
      let left = 18, bottom = 18;
      const fits = (count, edge) => (room - edge) / count >= 11;
      const written = [fits(rows, 60) && !model().grid, fits(columns, 60) && !model().grid];
      if (written[0]) left = widest(names[0]);
      if (written[1]) bottom = widest(names[1]);
      const cell = Math.min((room - left - 2) / columns, (room - 2) / rows, 34);
      const width = cell * columns, height = cell * rows;
      canvas.width = Math.ceil((left + width + 2) * ratio); canvas.height = Math.ceil((height + bottom + 2) * ratio);
      canvas.style.width = `${canvas.width / ratio}px`; canvas.style.height = `${canvas.height / ratio}px`;
      context.scale(ratio, ratio);
      context.imageSmoothingEnabled = false;
      context.drawImage(paint(values, rows, columns, colours), left, 1, width, height);
      context.font = "11px " + style.fontFamily;
      const [ink, muted] = [style.getPropertyValue("--ink"), style.getPropertyValue("--muted")];
      context.fillStyle = muted;
      context.textBaseline = "middle";
      context.textAlign = "right";
      if (written[0]) names[0].forEach((text, i) => { context.fillStyle = i === state.row ? ink : muted; context.fillText(text, left - 5, 1 + (i + 0.5) * cell, left - 8); });
      context.fillStyle = muted;
      if (written[1]) names[1].forEach((text, j) => { context.save(); context.translate(left + (j + 0.5) * cell, height + 5); context.rotate(-Math.PI / 2); context.fillText(text, 0, 0, bottom - 8); context.restore(); });
      if (!written[0]) { context.save(); context.translate(8, height / 2); context.rotate(-Math.PI / 2); context.textAlign = "center"; context.fillText("token that asks", 0, 0); context.restore(); }
      if (!written[1]) { context.textAlign = "center"; context.fillText("token drawn from", left + width / 2, height + 11); }
      if (state.row !== null && state.row < rows) {
        context.strokeStyle = style.getPropertyValue("--bad"); context.lineWidth = 1.5;
        context.strokeRect(left, 1 + state.row * cell, width, Math.max(cell, 2));
      }
      drawn = { left, cell, rows, columns, values, colours, names };
      canvas.setAttribute("aria-label", `${model().name}, ${m.label}, layer ${m.layer}, ${selects.head.selectedOptions[0].textContent}: ${rows} × ${columns} mixing weights`);
      part("low").textContent = short(colours[1]); part("high").textContent = short(colours[2]);
      const bar = part("bar"), scale = paint(Float32Array.from({ length: 256 }, (_, k) => k), 1, 256, [colours[0], 0, 255]);
      bar.getContext("2d").drawImage(scale, 0, 0, bar.width, bar.height);
    };
    const askers = () => {
      const { names } = drawn;
      part("asking").replaceChildren(...names[0].map((text, i) => {
        const button = make("button", { type: "button", "aria-pressed": "false" }, text);
        button.addEventListener("pointerenter", () => { if (!state.pinned) pick(i); });
        button.addEventListener("focus", () => pick(i));
        button.addEventListener("click", () => { state.pinned = !(state.pinned && state.row === i); pick(i); });
        return button;
      }));
    };
    const pick = (row) => {
      state.row = row === null ? null : Math.min(row, drawn.rows - 1);
      draw();
      $$("button", part("asking")).forEach((button, i) => button.setAttribute("aria-pressed", String(i === state.row)));
      const { values, columns, names } = drawn, weights = values.subarray(state.row * columns, (state.row + 1) * columns);
      const own = limits(weights);
      part("asker").textContent = `“${names[0][state.row]}”, ${state.row + 1} of ${drawn.rows}`;
      const order = [...weights.keys()].sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a])).slice(0, 6);
      const top = Math.abs(weights[order[0]]) || 1;
      part("bars").replaceChildren(...order.flatMap((j) => {
        const track = make("span"), bar = make("div", { class: weights[j] < 0 ? "bar negative" : "bar" });
        bar.style.width = `${(100 * Math.abs(weights[j])) / top}%`;
        track.append(bar);
        return [make("span", { class: "name" }, `${names[1][j]}`), track, make("span", { class: "value" }, short(weights[j]))];
      }));
      const answers = part("answers"), grid = model().grid;
      answers.classList.toggle("picture", Boolean(grid));
      if (grid) {
        const [side, offset] = grid, picture = paint(weights.subarray(offset), side, side, own), size = Math.min(220, room(answers));
        const view = make("canvas", { width: size, height: size, role: "img", "aria-label": "what this patch draws from every patch of the image" });
        const context = view.getContext("2d");
        context.imageSmoothingEnabled = false;
        context.drawImage(picture, 0, 0, size, size);
        const at = state.row - offset;
        if (at >= 0) { context.strokeStyle = "#fff"; context.lineWidth = 2; context.strokeRect(((at % side) * size) / side + 1, (Math.floor(at / side) * size) / side + 1, size / side - 2, size / side - 2); }
        answers.replaceChildren(view);
        return;
      }
      answers.replaceChildren(...names[1].map((text, j) => {
        const chip = make("span", {}, text), [r, g, b] = maps[own[0]][level(weights[j], own[1], own[2])];
        chip.style.backgroundColor = `rgb(${r}, ${g}, ${b})`;
        chip.style.color = 0.2126 * r + 0.7152 * g + 0.0722 * b > 140 ? "#111" : "#fff";
        chip.append(make("span", { class: "weight" }, short(weights[j])));
        return chip;
      }));
    };
    const room = (element) => Math.max(120, element.clientWidth - 8);
    const refresh = (from) => { options(from); draw(); askers(); pick(Math.min(state.row ?? 0, drawn.rows - 1)); };
    for (const [name, select] of Object.entries(selects)) select.addEventListener("change", () => refresh(name));
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const i = Math.floor((event.clientY - box.top - 1) / drawn.cell), j = Math.floor((event.clientX - box.left - drawn.left) / drawn.cell);
      if (i < 0 || i >= drawn.rows) return;
      if (i !== state.row && !state.pinned) pick(i);
      if (j >= 0 && j < drawn.columns) show(`${drawn.names[0][i]} ← ${drawn.names[1][j]}\n${short(drawn.values[i * drawn.columns + j])}`, event.clientX, event.clientY);
      else hide();
    });
    canvas.addEventListener("pointerleave", hide);
    canvas.addEventListener("click", () => { state.pinned = !state.pinned; });
    fill(selects.model, models.map((m, k) => [k, m.name]));
    refresh("model");
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", draw);
    addEventListener("resize", draw);
  };
  $$("[data-explorer]").forEach(explore);

  // ------------------------------------------------------------------------------------------------- copying
  for (const button of $$("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre").textContent;
      try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(button.parentElement.querySelector("pre")); button.textContent = "Selected"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }
})();
