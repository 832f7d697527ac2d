/*
 * The frame of a job's page: its content security policy, style and script. The policy names the
 * style and the script by their SHA-256, so a change of either needs its new hash here.
 * tests/system/test_report.py computes the hashes, too, and a browser that runs the page there
 * reports a wrong one.
 */
#include "html.h"
#include "page.h"

/* clang-format off */
#define STYLE_HASH "sha256-8FfYodcB3AB9cizUhcyzD6C8KEVkPBJvlJaEnFeRIOw="
#define SCRIPT_HASH "sha256-ikI0+x6rE1fP89in4f0q2mU6fBoQQG1YjUHiMhQHaoU="

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1a1c1f;--dim:#5d646d;--line:#d9dde2;"
    "--panel:#f5f6f8;--c0:#2463c4;--c1:#c4541c;--c2:#23813f;--m3:#8a4fc0;--m4:#b3307c;"
    "--m5:#8a6d00;--m6:#0b7c86;--m7:#6b7280;--m8:#1f2937;--m9:#a3b18a}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#15181c;--fg:#e4e7eb;--dim:#98a1ad;"
    "--line:#333a43;--panel:#1d2127;--c0:#6ea4f4;--c1:#f0935c;--c2:#62c37f;--m3:#b48be2;"
    "--m4:#e079b4;--m5:#d0b340;--m6:#4fb9c4;--m7:#98a1ad;--m8:#e5e7eb;--m9:#7d8b66}}\n"
    "body{background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif;margin:0 "
    "auto;max-width:1240px;padding:16px 20px 40px}\n"
    "h1{font-size:1.6rem;margin:.2em 0}h2{font-size:1.15rem;border-bottom:1px solid "
    "var(--line);padding-bottom:4px;margin:1.6em 0 .7em}h3{font-size:1rem;margin:0 0 4px}\n"
    "p{margin:.4em 0;overflow-wrap:anywhere}\n"
    ".note,.none,figcaption,dt{color:var(--dim)}\n"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0}dd{margin:0;"
    "overflow-wrap:anywhere}\n"
    ".state{font-size:.8em;padding:1px 8px;border-radius:9px;border:1px solid currentColor;"
    "color:var(--dim);white-space:nowrap}\n"
    ".s-SUCCEEDED{color:var(--c2)}.s-FAILED{color:var(--c1)}.s-RUNNING,.s-STARTING{"
    "color:var(--c0)}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,504px),1fr));"
    "gap:18px}\n"
    "figure{margin:0;background:var(--panel);border-radius:8px;padding:10px 12px}\n"
    "figcaption{font-size:.85rem;min-height:2.6em}output{display:block;color:var(--fg);"
    "font-variant-numeric:tabular-nums}\n"
    "svg{display:block;width:100%;height:auto}svg text{fill:var(--dim);font:12px system-ui,"
    "sans-serif}\nsvg.chart{max-width:620px}svg.memory{max-width:860px}\n"
    "text.y{text-anchor:end}text.x{text-anchor:middle}\n"
    ".mark{stroke:var(--m3);stroke-dasharray:4 3}.key.mark{background:var(--m3)}\n"
    ".grid{stroke:var(--line)}.cursor{stroke:var(--dim);visibility:hidden}.cursor.on{"
    "visibility:visible}\n"
    "polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}.band{opacity:.22;stroke:none}"
    "\n"
    "polyline.c0{stroke:var(--c0)}polyline.c1{stroke:var(--c1)}polyline.c2{stroke:var(--c2)}\n"
    ".band.c0,circle.c0,rect.l0,rect.m0{fill:var(--c0)}.band.c1,circle.c1,rect.l1,rect.m1{"
    "fill:var(--c1)}.band.c2,circle.c2,rect.l2,rect.m2{fill:var(--c2)}\n"
    "rect.m3{fill:var(--m3)}rect.m4{fill:var(--m4)}rect.m5{fill:var(--m5)}rect.m6{"
    "fill:var(--m6)}rect.m7{fill:var(--m7)}rect.m8{fill:var(--m8)}rect.m9{fill:var(--m9)}\n"
    ".key{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px;"
    "background:var(--m7)}\n"
    ".key.c0,.key.l0,.key.m0{background:var(--c0)}.key.c1,.key.l1,.key.m1{"
    "background:var(--c1)}.key.c2,.key.l2,.key.m2{background:var(--c2)}\n"
    ".key.m3{background:var(--m3)}.key.m4{background:var(--m4)}.key.m5{background:var(--m5)}"
    ".key.m6{background:var(--m6)}.key.m8{background:var(--m8)}.key.m9{background:var(--m9)}\n"
    ".measured{stroke:var(--fg);stroke-width:2}.lane{fill:var(--panel)}\n"
    "svg.step rect:not(.lane){stroke:var(--bg);stroke-width:.4}svg.step{min-width:900px}\n"
    ".wide{overflow-x:auto}\n"
    "table{border-collapse:collapse;width:100%;font-size:.92rem}th,td{text-align:left;"
    "padding:4px 12px 4px 0;border-bottom:1px solid var(--line);vertical-align:top;"
    "overflow-wrap:anywhere}\n"
    "th{color:var(--dim);font-weight:600}.n{text-align:right;"
    "font-variant-numeric:tabular-nums;white-space:nowrap}tfoot td{font-weight:600}\n"
    "pre{background:var(--panel);border-radius:8px;padding:12px;overflow-x:auto;"
    "font-size:.85rem}\n"
    "@media print{:root{color-scheme:light;--bg:#fff;--fg:#000;--dim:#444;--line:#bbb;"
    "--panel:#fff;--c0:#2463c4;--c1:#c4541c;--c2:#23813f}body{max-width:none;padding:0;"
    "font-size:11px}section,figure,tr{break-inside:avoid}.charts{grid-template-columns:1fr "
    "1fr}output{display:none}pre{white-space:pre-wrap}svg.step{min-width:0}*{"
    "print-color-adjust:exact;-webkit-print-color-adjust:exact}}\n";

static const char script[] =
    "\"use strict\";\n"
    "document.querySelectorAll(\"svg.chart\").forEach(function (svg) {\n"
    "  var data = svg.dataset, lines = [], cursor = svg.querySelector(\".cursor\");\n"
    "  var output = svg.parentNode.querySelector(\"output\");\n"
    "  for (var i = 0; i < 3; i++) {\n"
    "    var text = data[\"line\" + i];\n"
    "    if (!text) continue;\n"
    "    var at = text.indexOf(\"|\"), values = text.slice(at + 1).split(\" \").map(Number);\n"
    "    if (values.length > 1) lines.push({name: text.slice(0, at), values: values});\n"
    "  }\n"
    "  function nearest(values, step) {\n"
    "    var low = 0, high = values.length / 2 - 1;\n"
    "    while (high - low > 1) {\n"
    "      var middle = (low + high) >> 1;\n"
    "      if (values[2 * middle] < step) low = middle; else high = middle;\n"
    "    }\n"
    "    return Math.abs(values[2 * low] - step) <= Math.abs(values[2 * high] - step) ? low : "
    "high;\n"
    "  }\n"
    "  svg.addEventListener(\"pointermove\", function (event) {\n"
    "    var box = svg.getBoundingClientRect(), left = +data.left, right = +data.right;\n"
    "    var x = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;\n"
    "    x = Math.min(Math.max(x, left), right);\n"
    "    var x0 = +data.x0, x1 = +data.x1, step = x0 + (x - left) / (right - left) * (x1 - x0);\n"
    "    output.textContent = lines.map(function (line) {\n"
    "      var k = nearest(line.values, step);\n"
    "      return line.name + \" \" + line.values[2 * k + 1] + "
    "(data.unit ? \" \" + data.unit : \"\") +\n"
    "        \" (step \" + line.values[2 * k] + \")\";\n"
    "    }).join(\", \");\n"
    "    cursor.setAttribute(\"x1\", x);\n"
    "    cursor.setAttribute(\"x2\", x);\n"
    "    cursor.classList.add(\"on\");\n"
    "  });\n"
    "  svg.addEventListener(\"pointerleave\", function () {\n"
    "    cursor.classList.remove(\"on\");\n"
    "    output.textContent = \"\";\n"
    "  });\n"
    "});\n"
    "document.documentElement.classList.add(\"js\");\n";
/* clang-format on */

void page_add_head(const char *title, struct buf *out)
{
    buf_add_text(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                      "style-src '" STYLE_HASH "'; script-src '" SCRIPT_HASH "'; "
                      "base-uri 'none'; form-action 'none'\">\n"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                      "<meta name=\"referrer\" content=\"no-referrer\">\n<title>");
    html_add(out, title);
    buf_add_text(out, "</title>\n<style>");
    buf_add_text(out, style);
    buf_add_text(out, "</style>\n</head>\n<body>\n");
}

void page_add_foot(struct buf *out)
{
    buf_add_text(out, "<script>");
    buf_add_text(out, script);
    buf_add_text(out, "</script>\n</body>\n</html>\n");
}
