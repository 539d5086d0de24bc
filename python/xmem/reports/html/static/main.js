// Starts the page, and says when it is ready for people: performance mark "interactive".
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const drawAll = () => {
    curve.draw();
    bricks.draw();
    segments.draw();
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    drawAll();
  });
  dark.addEventListener("change", drawAll);

  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(drawAll);
  });
  curve.onChoose(instant.show);
  const follow = () => {
    const at = curve.fromAddress();
    if (at !== null) curve.choose(at, { quiet: true });
    return at;
  };
  addEventListener("hashchange", follow);

  tree.start();
  drawAll();
  if (follow() !== null) byId("curve").scrollIntoView();
  else instant.show(data.peak);
  performance.mark("interactive");
})();
