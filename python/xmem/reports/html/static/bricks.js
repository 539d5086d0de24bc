// Blocks around the peak, stacked in the order of their allocation.
"use strict";

const bricks = (() => {
  const { request, block } = data.bricks, blocks = data.blocks;
  const columns = request.length, canvas = byId("bricks-canvas"), said = byId("bricks-said");
  const margin = { left: 78, top: 8, bottom: 22, right: 8 };
  let view = null, picture = null, selected = -1;

  // Bytes of the blocks that are not drawn one by one: by category, a row of columns each.
  const kinds = data.categories.length, rest = Float64Array.from(data.bricks.by_category);
  let most = 1;
  for (let column = 0; column < columns; column++) {
    let held = 0;
    for (let kind = 0; kind < kinds; kind++) held += rest[kind * columns + column];
    most = Math.max(most, held);
  }

  // Where each brick stands in each column where it is alive.
  const alive = Array.from({ length: columns }, () => []);
  const shown = new Float64Array(columns);
  const stretches = [];
  Array.from(block).forEach((row, brick) => {
    let begin = lastAtMost(request, blocks.alloc_request[row]);
    if (request[begin] < blocks.alloc_request[row]) begin++;
    const size = blocks.size[row];
    let run = null;
    for (let column = begin; column < columns && request[column] < blocks.free_request[row]; column++) {
      alive[column].push(brick);
      if (run && run.offset === shown[column]) run.end = column;
      else stretches.push((run = { brick, offset: shown[column], begin: column, end: column }));
      shown[column] += size;
      rest[blocks.category[row] * columns + column] -= size;
    }
  });

  function draw() {
    const { pen, width, height } = fitted(canvas);
    const wide = width - margin.left - margin.right, high = height - margin.top - margin.bottom;
    const x = (column) => margin.left + Math.round((column / columns) * wide);
    const y = (units) => margin.top + high - (units / (most * 1.03)) * high;
    view = { x, y, wide, high, width, height };
    const fills = data.categories.map((label) => colour("c-" + label)), edge = colour("panel");
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "right";
    const step = 2 ** Math.floor(Math.log2((most * data.unit_bytes) / 3)) / data.unit_bytes;
    for (let value = 0; value <= most; value += step) {
      pen.fillStyle = colour("rule");
      pen.fillRect(margin.left, y(value), wide, 1);
      pen.fillStyle = colour("soft");
      pen.fillText(unitsText(value), margin.left - 8, y(value) + 4);
    }
    pen.globalAlpha = 0.5;
    for (let column = 0; column < columns; column++) {
      let offset = shown[column];
      for (const kind of data.stack) {
        const units = rest[kind * columns + column];
        if (units <= 0) continue;
        pen.fillStyle = fills[kind];
        pen.fillRect(x(column), y(offset + units), x(column + 1) - x(column), y(offset) - y(offset + units));
        offset += units;
      }
    }
    pen.globalAlpha = 1;
    for (const part of stretches) {
      const row = block[part.brick];
      const top = y(part.offset + blocks.size[row]), tall = y(part.offset) - top, left = x(part.begin), long = x(part.end + 1) - left;
      pen.fillStyle = fills[blocks.category[row]];
      pen.fillRect(left, top, long + 0.4, tall + 0.2);
      if (tall > 3) {
        pen.fillStyle = edge;
        pen.fillRect(left, top, long, 0.7);
        if (long > 4) pen.fillRect(left, top, 0.7, tall);
      }
    }
    const at = lastAtMost(request, data.curve.request[data.peak]);
    pen.fillStyle = colour("ink");
    pen.beginPath();
    pen.moveTo(x(at + 0.5), height - margin.bottom + 2);
    pen.lineTo(x(at + 0.5) - 4, height - margin.bottom + 8);
    pen.lineTo(x(at + 0.5) + 4, height - margin.bottom + 8);
    pen.fill();
    pen.textAlign = "left";
    pen.fillText("peak", Math.min(x(at + 0.5) + 8, width - 40), height - margin.bottom + 11);
    pen.fillStyle = colour("soft");
    if (x(at) > margin.left + 160) {
      pen.textAlign = "left";
      pen.fillText("request " + countText(request[0]), margin.left, height - margin.bottom + 11);
    }
    if (x(at) < width - 180) {
      pen.textAlign = "right";
      pen.fillText("request " + countText(request[columns - 1]), width - margin.right, height - margin.bottom + 11);
    }
    picture = kept(canvas);
    mark();
  }

  // Darkens the chosen brick wherever it lies.
  function mark() {
    const pen = restored(canvas, picture);
    if (selected < 0) return;
    pen.fillStyle = colour("ink");
    pen.globalAlpha = 0.35;
    for (const part of stretches) {
      if (part.brick !== selected) continue;
      const top = view.y(part.offset + blocks.size[block[selected]]), left = view.x(part.begin);
      pen.fillRect(left, top, view.x(part.end + 1) - left, Math.max(view.y(part.offset) - top, 1));
    }
    pen.globalAlpha = 1;
  }

  // The brick under a point of the canvas, -1 where there is none.
  function brickAt(left, top) {
    const column = Math.floor(((left - margin.left) / view.wide) * columns);
    if (column < 0 || column >= columns) return -1;
    let offset = 0;
    for (const brick of alive[column]) {
      offset += blocks.size[block[brick]];
      if (top >= view.y(offset)) return top <= view.y(0) ? brick : -1;
    }
    return -1;
  }

  function select(brick) {
    selected = brick;
    said.textContent = brick < 0 ? "\u00a0" : blockText(block[brick]).join(" · ");
    mark();
  }

  canvas.addEventListener("mousemove", (event) => {
    const brick = brickAt(event.offsetX, event.offsetY);
    if (brick !== selected) select(brick);
    if (brick < 0) tip.hide();
    else tip.show(event, blockText(block[brick]));
  });
  canvas.addEventListener("mouseleave", () => { tip.hide(); select(-1); });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    select((selected + step + block.length) % block.length);
  });
  return { draw };
})();
