"use strict";
(function () {
  /* ---- charts: the values at the pointer, or at the step that the arrow keys choose ---- */

  function chartOf(node) {
    return node && node.closest ? node.closest("svg.chart") : null;
  }

  function linesOf(svg) {
    var lines = [];
    for (var i = 0; i < 3; i++) {
      var text = svg.dataset["line" + i];
      if (!text) continue;
      var at = text.indexOf("|"), values = text.slice(at + 1).split(" ").map(Number);
      if (values.length > 1) lines.push({name: text.slice(0, at), values: values});
    }
    return lines;
  }

  function nearest(values, step) {
    var low = 0, high = values.length / 2 - 1;
    while (high - low > 1) {
      var middle = (low + high) >> 1;
      if (values[2 * middle] < step) low = middle; else high = middle;
    }
    return Math.abs(values[2 * low] - step) <= Math.abs(values[2 * high] - step) ? low : high;
  }

  function showStep(svg, step) {
    var data = svg.dataset, left = +data.left, right = +data.right, x0 = +data.x0, x1 = +data.x1;
    var x = left + (step - x0) / (x1 - x0) * (right - left), cursor = svg.querySelector(".cursor");
    svg.parentNode.querySelector("output").textContent = linesOf(svg).map(function (line) {
      var k = nearest(line.values, step);
      return line.name + " " + line.values[2 * k + 1] + (data.unit ? " " + data.unit : "") +
        " (step " + line.values[2 * k] + ")";
    }).join(", ");
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.classList.add("on");
    data.step = step;
  }

  function hideStep(svg) {
    delete svg.dataset.step;
    svg.querySelector(".cursor").classList.remove("on");
    svg.parentNode.querySelector("output").textContent = "";
  }

  document.addEventListener("pointermove", function (event) {
    var svg = chartOf(event.target);
    if (!svg) return;
    var data = svg.dataset, left = +data.left, right = +data.right, box = svg.getBoundingClientRect();
    var x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    x = Math.min(Math.max(x, left), right);
    showStep(svg, +data.x0 + (x - left) / (right - left) * (data.x1 - data.x0));
  });

  document.addEventListener("pointerout", function (event) {
    var svg = chartOf(event.target);
    if (svg && chartOf(event.relatedTarget) !== svg) hideStep(svg);
  });

  document.addEventListener("focusout", function (event) {
    var svg = chartOf(event.target);
    if (svg) hideStep(svg);
  });

  document.addEventListener("keydown", function (event) {
    var svg = chartOf(event.target), lines = svg ? linesOf(svg) : [];
    var by = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
    if (!by || !lines.length) return;
    var values = lines[0].values, last = values.length / 2 - 1;
    var at = svg.dataset.at === undefined ? (by < 0 ? last + 1 : -1) : +svg.dataset.at;
    at = Math.min(Math.max(at + by, 0), last);
    svg.dataset.at = at;
    showStep(svg, values[2 * at]);
    event.preventDefault();
  });

  /* What a mouse can scroll or point at, keys can reach. */
  function reachable(root) {
    root.querySelectorAll("svg.chart, .wide, pre").forEach(function (node) {
      node.setAttribute("tabindex", "0");
    });
  }

  document.documentElement.classList.add("js");
  reachable(document);
  var live = document.getElementById("live");
  if (!live) return;

  /* ---- the page of http.listen ---- */

  var LIST_MS = 3000, JOB_MS = 2000, IDLE_MS = 5000, RETRY_MS = 30000, EVENTS = 100, LINES = 500;
  var KEY = "fsdpd-token", token = null, job = "", failed = 0, sequence = 0, following = false;
  var stop = null; /* of the view: aborts all that it asked for */
  var timer = 0, due = 0, logStop = null;
  var main = find("main"), said = find("said"), login = find("login"), follows = find("follows");
  var log = find("log"), logs = find("logs"), events = find("events");

  function find(id) {
    return document.getElementById(id);
  }

  function keep(secret) {
    token = secret;
    try {
      if (secret) sessionStorage.setItem(KEY, secret); else sessionStorage.removeItem(KEY);
    } catch (error) { /* this tab forgets it */ }
  }

  function say(text) {
    if (said.textContent !== text) said.textContent = text;
  }

  function get(path, signal) {
    return fetch(path, {
      headers: {Authorization: "Bearer " + token}, cache: "no-store", credentials: "omit",
      redirect: "error", signal: signal
    }).then(function (response) {
      if (response.ok) return response;
      return response.json().then(function (body) {
        var error = new Error(body.error.message);
        error.code = response.status;
        throw error;
      });
    });
  }

  function pathOf(what) {
    return "/v1/jobs/" + encodeURIComponent(job) + "/" + what;
  }

  /* ---- the part that the coordinator writes ---- */

  /* Refreshes after this time, or earlier if that was to happen. */
  function later(ms) {
    var at = Date.now() + ms;
    if (timer && due <= at) return;
    clearTimeout(timer);
    due = at;
    timer = setTimeout(refresh, ms);
  }

  /* Where the focus is, which step of which chart is shown, and what is open, stays. */
  function swap(text) {
    var root = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
    var stays = "a, svg.chart, .wide, pre, summary", shown = [],
        old = main.querySelector("details");
    if (old && root.querySelector("details")) root.querySelector("details").open = old.open;
    main.querySelectorAll(stays).forEach(function (node, i) {
      var chart = node.dataset.step !== undefined, focused = node === document.activeElement;
      if (chart || focused)
        shown.push({at: i, link: node.getAttribute("href"), focused: focused,
          step: node.dataset.step, key: node.dataset.at});
    });
    reachable(root);
    main.replaceChildren(root);
    var nodes = Array.from(main.querySelectorAll(stays));
    shown.forEach(function (old) {
      var node = !old.link ? nodes[old.at] : nodes.find(function (one) {
        return one.getAttribute("href") === old.link;
      });
      if (!node) return;
      if (old.focused) node.focus({preventScroll: true});
      if (old.step === undefined || !chartOf(node)) return;
      if (old.key !== undefined) node.dataset.at = old.key;
      showStep(node, +old.step);
    });
    return root.dataset;
  }

  function failure(error, signal) {
    if (signal.aborted) return;
    if (error.code === 401) {
      keep(null);
      open(error.message);
      return;
    }
    failed++;
    say(error.code ? error.message : "fsdpd does not answer; the page asks again.");
    if (error.code && error.code !== 429 && error.code < 500) return;
    later(Math.min(RETRY_MS, 1000 * Math.pow(2, failed)));
  }

  function refresh() {
    if (!stop) return;
    var signal = stop.signal, own = job;
    timer = 0;
    get(own ? pathOf("page") : "/v1/page", signal).then(function (response) {
      return response.text();
    }).then(function (text) {
      if (signal.aborted) return;
      var place = swap(text);
      failed = 0;
      say("");
      later(place.more === "1" ? 50 : own ? IDLE_MS : LIST_MS);
      if (!own || following || place.more === "1") return;
      following = true;
      sequence = +place.sequence;
      followEvents(signal);
    }).catch(function (error) {
      failure(error, signal);
    });
  }

  /* ---- streams of events ---- */

  /* Calls `take` with each message; resolves to true if the stream ended as it should. */
  function follow(path, signal, take) {
    return get(path, signal).then(function (response) {
      var reader = response.body.getReader(), decoder = new TextDecoder(), rest = "", ended = false;
      function event(text) {
        if (text.indexOf("event: end") === 0) ended = true;
        else if (text.indexOf("data: ") === 0) take(JSON.parse(text.slice(6)));
      }
      function read() {
        return reader.read().then(function (part) {
          if (part.done) return ended;
          var parts = (rest + decoder.decode(part.value, {stream: true})).split("\n\n");
          rest = parts.pop();
          parts.forEach(event);
          return read();
        });
      }
      return read();
    });
  }

  function describe(event) {
    var it;
    if ((it = event.state)) return it.state + (it.reason ? ": " + it.reason.message : "");
    if ((it = event.epoch)) return "epoch " + it.epoch + " is done, training loss " + it.train_loss;
    if ((it = event.validation))
      return (it.set ? it.set + ": " : "") + "validation loss " + it.loss + " after step " + it.step;
    if ((it = event.wrap)) return "units changed at step " + it.step;
    if ((it = event.sampled)) return "samples of step " + it.step;
    if ((it = event.checkpoint))
      return it.code ? it.message : "checkpoint of step " + (it.checkpoint || {}).step;
    if ((it = event.dropped)) return it.metrics + " figures were left out";
    return event.log || "";
  }

  function timeOf(time) {
    return (time || "").slice(11, 19);
  }

  function takeEvent(event) {
    sequence = Math.max(sequence, event.sequence);
    later(JOB_MS);
    var text = describe(event);
    if (!text) return;
    var item = document.createElement("li"), time = document.createElement("time");
    time.textContent = timeOf(event.time);
    item.append(time, text);
    events.prepend(item);
    if (events.childElementCount > EVENTS) events.lastElementChild.remove();
    find("quiet").hidden = true;
  }

  function followEvents(signal) {
    var before = Date.now();
    function again() {
      if (signal.aborted) return;
      setTimeout(function () {
        if (!signal.aborted) followEvents(signal);
      }, Date.now() - before > RETRY_MS ? 1000 : 5000);
    }
    follow(pathOf("events?after_sequence=" + sequence), signal, takeEvent).then(function (ended) {
      if (ended) later(0); else again();
    }, function (error) {
      if (error.code === 401) failure(error, signal); else again();
    });
  }

  function takeLines(message) {
    var below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    (message.lines || []).forEach(function (line) {
      log.append(timeOf(line.time) + " " + (line.rank < 0 ? "fsdpd" : "rank " + line.rank) + " " +
        line.text + "\n");
      if (log.childNodes.length > LINES) log.firstChild.remove();
    });
    if (below) log.scrollTop = log.scrollHeight;
  }

  logs.addEventListener("toggle", function () {
    if (logStop) logStop.abort();
    if (!logs.open || !stop || !job) return;
    var own = logStop = new AbortController(), signal = own.signal;
    stop.signal.addEventListener("abort", function () {
      own.abort();
    });
    log.replaceChildren();
    follow(pathOf("logs?tail=200&follow=true"), signal, takeLines).catch(function (error) {
      if (!signal.aborted) say(error.message || "the log could not be read");
    });
  });

  /* ---- views ---- */

  /* "#job=ID", and of a link for a colleague "&token=SECRET", which leaves the address at once. */
  function readAddress() {
    var given = new URLSearchParams(location.hash.slice(1));
    job = given.get("job") || "";
    if (!given.get("token")) return;
    keep(given.get("token"));
    history.replaceState(null, "", job ? "#job=" + encodeURIComponent(job) : location.pathname);
  }

  function close() {
    if (stop) stop.abort();
    stop = null;
    clearTimeout(timer);
    timer = 0;
  }

  function begin() {
    close();
    stop = new AbortController();
    failed = 0;
    following = logs.open = false;
    if (token) later(0);
  }

  function open(why) {
    readAddress();
    events.replaceChildren();
    find("quiet").hidden = false;
    say(why || "");
    login.hidden = !!token;
    find("leave").hidden = !token;
    follows.hidden = !token || !job;
    main.replaceChildren();
    document.title = job ? job + " - fsdpd" : "fsdpd";
    begin();
    if (!token) find("token").focus();
  }

  login.addEventListener("submit", function (event) {
    event.preventDefault();
    keep(find("token").value.trim());
    find("token").value = "";
    open();
    main.focus();
  });
  find("leave").addEventListener("click", function () {
    keep(null);
    open();
  });
  window.addEventListener("hashchange", function () {
    open();
    main.focus();
  });
  /* A hidden tab asks for nothing. */
  document.addEventListener("visibilitychange", function () {
    if (document.hidden) close(); else begin();
  });

  try {
    token = sessionStorage.getItem(KEY);
  } catch (error) { /* none is kept */ }
  open();
})();
