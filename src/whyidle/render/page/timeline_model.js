// What the timeline shows: rows of items, the part in view, and the chosen item.
"use strict";

const whyidleTimeline = (function () {
  const holder = document.getElementById("timeline-data");
  if (!holder) {
    return null;
  }
  const data = JSON.parse(holder.textContent);
  const UNEXPLAINED = { title: "unexplained", mark: "?", pattern: "unexplained" };
  const ON_CPU = {
    compute: "while operators were running",
    communication: "while the process was only communicating",
    copy: "while the process was only copying memory",
    empty: "while no operator was running",
  };
  const ON_DEVICE = {
    compute: "while the device was computing",
    communication: "while the device was only communicating",
    copy: "while the device was only copying memory",
    empty: "while the device had nothing to do",
  };
  const STATES = data.cpu ? ON_CPU : ON_DEVICE;

  function name(number) {
    return number < 0 ? "" : data.names[number];
  }

  function spanItem(span) {
    const kind = name(span[2]);
    return { start: span[4], end: span[4] + span[5], name: name(span[3]), kind: kind, weight: 1 };
  }

  function claimItem(claim) {
    const cause = claim[0] < 0 ? UNEXPLAINED : data.causes[claim[0]];
    return {
      start: claim[4],
      end: claim[4] + claim[5],
      name: cause.title,
      kind: "loss",
      cause: cause,
      weight: claim[2],
      state: name(claim[1]),
      what: name(claim[3]),
    };
  }

  // Rows from top to bottom: device lanes, the losses, then the host by depth of nesting.
  function buildRows() {
    const lanes = data.lanes.map(function (lane) {
      return Array.from({ length: lane.rows }, function (_, depth) {
        return { label: depth === 0 ? lane.label : "", of: lane.label, host: lane.host, items: [] };
      });
    });
    data.spans.forEach(function (span) {
      lanes[span[0]][span[1]].items.push(spanItem(span));
    });
    const losses = {
      label: "lost time",
      of: "lost time",
      losses: true,
      items: data.claims.map(claimItem),
    };
    const device = lanes.filter(function (_, i) {
      return !data.lanes[i].host;
    });
    const host = lanes.filter(function (_, i) {
      return data.lanes[i].host;
    });
    const rows = device.flat().concat([losses], host.flat());
    rows.forEach(function (row) {
      row.items.sort(function (a, b) {
        return a.start - b.start || b.end - a.end;
      });
    });
    return rows;
  }

  const rows = buildRows();
  const view = { from: 0, to: data.length_ns };
  const chosen = { row: -1, item: -1 };
  const SHORTEST_NS = Math.min(20, data.length_ns);

  // The nearest part to [from, to] that lies inside the step and is not too short.
  function clamped(from, to) {
    const length = Math.min(data.length_ns, Math.max(SHORTEST_NS, to - from));
    const start = Math.min(Math.max(0, from), data.length_ns - length);
    return { from: start, to: start + length };
  }

  function zoomed(factor, at) {
    const length = (view.to - view.from) * factor;
    const share = (at - view.from) / (view.to - view.from);
    const held = Math.min(data.length_ns, Math.max(SHORTEST_NS, length));
    return clamped(at - share * held, at - share * held + held);
  }

  function moved(share) {
    const by = (view.to - view.from) * share;
    return clamped(view.from + by, view.to + by);
  }

  function itemAt(row, time, slack) {
    let best = -1;
    let least = Infinity;
    rows[row].items.forEach(function (item, i) {
      const away = Math.max(item.start - time, time - item.end, 0);
      if (away <= slack && away <= least) {
        least = away;
        best = i;
      }
    });
    return best;
  }

  function nearest(row, time) {
    return itemAt(row, time, Infinity);
  }

  const UNITS = [
    [1e9, "s"],
    [1e6, "ms"],
    [1e3, "µs"],
    [1, "ns"],
  ];

  function unitOf(ns) {
    return (
      UNITS.find(function (unit) {
        return Math.abs(ns) >= unit[0];
      }) || UNITS[3]
    );
  }

  function duration(ns) {
    if (ns === 0) {
      return "0";
    }
    const unit = unitOf(ns);
    const value = ns / unit[0];
    const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
    return String(Number(value.toFixed(digits))) + " " + unit[1];
  }

  // An instant with as many decimals as steps of this length need to differ.
  function instant(ns, step) {
    const unit = unitOf(ns);
    const digits = Math.min(6, Math.max(0, Math.ceil(Math.log10(unit[0] / step) - 1e-9)));
    return ns === 0 ? "0" : (ns / unit[0]).toFixed(digits) + " " + unit[1];
  }

  function sentences(row, item) {
    const when =
      "starts at " + instant(item.start, 1000) + ", lasts " + duration(item.end - item.start);
    if (!row.losses) {
      return [item.name, item.kind + " on " + row.of, when];
    }
    const part = item.weight < 1 ? Math.round(item.weight * 100) + "% of it lost, " : "";
    const lost = item.cause === UNEXPLAINED ? "unexplained " : "lost ";
    const where = item.what ? "where: " + item.what : "";
    return [item.name, part + (part ? "" : lost) + (STATES[item.state] || ""), when, where].filter(
      Boolean,
    );
  }

  return {
    rows: rows,
    view: view,
    chosen: chosen,
    causes: data.causes,
    length: data.length_ns,
    clamped: clamped,
    zoomed: zoomed,
    moved: moved,
    itemAt: itemAt,
    nearest: nearest,
    duration: duration,
    instant: instant,
    sentences: sentences,
    UNEXPLAINED: UNEXPLAINED,
  };
})();
