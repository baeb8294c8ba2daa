// Mouse, touch, keyboard and tables of the timeline.
"use strict";

(function () {
  const model = whyidleTimeline;
  const chart = whyidleChart;
  const tables = whyidleTables;
  if (!model || !chart) {
    return;
  }
  const panel = document.getElementById("timeline");
  const details = document.getElementById("timeline-details");
  const said = document.getElementById("timeline-said");
  const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  const canvas = chart.canvas;
  let frame = 0;
  let flight = 0;
  let tableTimer = 0;

  function redraw() {
    if (!frame) {
      frame = window.requestAnimationFrame(function () {
        frame = 0;
        chart.draw();
      });
    }
  }

  function show(next) {
    model.view.from = next.from;
    model.view.to = next.to;
    redraw();
    if (model.chosen.row < 0) {
      describeView();
    }
    window.clearTimeout(tableTimer);
    tableTimer = window.setTimeout(tables.fill, 200);
  }

  // Glides to a part of the step; jumps where motion is not welcome.
  function glide(next) {
    const from = { from: model.view.from, to: model.view.to };
    const began = window.performance.now();
    const flown = ++flight;
    if (calm.matches) {
      show(next);
      return;
    }
    (function step(now) {
      if (flown !== flight) {
        return;
      }
      const t = Math.min(1, Math.max(0, (now - began) / 140));
      const eased = 1 - (1 - t) * (1 - t);
      show({
        from: from.from + (next.from - from.from) * eased,
        to: from.to + (next.to - from.to) * eased,
      });
      if (t < 1) {
        window.requestAnimationFrame(step);
      }
    })(began);
  }

  function middle() {
    return (model.view.from + model.view.to) / 2;
  }

  function describe(row, item) {
    const lines = model.sentences(row, item);
    details.replaceChildren(
      tables.element("p", lines[0], "name"),
      tables.element("p", lines.slice(1).join(" · ")),
    );
  }

  function describeView() {
    const whole = model.view.from <= 0 && model.view.to >= model.length;
    const length = model.duration(model.view.to - model.view.from);
    details.replaceChildren(
      tables.element(
        "p",
        whole
          ? "In view: all of it, " + length
          : "In view: " + length + " from " + model.instant(Math.round(model.view.from), 1000),
      ),
      tables.element("p", "Point at anything, or choose it with the keyboard, to read about it."),
    );
  }

  function choose(row, item, spoken) {
    model.chosen.row = row;
    model.chosen.item = item;
    const found = row >= 0 && model.rows[row].items[item];
    if (!found) {
      describeView();
    } else {
      describe(model.rows[row], found);
      if (spoken) {
        said.textContent = model.sentences(model.rows[row], found).join(", ");
        bringIntoView(found);
      }
    }
    redraw();
  }

  function bringIntoView(item) {
    const length = model.view.to - model.view.from;
    if (item.start > model.view.to || item.end < model.view.from) {
      const at = (item.start + item.end) / 2;
      glide(model.clamped(at - length / 2, at + length / 2));
    }
  }

  function chooseRow(by) {
    const old = model.rows[model.chosen.row];
    const item = old && old.items[model.chosen.item];
    const at = item
      ? (Math.max(item.start, model.view.from) + Math.min(item.end, model.view.to)) / 2
      : middle();
    let row = model.chosen.row < 0 && by < 0 ? model.rows.length : model.chosen.row;
    do {
      row += by;
    } while (model.rows[row] && !model.rows[row].items.length);
    if (model.rows[row]) {
      choose(row, model.nearest(row, at), true);
    }
  }

  function chooseItem(by) {
    if (model.chosen.row < 0) {
      chooseRow(1);
      return;
    }
    const next = model.chosen.item + by;
    if (model.rows[model.chosen.row].items[next]) {
      choose(model.chosen.row, next, true);
    }
  }

  function zoomToChosen() {
    const row = model.rows[model.chosen.row];
    const item = row && row.items[model.chosen.item];
    if (item) {
      const room = Math.max(1, item.end - item.start) * 0.6;
      glide(model.clamped(item.start - room, item.end + room));
    }
  }

  const ACTIONS = {
    "+": function () {
      glide(model.zoomed(0.6, middle()));
    },
    "=": function () {
      glide(model.zoomed(0.6, middle()));
    },
    "-": function () {
      glide(model.zoomed(1 / 0.6, middle()));
    },
    _: function () {
      glide(model.zoomed(1 / 0.6, middle()));
    },
    0: function () {
      glide(model.clamped(0, model.length));
    },
    Home: function () {
      glide(model.clamped(0, model.view.to - model.view.from));
    },
    End: function () {
      glide(model.clamped(model.length - (model.view.to - model.view.from), model.length));
    },
    ArrowLeft: function (shift) {
      if (shift) {
        chooseItem(-1);
      } else {
        glide(model.moved(-0.2));
      }
    },
    ArrowRight: function (shift) {
      if (shift) {
        chooseItem(1);
      } else {
        glide(model.moved(0.2));
      }
    },
    ArrowUp: function () {
      chooseRow(-1);
    },
    ArrowDown: function () {
      chooseRow(1);
    },
    Enter: zoomToChosen,
    Escape: function () {
      choose(-1, -1, false);
    },
  };

  canvas.addEventListener("keydown", function (event) {
    const action = ACTIONS[event.key];
    if (action && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      action(event.shiftKey);
    }
  });

  function spot(event) {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  function itemUnder(at) {
    const row = chart.rowAt(at.y);
    if (row < 0) {
      return null;
    }
    const item = model.itemAt(row, chart.toTime(at.x), 4 * chart.timePerPixel());
    return item < 0 ? null : { row: row, item: item };
  }

  // The wheel zooms once the chart has been clicked, or with Ctrl; else the page scrolls.
  canvas.addEventListener(
    "wheel",
    function (event) {
      const ready = event.ctrlKey || event.metaKey || document.activeElement === canvas;
      const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (sideways) {
        event.preventDefault();
        const by = event.deltaX || event.deltaY;
        show(model.moved((by * chart.timePerPixel()) / (model.view.to - model.view.from)));
        return;
      }
      const whole = model.view.from <= 0 && model.view.to >= model.length;
      if (!ready || (whole && event.deltaY > 0 && !event.ctrlKey)) {
        return;
      }
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 30 : 1;
      const power = Math.max(-300, Math.min(300, event.deltaY * lines)) / 400;
      show(model.zoomed(Math.pow(2, power), chart.toTime(spot(event).x)));
    },
    { passive: false },
  );

  const fingers = new Map();
  let dragged = false;
  let spread = 0;

  function spreadOf() {
    const points = Array.from(fingers.values());
    return Math.max(8, Math.abs(points[0].x - points[1].x));
  }

  canvas.addEventListener("pointerdown", function (event) {
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, spot(event));
    dragged = false;
    flight++;
    spread = fingers.size === 2 ? spreadOf() : 0;
  });

  canvas.addEventListener("pointermove", function (event) {
    const at = spot(event);
    const old = fingers.get(event.pointerId);
    if (!old) {
      const under = itemUnder(at);
      if (under) {
        describe(model.rows[under.row], model.rows[under.row].items[under.item]);
      }
      return;
    }
    if (fingers.size === 1 && (dragged || Math.abs(at.x - old.x) > 3)) {
      dragged = true;
      const by = (old.x - at.x) * chart.timePerPixel();
      show(model.clamped(model.view.from + by, model.view.to + by));
      fingers.set(event.pointerId, at);
    } else if (fingers.size === 2) {
      dragged = true;
      fingers.set(event.pointerId, at);
      const points = Array.from(fingers.values());
      const wide = spreadOf();
      show(model.zoomed(spread / wide, chart.toTime((points[0].x + points[1].x) / 2)));
      spread = wide;
    }
  });

  function lift(event) {
    if (fingers.has(event.pointerId) && !dragged && event.type === "pointerup") {
      const under = itemUnder(spot(event));
      choose(under ? under.row : -1, under ? under.item : -1, false);
    }
    fingers.delete(event.pointerId);
    spread = 0;
  }

  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", function () {
    if (!fingers.size) {
      choose(model.chosen.row, model.chosen.item, false);
    }
  });
  canvas.addEventListener("dblclick", function (event) {
    const under = itemUnder(spot(event));
    if (under) {
      choose(under.row, under.item, false);
      zoomToChosen();
    }
  });

  [
    ["−", "Zoom out", "-"],
    ["+", "Zoom in", "+"],
    ["←", "Move left", "ArrowLeft"],
    ["→", "Move right", "ArrowRight"],
    ["Whole step", "Show the whole step", "0"],
  ].forEach(function (entry) {
    const made = tables.element("button", entry[0]);
    made.type = "button";
    made.setAttribute("aria-label", entry[1]);
    made.addEventListener("click", function () {
      ACTIONS[entry[2]](false);
    });
    panel.querySelector(".toolbar").appendChild(made);
  });

  function refresh() {
    chart.readTheme();
    chart.resize();
    chart.draw();
  }

  panel.hidden = false;
  describeView();
  refresh();
  window.addEventListener("whyidle-theme", refresh);
  if (window.ResizeObserver) {
    new ResizeObserver(function () {
      refresh();
    }).observe(panel);
  } else {
    window.addEventListener("resize", refresh);
  }
})();
