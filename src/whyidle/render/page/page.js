// Theme switch and copy buttons. The page is complete without them.
"use strict";

(function () {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const KEY = "whyidle-theme";

  function remembered() {
    try {
      const found = window.localStorage.getItem(KEY);
      return found === "dark" || found === "light" ? found : null;
    } catch (error) {
      return null; // storage is closed to files in some browsers
    }
  }

  function isDark() {
    const chosen = root.getAttribute("data-theme");
    return chosen ? chosen === "dark" : prefersDark.matches;
  }

  function show() {
    button.textContent = isDark() ? "Use light colours" : "Use dark colours";
    window.dispatchEvent(new Event("whyidle-theme"));
  }

  button.addEventListener("click", function () {
    const next = isDark() ? "light" : "dark";
    root.setAttribute("data-theme", next);
    try {
      window.localStorage.setItem(KEY, next);
    } catch (error) {
      // the choice lasts as long as the page
    }
    show();
  });
  prefersDark.addEventListener("change", show);
  const before = remembered();
  if (before) {
    root.setAttribute("data-theme", before);
  }
  button.hidden = false;
  show();

  function addCopyButton(block) {
    const text = block.textContent;
    const copy = document.createElement("button");
    copy.type = "button";
    copy.textContent = "Copy";
    copy.addEventListener("click", function () {
      navigator.clipboard.writeText(text).then(
        function () {
          copy.textContent = "Copied";
        },
        function () {
          copy.textContent = "Press Ctrl+C";
          window.getSelection().selectAllChildren(block.firstChild);
        },
      );
      window.setTimeout(function () {
        copy.textContent = "Copy";
      }, 2000);
    });
    block.classList.add("has-button");
    block.appendChild(copy);
  }

  if (navigator.clipboard) {
    document.querySelectorAll("pre.copyable").forEach(addCopyButton);
  }

  // What scrolls sideways can be reached by keyboard; what fits needs no stop.
  function markScrollable() {
    document.querySelectorAll("pre, .scroll").forEach(function (part) {
      part.tabIndex = part.scrollWidth > part.clientWidth ? 0 : -1;
    });
  }

  markScrollable();
  window.addEventListener("resize", markScrollable);
})();
