"""An agent of the standard library alone: it starts in a tenth of a second. For what no SDK matters.

python -I -S plain_agent.py TURNS [RESULT [WORDS EXIT_CODE]]: a conversation of so many turns; then it leaves RESULT
as its result file, unless that is empty, and prints WORDS as it exits.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path


def main() -> None:
    """Talk, then leave the result."""
    turns, result, words, code, *_ = [*sys.argv[1:], *["", "", "0"][len(sys.argv) - 2 :]]
    messages = [{"role": "user", "content": json.loads(Path(os.environ["TITO_TASK_FILE"]).read_text())["prompt"]}]
    for _ in range(int(turns)):
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            json.dumps({"model": "m", "messages": messages}).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
        )
        with urllib.request.urlopen(request) as reply:
            said = json.load(reply)["choices"][0]["message"]["content"]
        print("said:", said, flush=True)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    if result:
        Path(os.environ["TITO_RESULT_FILE"]).write_text(result)
    print(words, file=sys.stderr)
    sys.exit(int(code))


if __name__ == "__main__":
    main()
