// Theme: light or dark, by the system setting or as chosen here. Loaded before anything is drawn, so that nothing flashes.
"use strict";

(() => {
  const KEY = "varlog.theme";
  const ORDER = ["auto", "light", "dark"];
  const NAMES = { auto: "system setting", light: "light", dark: "dark" };

  function stored() {
    try {
      const found = localStorage.getItem(KEY);
      return ORDER.includes(found) ? found : "auto";
    } catch {
      return "auto"; // storage is switched off in this browser
    }
  }

  function apply(theme) {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (!button) return;
    button.dataset.theme = theme;
    button.title = `Colours: ${NAMES[theme]} (d)`;
    button.setAttribute("aria-label", `Colours: ${NAMES[theme]}. Change.`);
  }

  function next() {
    const theme = ORDER[(ORDER.indexOf(document.documentElement.dataset.theme) + 1) % ORDER.length];
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // The choice holds until the page is left.
    }
    apply(theme);
  }

  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    apply(stored());
    document.getElementById("theme").addEventListener("click", next);
  });
})();
