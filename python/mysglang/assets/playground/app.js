// Puts the page together: which view is shown, the drawers of narrow windows, the name of the model.

import { $ } from "./dom.js";
import { get } from "./api.js";
import { CachePage } from "./cache_tree.js";
import { ChatPage } from "./chat.js";
import { Dashboard } from "./dashboard.js";
import { askForKeys, withKey } from "./key_dialog.js";
import { settingsPanel } from "./settings.js";
import { Chats, loadSettings, saveSettings } from "./store.js";

const settings = loadSettings();
let model = "default";
const chat = new ChatPage(new Chats(), settings, () => model);
const views = { chat: { look: () => {} }, server: new Dashboard($("server")), cache: new CachePage($("cache")) };

settingsPanel(settings, () => chat.told());

function show() {
  const name = location.hash.slice(1) in views ? location.hash.slice(1) : "chat";
  for (const section of Object.keys(views)) $(section).hidden = section !== name;
  for (const link of document.querySelectorAll(".views a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.body.dataset.view = name;
  views[name].look();
}

addEventListener("hashchange", show);
show();
$("open-keys").addEventListener("click", () => askForKeys());

// Drawers: beside the chat where there is room, above it where there is not.
const narrow = matchMedia("(max-width: 60rem)");

function drawer(button, panel, open) {
  $(panel).classList.toggle("open", open);
  $(button).setAttribute("aria-expanded", String(open));
  $("shade").hidden = !(narrow.matches && document.querySelector(".drawer.open"));
  if (open && narrow.matches) $(panel).querySelector("button, input, textarea").focus();
}

function closeDrawers() {
  for (const [button, panel] of [["open-history", "history"], ["open-settings", "settings"]]) {
    if ($(panel).classList.contains("open")) {
      drawer(button, panel, false);
      $(button).focus();
    }
  }
}

function arrange() {
  drawer("open-history", "history", false);
  drawer("open-settings", "settings", !narrow.matches && settings.panel);
}

$("open-history").addEventListener("click", () => drawer("open-history", "history", !$("history").classList.contains("open")));
$("open-settings").addEventListener("click", () => {
  if (location.hash && location.hash !== "#chat") location.hash = "#chat";
  const open = !$("settings").classList.contains("open");
  drawer("open-settings", "settings", open);
  if (narrow.matches) return;
  settings.panel = open;
  saveSettings(settings);
});
$("shade").addEventListener("click", closeDrawers);
$("chats").addEventListener("click", (event) => narrow.matches && event.target.closest(".chat-title") && closeDrawers());
$("new-chat").addEventListener("click", () => narrow.matches && closeDrawers());
document.addEventListener("keydown", (event) => event.key === "Escape" && narrow.matches && closeDrawers());
narrow.addEventListener("change", arrange);
arrange();

withKey(() => get("v1/models"))
  .then(({ data }) => {
    model = data[0].id;
    const name = model.split("/").at(-1) || model;
    $("model").textContent = name;
    $("model").title = model;
  })
  .catch((error) => {
    $("model").textContent = error.status ? "" : "not reached";
  });
if (!narrow.matches) $("message").focus();
