// Light, dark, or as the system says; kept for the next visit. Runs in the head, before anything is painted.
(() => {
  const NAME = "mysglang.theme";
  const ORDER = ["system", "light", "dark"];
  const WORDS = { system: "as the system", light: "light", dark: "dark" };

  function apply(theme) {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = document.getElementById("switch-theme");
    if (button) {
      button.setAttribute("aria-label", `Colours: ${WORDS[theme]}`);
      button.title = `Colours: ${WORDS[theme]}`;
    }
  }

  function stored() {
    const theme = localStorage.getItem(NAME);
    return ORDER.includes(theme) ? theme : "system";
  }

  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    apply(stored());
    document.getElementById("switch-theme").addEventListener("click", () => {
      const theme = ORDER[(ORDER.indexOf(stored()) + 1) % ORDER.length];
      localStorage.setItem(NAME, theme);
      apply(theme);
    });
  });
})();
