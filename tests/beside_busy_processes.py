"""Run a command beside eight busy processes and with Ctrl-C ignored: python tests/beside_busy_processes.py COMMAND..."""

from __future__ import annotations

import signal
import subprocess
import sys

signal.signal(signal.SIGINT, signal.SIG_IGN)
busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(8)]
try:
    code = subprocess.run(sys.argv[1:], check=False).returncode
finally:
    for process in busy:
        process.kill()
sys.exit(code)
