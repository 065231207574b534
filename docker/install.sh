#!/bin/sh
# Installs the sidecar into a virtual environment without pip: docker/install.sh PREFIX
# Run from the repository's root, by the Dockerfile and by tests/helm. What is installed, and each file's hash, is in
# docker/requirements.lock; nothing is compiled.
set -eu
prefix=$1
python=${PYTHON:-python3}

# pip and the build backend stay outside of what is shipped
"$python" -m venv "$prefix.build"
"$python" -m venv --without-pip "$prefix"
pip="$prefix.build/bin/python -m pip --disable-pip-version-check --no-cache-dir"
$pip --python "$prefix/bin/python" install --quiet --require-hashes --only-binary :all: --requirement docker/requirements.lock
$pip install --quiet --require-hashes --only-binary :all: --requirement docker/build.lock
$pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$prefix.build/wheels" .
$pip --python "$prefix/bin/python" install --quiet --no-deps --no-index "$prefix.build"/wheels/tito_sidecar-*.whl
$pip --python "$prefix/bin/python" check
rm -rf "$prefix.build"
