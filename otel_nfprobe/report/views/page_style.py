# SPDX-License-Identifier: Apache-2.0
"""The style sheet of the HTML page."""

STYLE = """
:root { color-scheme: light dark; --back: #fbfbf9; --card: #fff; --ink: #1c1f24; --soft: #626a75;
  --line: #dfe2e6; --own: #2f6fde; --cause: #d9431e; --other: #c3c9d2; --wait: #f2c14e; --on: #fff; }
@media (prefers-color-scheme: dark) { :root { --back: #14161a; --card: #1c1f25; --ink: #e7e9ec;
  --soft: #9aa3ae; --line: #30353d; --own: #6ea3ff; --cause: #ff7a52; --other: #4a515c; --wait: #b58a22;
  --on: #14161a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 19px; margin: 40px 0 8px; }
h3 { font-size: 17px; margin: 0; font-variant-numeric: tabular-nums; }
h3 small { font-weight: 400; font-size: 14px; color: var(--soft); margin-left: 8px; }
header p, footer, .legend, h2 + p { color: var(--soft); margin: 4px 0 0; }
.damage { color: var(--cause); }
code { font: 12px ui-monospace, "SF Mono", Menlo, monospace; color: var(--soft); margin-left: 6px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 10px;
  margin: 24px 0 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
dd { margin: 0; font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; }
dt { color: var(--soft); font-size: 13px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px 10px;
  margin-top: 14px; }
section p { margin: 2px 0 10px; } svg + p { margin: 8px 0 4px; color: var(--soft); font-size: 13px; }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 6px 0 18px;
  vertical-align: -1px; }
.key:first-child { margin-left: 0; }
.key.own { background: var(--own); } .key.cause { background: var(--cause); }
.key.other { background: var(--other); } .key.wait { background: var(--wait); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg text.in { fill: var(--ink); } svg text.on { fill: var(--on); font-weight: 600; pointer-events: none; }
svg .own { fill: var(--own); } svg .cause { fill: var(--cause); }
svg .other { fill: var(--other); } svg .wait { fill: var(--wait); }
svg rect:hover { opacity: .75; }
svg line { stroke: var(--line); stroke-width: 1; }
svg line.mark { stroke: var(--ink); stroke-dasharray: 3 3; }
.enlarged { margin-left: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { color: var(--soft); font-weight: 500; }
th:first-child { text-align: left; position: relative; min-width: 190px; padding-left: 6px; }
tbody th { font: 600 13px ui-monospace, "SF Mono", Menlo, monospace; }
tbody th span:last-child { position: relative; }
.bar { position: absolute; left: 0; top: 3px; bottom: 3px; background: var(--own); opacity: .18;
  border-radius: 3px; }
.histogram { max-width: 960px; margin-top: 12px; }
footer { margin-top: 40px; font-size: 13px; }
"""
