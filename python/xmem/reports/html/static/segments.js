// The allocator's segments at the peak of reserved memory, to scale.
"use strict";

const segments = (() => {
  const map = data.segments, canvas = byId("segments-canvas"), said = byId("segments-said");
  const count = map.bytes.length, pieces = map.piece_bytes.length;
  const LEFT = 78, HIGH = 15, GAP = 3, ROWS = 30;
  let selected = -1, scale = 1, places = [], picture = null;

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

  const box = (piece) => {
    const { x, row } = places[map.piece_segment[piece]];
    return [x + map.piece_offset[piece] * scale, row * (HIGH + GAP) + 2, Math.max(map.piece_bytes[piece] * scale, 0.5)];
  };

  // Segments side by side, the largest first, in as many rows as it takes.
  function lay(width) {
    const room = width - LEFT - 4;
    let widest = 1, total = 0;
    for (const units of map.bytes) {
      widest = Math.max(widest, units);
      total += units;
    }
    scale = Math.min(room / widest, (ROWS * room) / total);
    let x = LEFT, row = 0;
    places = Array.from(map.bytes, (units) => {
      const wide = Math.max(units * scale, 1.5);
      if (x > LEFT && x + wide > width - 3) {
        x = LEFT;
        row++;
      }
      const place = { x, row, wide };
      x += wide + GAP + 1;
      return place;
    });
    return row + 1;
  }

  function draw() {
    canvas.style.height = lay(canvas.clientWidth) * (HIGH + GAP) + 6 + "px";
    const { pen } = fitted(canvas);
    const fills = data.categories.map((label) => colour("c-" + label)), free = hatch(pen), edge = colour("panel");
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "right";
    places.forEach(({ x, row, wide }, segment) => {
      pen.fillStyle = colour("soft");
      if (x === LEFT) pen.fillText(unitsText(map.bytes[segment]), LEFT - 8, row * (HIGH + GAP) + 13);
      pen.strokeStyle = colour("rule");
      pen.lineWidth = 1;
      pen.strokeRect(x - 0.5, row * (HIGH + GAP) + 1.5, wide + 1, HIGH + 1);
    });
    for (let piece = 0; piece < pieces; piece++) {
      const [x, y, wide] = box(piece), kind = map.piece_category[piece];
      pen.fillStyle = kind === data.free ? free : fills[kind];
      pen.fillRect(x, y, wide, HIGH);
      if (wide > 4) {
        pen.fillStyle = edge;
        pen.fillRect(x + wide - 0.7, y, 0.7, HIGH);
      }
    }
    picture = kept(canvas);
    mark();
  }

  // Frames the chosen piece.
  function mark() {
    const pen = restored(canvas, picture);
    if (selected < 0) return;
    const [x, y, wide] = box(selected);
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 2;
    pen.strokeRect(x, y, Math.max(wide, 2), HIGH);
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
    const row = Math.floor((y - 1) / (HIGH + GAP));
    const segment = places.findIndex((place) => place.row === row && x >= place.x && x <= place.x + place.wide);
    if (segment < 0) return -1;
    const units = (x - places[segment].x) / scale;
    let low = 0, high = pieces - 1;
    const before = (piece) => map.piece_segment[piece] < segment || (map.piece_segment[piece] === segment && map.piece_offset[piece] <= units);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (before(middle)) low = middle;
      else high = middle - 1;
    }
    return map.piece_segment[low] === segment ? low : -1;
  }

  function select(piece) {
    selected = piece;
    said.textContent = piece < 0 ? "\u00a0" : text(piece).join(" · ");
    mark();
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
      const segment = selected < 0 ? 0 : map.piece_segment[selected] + (event.key === "ArrowDown" ? 1 : -1);
      next = map.piece_segment.indexOf((segment + count) % count);
    }
    if (next === undefined) return;
    event.preventDefault();
    select((next + pieces) % pieces);
  });
  return { draw };
})();
