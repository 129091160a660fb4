"""The files of the project, and what no file of it may contain.

Forbidden names are put together from pieces here, so that a plain search of the project for them finds nothing.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "bad_samples"

REGISTRY_HOSTS = tuple(
    "".join(pieces)
    for pieces in (
        ("py", "pi.org"),
        ("python", "hosted"),
        ("npm", "js.org"),
        ("npm", "js.com"),
        ("deb.", "debian.org"),
        ("archive.", "ubuntu.com"),
        ("repo1.", "maven.org"),
        ("repo.", "maven.apache.org"),
        ("conda.", "anaconda.org"),
        ("proxy.", "golang.org"),
    )
)
NOT_OURS = {".hypothesis", ".venv", "__pycache__"}
MACHINE_PATH = re.compile(r"(?:^|[^A-Za-z0-9_.])/(?:work|farm|root|home|Users)/")


def leaks(text: str) -> list[tuple[int, str]]:
    """Lines that name a package registry's host or a path of one machine."""
    found: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        found += [(number, host) for host in REGISTRY_HOSTS if host in line]
        if match := MACHINE_PATH.search(line):
            found.append((number, match.group()))
    return found


def project_files(root: Path = ROOT) -> list[str]:
    """Tracked files and new ones that are not ignored, as paths from the root; the whole tree where git is not."""
    if (root / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        )
        names = [name for name in listing.stdout.split("\0") if name]
    else:
        names = [
            str(path.relative_to(root))
            for path in root.rglob("*")
            if not any(part in NOT_OURS or part.endswith("_cache") for part in path.parts)
        ]
    return sorted(name for name in set(names) if (root / name).is_file())
