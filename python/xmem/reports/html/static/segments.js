// The allocator's segments at the peak of reserved memory, to scale.
"use strict";

const segments = (() => {
  const map = data.segments, canvas = byId("segments-canvas"), said = byId("segments-said");
  const count = map.bytes.length, pieces = map.piece_bytes.length;
  const left = 78, gap = 2;
  let selected = -1, rowHigh = 14, scale = 1;

  function hatch(pen) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const brush = tile.getContext("2d");
    brush.strokeStyle = colour("hatch");
    brush.lineWidth = 1;
    brush.beginPath();
    brush.moveTo(-1, 7);
    brush.lineTo(7, -1);
    brush.stroke();
    return pen.createPattern(tile, "repeat");
  }

  const box = (piece) => [
    left + map.piece_offset[piece] * scale,
    map.piece_segment[piece] * (rowHigh + gap) + 2,
    Math.max(map.piece_bytes[piece] * scale, 0.5),
  ];

  function draw() {
    rowHigh = count > 120 ? 4 : count > 60 ? 8 : 14;
    canvas.style.height = count * (rowHigh + gap) + 6 + "px";
    const { pen, width } = fitted(canvas);
    let widest = 1;
    for (const units of map.bytes) widest = Math.max(widest, units);
    scale = (width - left - 4) / widest;
    const fills = data.categories.map((label) => colour("c-" + label)), free = hatch(pen), edge = colour("panel");
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "right";
    for (let row = 0; row < count; row++) {
      pen.fillStyle = colour("soft");
      const every = Math.ceil(12 / (rowHigh + gap));
      if (row % every === 0) pen.fillText(unitsText(map.bytes[row]), left - 8, row * (rowHigh + gap) + Math.min(rowHigh, 12) + 1);
      pen.strokeStyle = colour("rule");
      pen.lineWidth = 1;
      pen.strokeRect(left - 0.5, row * (rowHigh + gap) + 1.5, map.bytes[row] * scale + 1, rowHigh + 1);
    }
    for (let piece = 0; piece < pieces; piece++) {
      const [x, y, wide] = box(piece), kind = map.piece_category[piece];
      pen.fillStyle = kind === data.free ? free : fills[kind];
      pen.fillRect(x, y, wide, rowHigh);
      if (wide > 4) {
        pen.fillStyle = edge;
        pen.fillRect(x + wide - 0.7, y, 0.7, rowHigh);
      }
    }
    if (selected >= 0) {
      const [x, y, wide] = box(selected);
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 2;
      pen.strokeRect(x, y, Math.max(wide, 2), rowHigh);
    }
  }

  function text(piece) {
    const segment = map.piece_segment[piece], place = "in a segment of " + unitsText(map.bytes[segment]) + (map.small[segment] ? " for small blocks" : "");
    if (map.piece_category[piece] === data.free) return [unitsText(map.piece_bytes[piece]) + " free", place];
    if (map.piece_block[piece] >= 0) return [...blockText(map.piece_block[piece]), place];
    const many = map.piece_blocks[piece];
    return [
      countText(many) + (many === 1 ? " block" : " small blocks") + ", " + unitsText(map.piece_bytes[piece]) + ", " + words(data.categories[map.piece_category[piece]]),
      place,
    ];
  }

  function pieceAt(x, y) {
    const row = Math.floor((y - 1) / (rowHigh + gap)), units = (x - left) / scale;
    if (row < 0 || row >= count || units < 0 || units > map.bytes[row]) return -1;
    let low = 0, high = pieces - 1;
    const before = (piece) => map.piece_segment[piece] < row || (map.piece_segment[piece] === row && map.piece_offset[piece] <= units);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (before(middle)) low = middle;
      else high = middle - 1;
    }
    return map.piece_segment[low] === row ? low : -1;
  }

  function select(piece) {
    selected = piece;
    said.textContent = piece < 0 ? "\u00a0" : text(piece).join(" · ");
    draw();
  }

  canvas.addEventListener("mousemove", (event) => {
    const piece = pieceAt(event.offsetX, event.offsetY);
    if (piece !== selected) select(piece);
    if (piece < 0) tip.hide();
    else tip.show(event, text(piece));
  });
  canvas.addEventListener("mouseleave", () => { tip.hide(); select(-1); });
  canvas.addEventListener("keydown", (event) => {
    let next = { ArrowRight: selected + 1, ArrowLeft: selected - 1 }[event.key];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const row = selected < 0 ? 0 : map.piece_segment[selected] + (event.key === "ArrowDown" ? 1 : -1);
      next = map.piece_segment.indexOf((row + count) % count);
    }
    if (next === undefined) return;
    event.preventDefault();
    select((next + pieces) % pieces);
  });
  return { draw };
})();
