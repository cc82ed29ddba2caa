"""Writes docs/licences.md: the licence of every package that is pinned, as the package itself names it.

    .venv/bin/python tools/licences.py

What is installed tells it; what is not (CUDA, where torch comes without) keeps the row it has.
"""

import importlib.metadata as metadata
import re
from pathlib import Path

from lock import ROOT, versions

PAGE = ROOT / "docs" / "licences.md"
PINS = ("constraints.txt", "constraints-cuda.txt")
HEAD = """# Licences

mqcast is under the [Apache License 2.0](https://www.apache.org/licenses/LICENSE-2.0). It contains no code of others.
These are the packages that it, its extras or its development need, as `constraints.txt` pins them (the last ones, of
CUDA, only where torch comes with it: `constraints-cuda.txt`); each names its own licence.
`.venv/bin/python tools/licences.py` writes this page.

| Package | Version | Licence |
| --- | --- | --- |
"""


def licence(name: str) -> str | None:
    """As the package's metadata have it: an SPDX expression, or classifiers, or a line of text."""
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    classifiers = [x.rpartition(" :: ")[2] for x in found.get_all("Classifier") or () if x.startswith("License :: ")]
    text = (found.get("License") or "").strip()
    named = text if text and "\n" not in text and len(text) < 80 else None
    return found.get("License-Expression") or named or " and ".join(sorted(set(classifiers))) or "not named"


def rows(page: str) -> dict[str, tuple[str, str]]:
    """Version and licence by package, of a page that was written before."""
    return {name: (version, of) for name, version, of in re.findall(r"^\| (\S+) \| (\S+) \| (.+) \|$", page, re.M)}


def main() -> None:
    before = rows(PAGE.read_text()) if PAGE.exists() else {}
    lines = []
    for file in PINS:
        for name, version in sorted(versions(Path(ROOT / file)).items()):
            of = licence(name) or before.get(name, ("", "see the package"))[1]
            lines.append(f"| {name} | {version} | {of.replace('|', '/')} |")
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
