"""Make the pages and pictures of the site's gallery: real estimates of the demo scripts.

Usage: gallery.py FOLDER

Pictures need playwright and a Chromium of the system; without them the gallery has the pages alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# By name, the script, and the section of the page that is worth a picture.
PAGES = {"gpt2": "examples/train_gpt2.py", "resnet": "examples/train_resnet.py"}
SECTIONS = {"curve": "memory over the run", "bricks": "blocks around the peak", "segments": "segments"}


def make_page(script: str, file: Path) -> None:
    """Run a demo script on no GPU, and write the page of its estimate.

    Raises:
        subprocess.CalledProcessError: It failed; why is on stderr.
    """
    command = ["xmem-fast", "run", "--gpu", "rtx-3060", "--html", str(file), "--", "python", script]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def take_pictures(folder: Path, browser: str) -> None:
    """Take a picture of each section of each page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for name in PAGES:
            page = chromium.new_page(viewport={"width": 1100, "height": 900})
            page.goto((folder / f"{name}.html").as_uri())
            for section in SECTIONS:
                page.locator(f"#{section}").screenshot(path=folder / f"{name}-{section}.png")
        chromium.close()


def main(arguments: list[str]) -> int:
    """Fill the folder."""
    folder = Path(arguments[0]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in PAGES.items():
        make_page(script, folder / f"{name}.html")
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("gallery: there is no Chromium, so the gallery has no pictures", file=sys.stderr)
    else:
        take_pictures(folder, browser)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
