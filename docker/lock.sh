#!/bin/sh
# Writes docker/*.lock anew from pyproject.toml (uv from PyPI): sh docker/lock.sh
# Run it after a change of the dependencies, look at the difference, and commit it.
set -eu
cd "$(dirname "$0")/.."
lock() {
    uv pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-emit-index-url --no-annotate \
        --custom-compile-command "sh docker/lock.sh" "$@"
}
lock pyproject.toml --extra postgres --extra export --output-file docker/requirements.lock
echo "hatchling>=1.27" | lock - --output-file docker/build.lock
