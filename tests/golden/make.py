"""Write the golden files of this version: python tests/golden/make.py

tests/golden/<version>/ holds a panel, a run, a saved forecaster and the forecasts that they give. Every later 0.x must
read them. Run this once for each version that changes a format, and never again for a version that has been released.
"""

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from artifact_samples import make_all  # noqa: E402

from mqcast import Panel  # noqa: E402
from mqcast.run import Run  # noqa: E402
from mqcast.version import __version__  # noqa: E402


def main() -> None:
    folder = HERE / __version__
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    make_all(folder)
    run = Run.open(folder / "run")
    digests = {
        "panel": Panel.open(folder / "panel").fingerprint,
        "signature": run.layout.signature,
        "weights": run.weights_digest,
    }
    (folder / "digests.json").write_text(json.dumps(digests, indent=1) + "\n")
    shutil.rmtree(folder / "run" / "checkpoints")  # a run that is done does without them
    print(f"{folder} is written")  # noqa: T201


if __name__ == "__main__":
    main()
