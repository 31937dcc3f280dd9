import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `together` is shared by the tests below.
