"""Run a command beside eight busy processes, with Ctrl-C ignored: python tests/beside_busy_processes.py COMMAND..."""

from __future__ import annotations

import signal
import subprocess
import sys

BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with us in any case

signal.signal(signal.SIGINT, signal.SIG_IGN)
busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(8)]
try:
    code = subprocess.run(sys.argv[1:], check=False).returncode
finally:
    for process in busy:
        process.kill()
sys.exit(code)
