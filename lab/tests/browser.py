"""A page in a real browser, and what a script finds in it."""

import html
import json
import re
import shutil
import subprocess

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome is installed")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--dump-dom"),
)
DARK = "--blink-settings=preferredColorScheme=0"


def dump(text, folder, *flags, address=""):
    """The page's document after it has been loaded, as text."""
    assert BROWSER is not None
    page = folder / "page.html"
    page.write_text(text, encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, page.as_uri() + address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def probe(text, script, folder, *flags, address=""):
    """What the JavaScript function body `script` returns, or promises, when the page has been loaded."""
    # The pages forbid all scripts but their own, the probe too.
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    write = "document.body.dataset.seen = JSON.stringify"
    run = f"Promise.resolve().then(async () => {{ {script} }}).then(seen => {{ {write}(seen); }})"
    tell = f"{run}.catch(error => {{ {write}({{error: String(error.stack)}}); }})"
    text = text.replace("</body>", f"<script>addEventListener('load', () => {{ {tell}; }});</script></body>")
    found = re.search('data-seen="([^"]*)"', dump(text, folder, *flags, address=address))
    assert found, "the browser did not run the page"
    seen = json.loads(html.unescape(found[1]))
    assert not (isinstance(seen, dict) and seen.get("error")), seen["error"]
    return seen


def brightness(colour):
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3]))
