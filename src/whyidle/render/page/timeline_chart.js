// Draws the rows of the timeline on a canvas.
"use strict";

const whyidleChart = (function () {
  const model = whyidleTimeline;
  if (!model) {
    return null;
  }
  const canvas = document.getElementById("timeline-canvas");
  const pen = canvas.getContext("2d");
  const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const AXIS = 24;
  const NARROW = 560;
  const layout = { width: 0, height: 0, left: 0, tops: [], heights: [] };
  let colours = {};
  let patterns = {};

  // The kinds that have a colour in theme.css; others are drawn like overhead.
  const KINDS = [
    "compute",
    "communication",
    "copy",
    "op",
    "python",
    "annotation",
    "runtime",
    "overhead",
  ];

  function readTheme() {
    const style = window.getComputedStyle(document.documentElement);
    const read = function (key) {
      return style.getPropertyValue("--" + key).trim();
    };
    colours = {
      card: read("card"),
      line: read("line"),
      ink: read("text"),
      text: read("text"),
      muted: read("muted"),
      accent: read("accent"),
      sunken: read("sunken"),
      other: read("other"),
    };
    KINDS.forEach(function (kind) {
      colours[kind] = read("kind-" + kind);
    });
    colours.kernel = colours.compute;
    colours.set = colours.copy;
    patterns = {};
  }

  // Line drawings of an 8 x 8 tile, by name; colour is never the only difference.
  const STROKES = {
    rising: [
      [0, 8, 8, 0],
      [-2, 2, 2, -2],
      [6, 10, 10, 6],
    ],
    falling: [
      [0, 0, 8, 8],
      [-2, 6, 2, 10],
      [6, -2, 10, 2],
    ],
    level: [
      [0, 2, 8, 2],
      [0, 6, 8, 6],
    ],
    upright: [
      [2, 0, 2, 8],
      [6, 0, 6, 8],
    ],
    cross: [
      [0, 0, 8, 8],
      [0, 8, 8, 0],
    ],
  };

  function pattern(cause) {
    const key = cause.pattern + (cause.colour || "");
    if (patterns[key]) {
      return patterns[key];
    }
    const tile = document.createElement("canvas");
    const scale = window.devicePixelRatio || 1;
    tile.width = tile.height = Math.round(8 * scale);
    const draw = tile.getContext("2d");
    draw.scale(tile.width / 8, tile.height / 8);
    if (cause.colour) {
      draw.fillStyle = cause.colour;
      draw.fillRect(0, 0, 8, 8);
    }
    draw.strokeStyle = draw.fillStyle = cause.colour ? "rgba(0,0,0,0.28)" : colours.other;
    draw.lineWidth = 1.5;
    (STROKES[cause.pattern] || []).forEach(function (line) {
      draw.beginPath();
      draw.moveTo(line[0], line[1]);
      draw.lineTo(line[2], line[3]);
      draw.stroke();
    });
    if (cause.pattern === "dots") {
      [
        [2, 2],
        [6, 6],
      ].forEach(function (at) {
        draw.fillRect(at[0] - 1, at[1] - 1, 2.2, 2.2);
      });
    } else if (cause.pattern === "checks") {
      draw.fillRect(0, 0, 4, 4);
      draw.fillRect(4, 4, 4, 4);
    } else if (cause.pattern === "unexplained") {
      draw.fillRect(0, 0, 4, 8);
    }
    const made = pen.createPattern(tile, "repeat");
    if (made.setTransform && window.DOMMatrix) {
      made.setTransform(new DOMMatrix().scale(1 / scale));
    }
    patterns[key] = made;
    return made;
  }

  function resize() {
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const tall = model.rows.length > 24 ? 13 : 18;
    layout.width = width;
    layout.left = width < NARROW ? 0 : 128;
    layout.tops = [];
    layout.heights = [];
    let y = AXIS;
    model.rows.forEach(function (row) {
      const named = row.label && (layout.left === 0 || row.losses);
      y += row.label ? 8 + (layout.left === 0 && named ? 14 : 0) : 0;
      layout.tops.push(y);
      layout.heights.push(row.losses ? 40 : row.host ? tall : 26);
      y += layout.heights[layout.heights.length - 1] + 1;
    });
    layout.height = y + 8;
    canvas.style.height = layout.height + "px";
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(layout.height * scale);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    patterns = {};
  }

  function toX(time) {
    const view = model.view;
    return (
      layout.left + ((time - view.from) / (view.to - view.from)) * (layout.width - layout.left)
    );
  }

  function toTime(x) {
    const view = model.view;
    const share = (x - layout.left) / (layout.width - layout.left);
    return view.from + share * (view.to - view.from);
  }

  function rowAt(y) {
    return layout.tops.findIndex(function (top, i) {
      return y >= top && y <= top + layout.heights[i];
    });
  }

  function stepOf(length, room) {
    const least = length / Math.max(1, room / 90);
    const power = Math.pow(10, Math.floor(Math.log10(least)));
    return [1, 2, 5, 10]
      .map(function (n) {
        return n * power;
      })
      .find(function (n) {
        return n >= least;
      });
  }

  function drawAxis() {
    const view = model.view;
    const step = stepOf(view.to - view.from, layout.width - layout.left);
    pen.font = FONT;
    pen.textBaseline = "middle";
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
      const x = Math.round(toX(t)) + 0.5;
      pen.strokeStyle = colours.line;
      pen.beginPath();
      pen.moveTo(x, AXIS - 6);
      pen.lineTo(x, layout.height);
      pen.stroke();
      const label = model.instant(Math.round(t), step);
      if (x + pen.measureText(label).width + 4 < layout.width) {
        pen.fillStyle = colours.muted;
        pen.fillText(label, x + 3, 9);
      }
    }
  }

  function drawItems(row, top, height) {
    const view = model.view;
    let covered = -1;
    row.items.forEach(function (item) {
      if (item.end < view.from || item.start > view.to) {
        return;
      }
      const left = Math.max(layout.left, toX(item.start));
      const right = Math.min(layout.width, Math.max(toX(item.end), left + 1));
      if (right - left <= 1 && right <= covered) {
        return; // hidden under the pixel before it
      }
      covered = right;
      const wide = right - left > 3 ? right - left - 0.5 : right - left;
      if (row.losses) {
        drawLoss(item, left, top, wide, height);
      } else {
        pen.fillStyle = colours[item.kind] || colours.overhead;
        pen.fillRect(left, top, wide, height);
        drawText(item.name, left, top, wide, height, colours.text);
      }
    });
  }

  function drawLoss(item, left, top, wide, height) {
    const part = Math.max(3, height * item.weight);
    const plain = wide < 5 && item.cause.colour;
    pen.fillStyle = plain ? item.cause.colour : pattern(item.cause);
    pen.fillRect(left, top + height - part, wide, part);
    const mark = item.cause.mark;
    if (mark && wide > 16 && part > 14) {
      const y = top + height - part / 2;
      pen.font = "bold " + FONT;
      const size = pen.measureText(mark).width + 6;
      const label = wide > 90 ? fit(mark + "  " + item.name, wide - 16) : mark;
      const room = wide > 90 ? pen.measureText(label).width + 8 : size;
      pen.fillStyle = item.cause.colour || colours.card;
      pen.fillRect(left + 4, y - 8, Math.min(room, wide - 5), 16);
      pen.fillStyle = item.cause.ink || colours.ink;
      pen.fillText(label, left + 7, y + 0.5);
      pen.font = FONT;
    }
  }

  function fit(text, width) {
    if (pen.measureText(text).width <= width) {
      return text;
    }
    const most = Math.max(0, Math.floor((width / pen.measureText(text).width) * text.length) - 1);
    return most > 2 ? text.slice(0, most) + "…" : "";
  }

  function drawText(text, left, top, wide, height, colour) {
    if (wide < 26 || height < 11) {
      return;
    }
    pen.fillStyle = colour;
    pen.fillText(fit(text, wide - 8), left + 4, top + height / 2 + 0.5);
  }

  function drawLabels() {
    pen.font = FONT;
    model.rows.forEach(function (row, i) {
      if (!row.label) {
        return;
      }
      pen.fillStyle = colours.ink;
      if (layout.left === 0) {
        pen.fillText(fit(row.label, layout.width - 8), 2, layout.tops[i] - 8);
      } else {
        pen.fillText(fit(row.label, layout.left - 12), 2, layout.tops[i] + layout.heights[i] / 2);
      }
    });
  }

  function drawChosen() {
    const row = model.rows[model.chosen.row];
    const item = row && row.items[model.chosen.item];
    if (!item || item.end < model.view.from || item.start > model.view.to) {
      return;
    }
    const left = Math.max(layout.left, toX(item.start));
    const right = Math.min(layout.width, Math.max(toX(item.end), left + 2));
    const top = layout.tops[model.chosen.row];
    pen.lineWidth = 2;
    pen.strokeStyle = colours.card;
    pen.strokeRect(left - 2, top - 2, right - left + 4, layout.heights[model.chosen.row] + 4);
    pen.strokeStyle = colours.ink;
    pen.strokeRect(left, top, right - left, layout.heights[model.chosen.row]);
    pen.lineWidth = 1;
  }

  function draw() {
    pen.clearRect(0, 0, layout.width, layout.height);
    drawAxis();
    model.rows.forEach(function (row, i) {
      if (row.losses) {
        pen.fillStyle = colours.sunken;
        pen.fillRect(layout.left, layout.tops[i], layout.width - layout.left, layout.heights[i]);
      }
      drawItems(row, layout.tops[i], layout.heights[i]);
      if (row.losses && !row.items.length) {
        pen.fillStyle = colours.muted;
        pen.fillText("no loss found here", layout.left + 8, layout.tops[i] + layout.heights[i] / 2);
      }
    });
    drawLabels();
    drawChosen();
  }

  return {
    canvas: canvas,
    draw: draw,
    resize: resize,
    readTheme: readTheme,
    toTime: toTime,
    rowAt: rowAt,
    timePerPixel: function () {
      return (model.view.to - model.view.from) / Math.max(1, layout.width - layout.left);
    },
  };
})();
