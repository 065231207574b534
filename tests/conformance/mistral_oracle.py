"""`mistral-common` as an oracle, in a process of its own: `python mistral_oracle.py TEKKEN_JSON`.

Reads chat requests as JSON lines, writes the ids that Mistral's own code encodes each to. Nothing of the project is
imported, and nothing of mistral-common's into the tests' process.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Answers until the input ends."""
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    tokenizer = MistralTokenizer.from_file(sys.argv[1])
    for line in sys.stdin:
        request = ChatCompletionRequest.model_validate(json.loads(line))
        print(json.dumps(list(tokenizer.encode_chat_completion(request).tokens)))


if __name__ == "__main__":
    main()
