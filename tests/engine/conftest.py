import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDERS = (
    HERE,
    HERE / "weights",
    HERE / "weights" / "formats",
    HERE / "rank",
    HERE / "rank" / "cache",
    HERE / "rank" / "driver",
    HERE / "devices",
    HERE / "shards",
    HERE / "gguf",
    HERE / "guests",
    HERE / "vision",
    HERE.parent / "fabric",
)
sys.path[:0] = map(str, FOLDERS)  # the makers of tiny models, and of groups of threads
