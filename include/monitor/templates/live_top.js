"use strict";

const EVERY = 2000;
const SVG = "http://www.w3.org/2000/svg";
const place = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// A flag is shown by its name where it is set.
const words = (found, row) =>
  found.by.map((name, at) => (typeof row[at] === "boolean" ? (row[at] ? name : "") : String(row[at]))).filter(Boolean).join(" ");

// A sum of nulls is null.
const told = (measure) => (measure === null ? "–" : String(measure));

function draw_chart(found, rows) {
  const height = 24, width = 800, left = 240, most = Math.max(1, ...rows.map((row) => row.at(-1)));
  const parts = rows.flatMap((row, at) => {
    const name = words(found, row), long = ((width - left - 70) * row.at(-1)) / most;
    const flagged = row.includes(true) ? "flagged" : "";
    return [
      drawn("text", { x: left - 8, y: at * height + 16, "text-anchor": "end" }, name.length > 32 ? name.slice(0, 31) + "…" : name),
      drawn("rect", { x: left, y: at * height + 4, width: Math.max(1, long), height: height - 8, class: flagged }),
      drawn("text", { x: left + long + 6, y: at * height + 16 }, told(row.at(-1))),
    ];
  });
  place("chart").setAttribute("viewBox", `0 0 ${width} ${Math.max(1, rows.length) * height}`);
  place("chart").replaceChildren(...parts);
}

function draw_table(found, rows) {
  const titles = [...found.by, found.measure];
  place("columns").replaceChildren(...titles.map((name, at) => element("th", name, at === titles.length - 1 ? "number" : "")));
  place("rows").replaceChildren(...rows.map((row) => {
    const line = document.createElement("tr");
    line.append(...row.map((cell, at) => at === row.length - 1
      ? element("td", told(cell), "number")
      : element("td", typeof cell === "boolean" ? (cell ? "yes" : "") : String(cell), "")));
    return line;
  }));
}

async function update() {
  try {
    const answer = await fetch("top.json");
    const found = await answer.json();
    if (!found.windows) return;
    const window_ = found.windows[0];
    const rows = window_ ? window_.rows : [];
    draw_chart(found, rows);
    draw_table(found, rows);
    const in_part = window_ && window_.from < found.since ? `, read from ${found.since} on` : "";
    place("window").textContent = window_
      ? `${window_.from} to ${window_.to}${in_part}: ${window_.total} in all, ${window_.keys} different`
      : "nothing has landed yet";
    const late = found.late ? `, ${found.late} groups of rows came too late` : "";
    const ahead = found.ahead ? `, windows that have not begun: ${found.ahead}` : "";
    const watermark = found.watermark ? `, watermark ${found.watermark}` : "";
    place("state").textContent = `updated ${found.updated_at}${watermark}${late}${ahead}`;
  } catch {
    place("state").textContent = "the stream does not answer any more; what is above is its last word";
  }
}

update();
setInterval(update, EVERY);
