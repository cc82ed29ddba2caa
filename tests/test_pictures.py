"""The picture of the network is that of the modules as they are."""

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

DOCS = Path(__file__).parent.parent / "docs"


def test_drawn_anew_the_network_is_byte_for_byte_the_picture_in_the_docs():
    spec = importlib.util.spec_from_file_location("network_picture", DOCS / "network_picture.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    drawn = script.draw().encode()
    assert ElementTree.fromstring(drawn).get("role") == "img"
    assert drawn == (DOCS / "network.svg").read_bytes(), "draw it again: .venv/bin/python docs/network_picture.py"
