"use strict";

// In a calendar one square is reached by Tab, the others by the arrow keys: thousands of stops would be a wall. It is the
// first one, also without this script.

function rove(place) {
  const rows = [...place.querySelectorAll(".cells")].map((row) => [...row.children]);
  const links = rows.flat().filter((each) => each.href);
  if (!links.length) return;
  links[0].tabIndex = 0;

  // Sideways past the end of a row lies the next row, and a row without a link in this column is entered at its nearest
  // one: otherwise the only hour of a young day could not be left.
  function next(from, down, right) {
    if (right) return links[links.indexOf(from) + right] || null;
    let row = rows.findIndex((each) => each.includes(from));
    const column = rows[row].indexOf(from);
    for (row += down; rows[row]; row += down) {
      const columns = [...rows[row].keys()].filter((each) => rows[row][each].href);
      columns.sort((a, b) => Math.abs(a - column) - Math.abs(b - column));
      if (columns.length) return rows[row][columns[0]];
    }
    return null;
  }

  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  place.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    const found = move && event.target.href ? next(event.target, ...move) : null;
    if (!found) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    found.tabIndex = 0;
    found.focus();
  });
}

for (const place of document.querySelectorAll("[data-roving]")) rove(place);
