// The theme: that of the system unless one was chosen. Runs in the head, so that no page flashes.
(function () {
  "use strict";
  const CHOICES = ["automatic", "light", "dark"];

  function remembered() {
    try {
      return localStorage.getItem("zoo-theme");
    } catch {
      return null; // Storage may be refused, as it is to some pages from files.
    }
  }

  function show(choice) {
    if (choice === "automatic") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = choice;
  }

  let chosen = CHOICES.includes(remembered()) ? remembered() : "automatic";
  show(chosen);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.textContent = `Theme: ${chosen}`;
    button.hidden = false;
    button.addEventListener("click", () => {
      chosen = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
      show(chosen);
      button.textContent = `Theme: ${chosen}`;
      try {
        localStorage.setItem("zoo-theme", chosen);
      } catch {
        // It then holds for this page alone.
      }
    });
  });
})();
