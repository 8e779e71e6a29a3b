import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # ranks, groups of threads and expected results, for the folders below
