"use strict";

// Follows the events of `<main data-live="URL">`: each brings the page's content anew, rendered and escaped by the
// server. What has an id and differs is replaced; the rest, with focus, scroll position and selection, stays.

const PATIENCE = 6000; // ms without a connection until the page says so; the server ends each connection in good time
const SILENCE = 15000; // ms without an event, while the connection looks open
const FOCUSABLE = "a, button, input, select, textarea, summary, [tabindex]";

function follow(place) {
  const line = document.createElement("p");
  line.id = "connection";
  line.setAttribute("role", "status");
  place.after(line);
  let heard = Date.now();
  let said = "";

  function say(text, isBad) {
    if (text === said) return;
    said = text;
    line.textContent = text;
    line.className = isBad ? "bad" : "";
  }

  function replace(html) {
    const brought = new DOMParser().parseFromString(html, "text/html");
    for (const now of brought.querySelectorAll("main [id]")) {
      const before = document.getElementById(now.id);
      if (!before || !place.contains(before) || before.outerHTML === now.outerHTML) continue;
      const atEnd = before.scrollTop + before.clientHeight >= before.scrollHeight - 4;
      const scroll = before.scrollTop;
      const focused = document.activeElement;
      const at = [before, ...before.querySelectorAll(FOCUSABLE)].indexOf(focused);
      const made = document.importNode(now, true);
      before.replaceWith(made);
      made.scrollTop = atEnd ? made.scrollHeight : scroll;
      if (at < 0) continue;
      // By its id, where it has one: more may stand before it now.
      const again = focused.id && document.getElementById(focused.id);
      (again || [made, ...made.querySelectorAll(FOCUSABLE)][at])?.focus({ preventScroll: true });
    }
  }

  const source = new EventSource(place.dataset.live);
  source.addEventListener("page", (event) => {
    heard = Date.now();
    replace(JSON.parse(event.data));
    say("Live: this page updates by itself.", false);
  });
  source.addEventListener("same", () => {
    heard = Date.now();
    say("Live: this page updates by itself.", false);
  });
  source.addEventListener("failed", (event) => say(`Cut off: ${JSON.parse(event.data)}`, true));
  setInterval(() => {
    const silent = Date.now() - heard;
    if (silent < (source.readyState === EventSource.OPEN ? SILENCE : PATIENCE)) return;
    const since = new Date(heard).toISOString().slice(0, 19) + "Z";
    // After a refusal the browser does not try again.
    const more = source.readyState === EventSource.CLOSED ? "Reload the page." : "Trying again.";
    say(`Cut off: nothing new since ${since}, what is above is what was known then. ${more}`, true);
  }, 1000);
  window.addEventListener("pagehide", () => source.close());
}

for (const place of document.querySelectorAll("[data-live]")) follow(place);
