// The data of the page, and how its numbers and names are written.
"use strict";

const TYPES = { u8: Uint8Array, u32: Uint32Array, i32: Int32Array, f64: Float64Array };

// Turns {"u32": base64} anywhere in the data into the typed array.
function unpacked(value) {
  if (Array.isArray(value)) return value.map(unpacked);
  if (value === null || typeof value !== "object") return value;
  const keys = Object.keys(value);
  if (keys.length === 1 && TYPES[keys[0]] && typeof value[keys[0]] === "string") {
    const text = atob(value[keys[0]]), bytes = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
    return new TYPES[keys[0]](bytes.buffer);
  }
  return Object.fromEntries(keys.map((key) => [key, unpacked(value[key])]));
}

const data = unpacked(JSON.parse(document.getElementById("data").textContent));
const byId = (id) => document.getElementById(id);

function sizeText(bytes) {
  const magnitude = Math.abs(bytes);
  for (const [power, prefix] of [[4, "Ti"], [3, "Gi"], [2, "Mi"], [1, "Ki"]]) {
    if (magnitude >= 1024 ** power) return (bytes / 1024 ** power).toFixed(2) + " " + prefix + "B";
  }
  return bytes + " B";
}

const unitsText = (units) => sizeText(units * data.unit_bytes);
const countText = (count) => count.toLocaleString("en-US");
const words = (label) => label.replaceAll("_", " ");

function timeText(seconds) {
  if (seconds >= 1) return seconds.toFixed(3) + " s";
  if (seconds >= 1e-3) return (seconds * 1e3).toFixed(2) + " ms";
  return (seconds * 1e6).toFixed(0) + " µs";
}

// The place of a request: "in forward of iteration 1".
function placeText(request) {
  const within = (spans) => {
    let low = 0, high = spans.length - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (spans[middle].last < request) low = middle + 1;
      else if (spans[middle].first > request) high = middle - 1;
      else return spans[middle].label;
    }
    return null;
  };
  const phase = within(data.phases), iteration = within(data.iterations);
  if (phase !== null && iteration !== null) return "in " + words(phase) + " of iteration " + iteration;
  if (iteration !== null) return "in iteration " + iteration;
  return phase === null ? "outside of all iterations" : "in " + words(phase);
}

// Index of the last of ascending values that is not above the wanted one; 0 where all are.
function lastAtMost(values, wanted) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= wanted) low = middle;
    else high = middle - 1;
  }
  return low;
}

// What is known of a block, a line each.
function blockText(block) {
  const blocks = data.blocks, end = data.requests;
  const name = (list, column) => (blocks[column][block] < 0 ? null : data.names[list][blocks[column][block]]);
  const phase = words(data.phase_labels[blocks.phase[block]]);
  const iteration = blocks.iteration[block];
  const place = (phase === "other" ? "" : phase + (iteration < 0 ? "" : " of ")) + (iteration < 0 ? "" : "iteration " + iteration);
  const freed = blocks.free_request[block];
  return [
    unitsText(blocks.size[block]) + " " + words(data.categories[blocks.category[block]]),
    name("modules", "module"),
    [name("operators", "operator"), name("lines", "line")].filter(Boolean).join(" at ") || null,
    "born " + (place ? "in " + place : "outside of all iterations") + " (request " + countText(blocks.alloc_request[block]) + ")",
    freed >= end
      ? "never freed"
      : "freed " + placeText(freed) + " (request " + countText(freed) + ")" + (blocks.persistent[block] ? ", outlives its iteration" : ""),
  ].filter(Boolean);
}

// A colour of the style sheet as the theme in force has it.
const probe = document.createElement("i");
probe.hidden = true;
document.body.append(probe);
function colour(name) {
  probe.style.color = "var(--" + name + ")";
  return getComputedStyle(probe).color;
}

function element(name, classes, text) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text;
  return made;
}

// The one tooltip; texts only, never markup.
const tip = {
  show(event, lines) {
    const box = byId("tip");
    box.textContent = lines.join("\n");
    box.hidden = false;
    const width = box.offsetWidth, height = box.offsetHeight;
    box.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8)) + "px";
    box.style.top = (event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18) + "px";
  },
  hide() {
    byId("tip").hidden = true;
  },
};

// A canvas as large as its box, in pixels of the screen.
function fitted(canvas) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

// The picture of a canvas, to go back to when what is marked on it changes.
function kept(canvas) {
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  if (copy.width && copy.height) copy.getContext("2d").drawImage(canvas, 0, 0);
  return copy;
}

// Puts the kept picture back; the pen counts in pixels of the page again.
function restored(canvas, copy) {
  const pen = canvas.getContext("2d"), ratio = devicePixelRatio || 1;
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  if (copy.width && copy.height) pen.drawImage(copy, 0, 0);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}
