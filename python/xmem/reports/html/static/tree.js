// The tree of modules: rows open and close, by mouse and as the ARIA treegrid pattern says by keys.
"use strict";

const tree = (() => {
  const rows = Array.from(document.querySelectorAll("#tree tbody tr"));
  const level = (row) => Number(row.getAttribute("aria-level"));
  const isOpen = (row) => row.getAttribute("aria-expanded") === "true";
  const OPEN_LEVELS = 2;

  // Rows of closed parents are hidden; one walk, as rows stand in the order of the tree.
  function refresh() {
    let closedAt = Infinity;
    for (const row of rows) {
      const hidden = level(row) > closedAt;
      row.hidden = hidden;
      if (!hidden) closedAt = row.getAttribute("aria-expanded") === "false" ? level(row) : Infinity;
    }
  }

  function toggle(row, open) {
    if (!row.hasAttribute("aria-expanded")) return;
    row.setAttribute("aria-expanded", String(open));
    refresh();
  }

  function focus(row) {
    if (!row) return;
    for (const other of rows) other.tabIndex = -1;
    row.tabIndex = 0;
    row.focus();
  }

  function pressed(event) {
    const row = event.target.closest("tr");
    const seen = rows.filter((one) => !one.hidden), at = seen.indexOf(row);
    const parent = () => rows.slice(0, rows.indexOf(row)).reverse().find((one) => level(one) < level(row));
    const actions = {
      ArrowDown: () => focus(seen[at + 1]),
      ArrowUp: () => focus(seen[at - 1]),
      Home: () => focus(seen[0]),
      End: () => focus(seen[seen.length - 1]),
      ArrowRight: () => (row.getAttribute("aria-expanded") === "false" ? toggle(row, true) : isOpen(row) && focus(seen[at + 1])),
      ArrowLeft: () => (isOpen(row) ? toggle(row, false) : focus(parent())),
      Enter: () => toggle(row, !isOpen(row)),
      " ": () => toggle(row, !isOpen(row)),
    };
    if (!row || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  function start() {
    for (const row of rows) if (row.hasAttribute("aria-expanded")) row.setAttribute("aria-expanded", String(level(row) <= OPEN_LEVELS));
    if (rows[0]) rows[0].tabIndex = 0;
    refresh();
    const body = document.querySelector("#tree tbody");
    body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) {
        toggle(row, !isOpen(row));
        focus(row);
      }
    });
    body.addEventListener("keydown", pressed);
  }
  return { start };
})();
