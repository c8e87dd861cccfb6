"""padserve against other servers, see `bench.py` and README.md. For any task, not only embed.

python loadtests/bench_embed.py --peers infinity,vllm --clients 32 --rounds 5 --seconds 15
python loadtests/bench_embed.py --task classify --peers pipeline
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtests.bench import main

if __name__ == "__main__":
    sys.exit(main())
