"""Whether the shipped page of the web console was built from the sources beside it: a digest of these lies with it.

Run `python -m scripts.console_digest`; `scripts/build_console.sh` writes it.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

CONSOLE = Path(__file__).parents[1] / "services" / "console"
DIGEST_FILE = CONSOLE / "static" / "sources.sha256"


def digest(sources: Path = CONSOLE / "ui") -> str:
    """SHA-256 over the names and contents of the page's sources."""
    summed = hashlib.sha256()
    for file in sorted(path for path in sources.rglob("*") if path.is_file() and "node_modules" not in path.parts):
        content = file.read_bytes()
        summed.update(f"{file.relative_to(sources).as_posix()} {len(content)}\n".encode() + content)
    return summed.hexdigest()


def main() -> int:
    """Write the digest, or compare."""
    if "--write" in sys.argv[1:]:
        DIGEST_FILE.write_text(digest() + "\n", encoding="utf-8")
        return 0
    fresh = DIGEST_FILE.is_file() and DIGEST_FILE.read_text(encoding="utf-8").strip() == digest()
    sys.stdout.write("fresh\n" if fresh else "the page is older than its sources: run scripts/build_console.sh\n")
    return 0 if fresh else 1


if __name__ == "__main__":
    raise SystemExit(main())
