// The memory curve: categories stacked, reserved and active above them, iterations and phases shaded.
"use strict";

const curve = (() => {
  const drawn = data.curve, count = drawn.request.length;
  const scale = data.unit_bytes;
  const box = byId("plot");
  const height = 380, RULER = 16;
  const PHASE_TONE = { forward: 0.06, backward: 0.14, optimizer_step: 0.24, zero_grad: 0.04, load: 0.04 };
  let axis = "time", plot = null, chosen = data.peak, listener = () => {};

  const column = (units) => Float64Array.from(units, (value) => value * scale);
  const reserved = column(drawn.reserved), active = drawn.active && column(drawn.active);

  // Each stacked category's upper edge, from the top of the stack to its bottom: later ones are painted over earlier.
  const held = data.stack.filter((kind) => {
    for (let at = 0; at < count; at++) if (drawn.by_category[kind * count + at]) return true;
    return false;
  });
  const edges = [];
  const edge = new Float64Array(count);
  for (const kind of held) {
    for (let at = 0; at < count; at++) edge[at] += drawn.by_category[kind * count + at] * scale;
    edges.unshift({ kind, values: Float64Array.from(edge) });
  }

  const across = () => (axis === "time" ? drawn.time_s : Float64Array.from(drawn.request));
  const spanEnds = (span) => (axis === "time" ? [span.begin_s, span.end_s] : [span.first, span.last]);

  // A ruler of iterations and phases above the plot, and faint stripes below it.
  function shade(chart) {
    const { ctx, bbox } = chart, ratio = devicePixelRatio || 1, line = RULER * ratio;
    const right = bbox.left + bbox.width;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top - 2 * line, bbox.width, bbox.height + 2 * line);
    ctx.clip();
    ctx.font = 11 * ratio + "px system-ui, sans-serif";
    const row = (spans, top, fill, text) =>
      spans.forEach((span, number) => {
        const [begin, end] = spanEnds(span).map((value) => chart.valToPos(value, "x", true));
        if (end < bbox.left || begin > right) return;
        const wide = Math.max(end - begin, 1);
        ctx.fillStyle = colour("ink");
        ctx.globalAlpha = fill(span, number);
        ctx.fillRect(begin, top, wide - (wide > 3 ? ratio : 0), line - ratio);
        if (top > bbox.top - 1.5 * line) {
          ctx.globalAlpha *= 0.35;
          ctx.fillRect(begin, bbox.top, wide, bbox.height);
        }
        ctx.globalAlpha = 1;
        const from = Math.max(begin, bbox.left) + 4 * ratio, label = text(span);
        if (Math.min(end, right) - from > ctx.measureText(label).width + 3 * ratio) {
          ctx.fillStyle = colour("soft");
          ctx.fillText(label, from, top + line - 4.5 * ratio);
        }
      });
    row(data.iterations, bbox.top - 2 * line, (_, number) => (number % 2 ? 0.04 : 0.09), (span) => "iteration " + span.label);
    row(data.phases, bbox.top - line, (span) => PHASE_TONE[span.label] || 0.05, (span) => words(span.label));
    ctx.restore();
  }

  function annotate(chart) {
    const { ctx, bbox } = chart, ratio = devicePixelRatio || 1;
    ctx.save();
    if (data.capacity_bytes !== null) {
      const level = chart.valToPos(data.capacity_bytes, "y", true);
      if (level >= bbox.top && level <= bbox.top + bbox.height) {
        ctx.strokeStyle = colour("capacity");
        ctx.lineWidth = 1.5 * ratio;
        ctx.setLineDash([6 * ratio, 4 * ratio]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, level);
        ctx.lineTo(bbox.left + bbox.width, level);
        ctx.stroke();
        ctx.fillStyle = colour("capacity");
        ctx.font = 11 * ratio + "px system-ui, sans-serif";
        ctx.textAlign = "right";
        ctx.setLineDash([]);
        ctx.lineWidth = 3 * ratio;
        ctx.strokeStyle = colour("panel");
        ctx.strokeText(data.capacity_text, bbox.left + bbox.width - 6 * ratio, level - 5 * ratio);
        ctx.fillText(data.capacity_text, bbox.left + bbox.width - 6 * ratio, level - 5 * ratio);
      }
    }
    const x = chart.valToPos(chart.data[0][data.peak], "x", true);
    const y = chart.valToPos(drawn.allocated[data.peak] * scale, "y", true);
    if (x >= bbox.left && x <= bbox.left + bbox.width) {
      ctx.setLineDash([]);
      ctx.beginPath();
      ctx.arc(x, y, 4.5 * ratio, 0, 7);
      ctx.fillStyle = colour("panel");
      ctx.fill();
      ctx.lineWidth = 2 * ratio;
      ctx.strokeStyle = colour("ink");
      ctx.stroke();
    }
    ctx.restore();
    marker();
  }

  function ceiling() {
    let top = 0;
    for (const value of reserved) top = Math.max(top, value);
    const capacity = data.capacity_bytes;
    if (capacity !== null && capacity < 2.5 * top) top = Math.max(top, capacity);
    return top * 1.06;
  }

  // Round sizes: multiples of a power of two.
  function sizeTicks(low, high) {
    const step = 2 ** Math.floor(Math.log2((high - low) / 3));
    const ticks = [];
    for (let value = Math.ceil(low / step) * step; value <= high; value += step) ticks.push(value);
    return ticks;
  }

  // Times in the unit that the whole run is told in.
  const [unit, perUnit] = drawn.time_s[count - 1] >= 2 ? ["s", 1] : drawn.time_s[count - 1] >= 2e-3 ? ["ms", 1e3] : ["µs", 1e6];
  const secondsText = (seconds) => Number((seconds * perUnit).toPrecision(6)) + " " + unit;

  function line(name, width) {
    return { stroke: () => colour(name), width, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) };
  }

  function draw() {
    const zoom = plot && plot.axisName === axis ? { ...plot.scales.x } : null;
    if (plot) plot.destroy();
    const grid = { stroke: () => colour("rule"), width: 1 };
    const areas = edges.map(({ kind }) => ({
      label: words(data.categories[kind]),
      fill: () => colour("c-" + data.categories[kind]),
      width: 0,
      points: { show: false },
      paths: uPlot.paths.stepped({ align: 1 }),
    }));
    const lines = [{ label: "reserved", ...line("reserved", 1.6) }];
    if (active) lines.unshift({ label: "active", ...line("active", 1.2) });
    const top = ceiling();
    plot = new uPlot(
      {
        width: box.clientWidth,
        height,
        padding: [2 * RULER + 2, 12, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: true, y: false, dist: 6 }, points: { show: false } },
        scales: { x: { time: false }, y: { range: [0, top] } },
        axes: [
          { stroke: () => colour("soft"), grid: { show: false }, ticks: grid, size: 32, space: 80, values: (_, values) => values.map(axis === "time" ? secondsText : countText) },
          { stroke: () => colour("soft"), grid, ticks: grid, size: 88, splits: () => sizeTicks(0, top), values: (_, values) => values.map(sizeText) },
        ],
        series: [{}, ...areas, ...lines],
        hooks: { drawClear: [shade], draw: [annotate], setCursor: [hover] },
      },
      [across(), ...edges.map((one) => one.values), ...(active ? [active] : []), reserved],
      box,
    );
    plot.axisName = axis;
    if (zoom && zoom.min !== null) plot.setScale("x", zoom);
    plot.over.append(element("div", "chosen"));
    plot.over.addEventListener("mouseleave", tip.hide);
    let pressed = 0;
    plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    plot.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - pressed) < 5) choose(nearest(event));
    });
    marker();
  }

  function nearest(event) {
    const left = event.clientX - plot.over.getBoundingClientRect().left;
    const at = lastAtMost(plot.data[0], plot.posToVal(left, "x"));
    const next = Math.min(at + 1, count - 1);
    const pixels = (index) => Math.abs(plot.valToPos(plot.data[0][index], "x") - left);
    // A step holds until the next instant; one that is reached within three pixels is meant.
    return pixels(next) <= 3 && pixels(next) < pixels(at) ? next : at;
  }

  function hover(chart) {
    const { left, top } = chart.cursor;
    if (left < 0) return tip.hide();
    const at = lastAtMost(chart.data[0], chart.posToVal(left, "x"));
    const frame = chart.over.getBoundingClientRect();
    const lines = [
      timeText(drawn.time_s[at]) + ", " + placeText(drawn.request[at]),
      unitsText(drawn.allocated[at]) + " allocated",
      ...(active ? [sizeText(active[at]) + " active"] : []),
      sizeText(reserved[at]) + " reserved",
    ];
    return tip.show({ clientX: frame.left + left, clientY: frame.top + top }, lines);
  }

  function marker() {
    const mark = plot && plot.over.querySelector(".chosen");
    if (mark) mark.style.left = plot.valToPos(plot.data[0][chosen], "x") + "px";
  }

  function choose(at, options = {}) {
    chosen = Math.max(0, Math.min(count - 1, at));
    marker();
    if (!options.quiet) history.replaceState(null, "", "#t=" + drawn.request[chosen]);
    listener(chosen);
  }

  box.addEventListener("keydown", (event) => {
    const step = event.shiftKey ? 20 : 1;
    const target = { ArrowLeft: chosen - step, ArrowRight: chosen + step, Home: 0, End: count - 1, p: data.peak, P: data.peak }[event.key];
    if (target === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(target);
  });
  for (const button of document.querySelectorAll("[data-axis]")) {
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", String(other === button));
      draw();
    });
  }
  return {
    draw,
    choose,
    onChoose(callback) { listener = callback; },
    // The instant that "#t=REQUEST" names, null where the address names none.
    fromAddress() {
      const named = /^#t=(\d+)$/.exec(location.hash);
      return named ? lastAtMost(drawn.request, Number(named[1])) : null;
    },
  };
})();
