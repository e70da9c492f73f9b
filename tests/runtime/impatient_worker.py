"""A worker that leaves when it has heard nothing for two seconds."""

from __future__ import annotations

import os
import sys

from shoal.runtime import worker

if __name__ == "__main__":
    worker.IDLE_S = 2.0
    os._exit(worker.main(int(sys.argv[1])))
