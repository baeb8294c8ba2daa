// The timeline as tables, for those who cannot see or point at a chart.
"use strict";

const whyidleTables = (function () {
  const model = whyidleTimeline;
  if (!model) {
    return null;
  }
  const tables = document.getElementById("timeline-tables");
  const MOST_ROWS = 100;

  function element(tag, text, kind) {
    const made = document.createElement(tag);
    made.textContent = text;
    if (kind) {
      made.className = kind;
    }
    return made;
  }

  function fillTable(holder, caption, head, rows, total) {
    const table = document.createElement("table");
    const counted = rows.length < total ? ", the longest " + rows.length + " of " + total : "";
    table.appendChild(element("caption", caption + counted));
    const top = table.createTHead().insertRow();
    head.forEach(function (cell) {
      const made = element("th", cell);
      made.scope = "col";
      top.appendChild(made);
    });
    const body = table.createTBody();
    rows.forEach(function (row) {
      const line = body.insertRow();
      row.forEach(function (cell) {
        line.appendChild(element("td", cell));
      });
    });
    const scroll = element("div", "", "scroll");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", caption);
    scroll.appendChild(table);
    holder.replaceChildren(scroll);
  }

  function inView(losses) {
    const found = [];
    model.rows.forEach(function (row) {
      if (Boolean(row.losses) === losses) {
        row.items.forEach(function (item) {
          if (item.end >= model.view.from && item.start <= model.view.to) {
            found.push({ row: row, item: item });
          }
        });
      }
    });
    return found.sort(function (a, b) {
      return b.item.end - b.item.start - (a.item.end - a.item.start);
    });
  }

  // The tables follow the view, so that they stay short enough to read.
  function fillTables() {
    if (!tables.open) {
      return;
    }
    const losses = inView(true);
    fillTable(
      document.getElementById("timeline-losses"),
      "Losses in view",
      ["Starts at", "Lasts", "Cause", "Device", "Where"],
      losses.slice(0, MOST_ROWS).map(function (f) {
        const i = f.item;
        return [
          model.instant(i.start, 1000),
          model.duration(i.end - i.start),
          i.name,
          i.state,
          i.what,
        ];
      }),
      losses.length,
    );
    const spans = inView(false);
    fillTable(
      document.getElementById("timeline-spans"),
      "Activity in view",
      ["Starts at", "Lasts", "Name", "Kind", "On"],
      spans.slice(0, MOST_ROWS).map(function (f) {
        const i = f.item;
        return [
          model.instant(i.start, 1000),
          model.duration(i.end - i.start),
          i.name,
          i.kind,
          f.row.of,
        ];
      }),
      spans.length,
    );
  }

  tables.addEventListener("toggle", fillTables);
  return { fill: fillTables, element: element };
})();
