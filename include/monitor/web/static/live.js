"use strict";

// Follows the events of `<main data-live="URL">`: each brings the page's content anew, rendered and escaped by the
// server. Texts and attributes change in place, so that focus, selection, scroll positions and opened details stay.

const PATIENCE = 6000; // ms without a connection until the page says so; the server ends each connection in good time
const SILENCE = 15000; // ms without an event, while the connection looks open

function patch(before, now) {
  if (before.isEqualNode(now)) return;
  if (before.nodeType !== Node.ELEMENT_NODE) {
    before.nodeValue = now.nodeValue;
    return;
  }
  for (const { name } of [...before.attributes]) {
    // `open` is the reader's.
    if (name !== "open" && !now.hasAttribute(name)) before.removeAttribute(name);
  }
  for (const { name, value } of now.attributes) {
    if (before.getAttribute(name) !== value) before.setAttribute(name, value);
  }
  const atEnd = before.nodeName === "PRE" && before.scrollTop + before.clientHeight >= before.scrollHeight - 4;
  patchChildren(before, now);
  if (atEnd) before.scrollTop = before.scrollHeight;
}

// What has an id is found by it, wherever it stands now; the rest by its place.
function patchChildren(before, now) {
  const wanted = new Set([...now.children].map((each) => each.id));
  for (const each of [...before.children]) if (each.id && !wanted.has(each.id)) each.remove();
  const known = new Map([...before.children].filter((each) => each.id).map((each) => [each.id, each]));
  let at = before.firstChild;
  for (const each of now.childNodes) {
    const found = each.id ? known.get(each.id) : at;
    if (!found || found.nodeName !== each.nodeName || (found.id || "") !== (each.id || "")) {
      before.insertBefore(document.importNode(each, true), at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else before.insertBefore(found, at);
    patch(found, each);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function follow(place) {
  const line = document.createElement("p");
  line.id = "connection";
  line.setAttribute("role", "status");
  place.after(line);
  let source = null;
  let heard = Date.now();
  let asked = heard;
  let reason = "";
  let said = "";

  function say(text, isBad) {
    if (text === said) return;
    said = text;
    line.textContent = text;
    line.className = isBad ? "bad" : "";
  }

  function hear() {
    heard = Date.now();
    reason = "";
    say("Live: this page updates by itself.", false);
  }

  function show(html) {
    const brought = new DOMParser().parseFromString(html, "text/html");
    const focused = document.activeElement;
    patchChildren(place, brought.querySelector("main"));
    document.title = brought.title;
    // What was moved has lost it.
    if (focused !== document.activeElement && place.contains(focused)) focused.focus({ preventScroll: true });
  }

  // The text stays the same while nothing changes: a screen reader reads it once.
  function check() {
    if (!source) return;
    const silent = Date.now() - Math.max(heard, asked);
    if (!reason && silent < (source.readyState === EventSource.OPEN ? SILENCE : PATIENCE)) return;
    const since = new Date(heard).toISOString().slice(0, 19) + "Z";
    // After a refusal the browser does not try again.
    const more = source.readyState === EventSource.CLOSED ? "Reload the page." : "Trying again.";
    const why = reason && ` The reason: ${reason}`;
    say(`Cut off: nothing new since ${since}, what is above is what was known then. ${more}${why}`, true);
  }

  function connect() {
    if (source || document.hidden) return;
    asked = Date.now();
    source = new EventSource(place.dataset.live);
    source.addEventListener("page", (event) => {
      show(JSON.parse(event.data));
      hear();
    });
    source.addEventListener("same", hear);
    source.addEventListener("failed", (event) => {
      reason = JSON.parse(event.data);
      check();
    });
  }

  function disconnect() {
    source?.close();
    source = null;
  }

  function pause() {
    disconnect();
    say("Paused while the page is hidden.", false);
  }

  // A browser opens six connections to a host at once: hidden pages must not hold them.
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : connect()));
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", connect);
  setInterval(check, 1000);
  connect();
}

// A page that does not follow says how old it is.
function age(line) {
  const rendered = Date.now();
  setInterval(() => {
    const minutes = Math.floor((Date.now() - rendered) / 60000);
    if (!minutes) return;
    line.querySelector("span").textContent = `, ${minutes} min ago`;
    line.querySelector("a").hidden = false;
  }, 5000);
}

for (const line of document.querySelectorAll("[data-age]")) age(line);
for (const place of document.querySelectorAll("[data-live]")) follow(place);
