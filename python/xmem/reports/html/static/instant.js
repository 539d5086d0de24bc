// What is alive at the chosen instant, by category and by module.
"use strict";

const instant = (() => {
  const drawn = data.curve, count = drawn.request.length;

  function swatchRow(label, units, share, kind) {
    const row = element("tr"), head = element("th");
    head.scope = "row";
    if (kind) head.append(element("i", "swatch c-" + kind), label);
    else {
      head.className = "path";
      head.textContent = label;
    }
    row.append(head, element("td", "number", unitsText(units)));
    if (kind) row.append(element("td", "number", (100 * share).toFixed(1) + " %"));
    else {
      const cell = element("td", "wide"), bar = element("span", "bar"), fill = element("i");
      fill.style.width = 100 * share + "%";
      bar.append(fill);
      cell.append(bar);
      row.append(cell);
    }
    return row;
  }

  // The rows of a table at an instant, most bytes first.
  function ranked(table, rows, at) {
    const found = [];
    for (let row = 0; row < rows; row++) {
      const units = table[row * count + at];
      if (units) found.push([row, units]);
    }
    return found.sort((one, other) => other[1] - one[1]);
  }

  function show(at) {
    const total = drawn.allocated[at] || 1;
    byId("instant-title").textContent = at === data.peak ? "At the peak" : "At " + timeText(drawn.time_s[at]);
    byId("instant-text").textContent =
      unitsText(drawn.allocated[at]) + " allocated and " + unitsText(drawn.reserved[at]) + " reserved " +
      placeText(drawn.request[at]) + ", " + timeText(drawn.time_s[at]) + " into the run (request " + countText(drawn.request[at]) + ").";
    const kinds = ranked(drawn.by_category, data.categories.length, at);
    const inStack = [...kinds].sort((one, other) => data.stack.indexOf(one[0]) - data.stack.indexOf(other[0]));
    byId("instant-stack").replaceChildren(
      ...inStack.map(([kind, units]) => {
        const part = element("i", "c-" + data.categories[kind]);
        part.style.width = (100 * units) / total + "%";
        part.title = words(data.categories[kind]) + ": " + unitsText(units);
        return part;
      }),
    );
    byId("instant-categories").replaceChildren(
      ...kinds.map(([kind, units]) => swatchRow(words(data.categories[kind]), units, units / total, data.categories[kind])),
    );
    const labels = data.module_rows;
    byId("instant-modules").replaceChildren(
      ...ranked(drawn.by_module, labels.length, at).slice(0, data.modules_listed).map(([row, units]) => swatchRow(labels[row], units, units / total)),
    );
  }
  return { show };
})();
