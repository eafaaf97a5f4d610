"use strict";

// In a calendar one square is reached by Tab, the others by the arrow keys: thousands of stops would be a wall.

function rove(place) {
  const rows = [...place.querySelectorAll(".cells")].map((row) => [...row.children]);
  const links = rows.flat().filter((each) => each.href);
  if (!links.length) return;
  links[0].tabIndex = 0;

  function next(from, down, right) {
    let row = rows.findIndex((each) => each.includes(from));
    let column = rows[row].indexOf(from);
    for (;;) {
      row += down;
      column += right;
      const found = rows[row] && rows[row][column];
      if (!found) return null;
      if (found.href) return found;
    }
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
