#!/bin/sh
# Run tests of the ops in an aarch64 wheel on an x86-64 machine, under qemu-user:
#
#   build_tools/test_on_aarch64.sh dist/accel_ops-*_aarch64.whl DIRECTORY [TEST ...]
#
# DIRECTORY receives Debian's CPython for arm64, PyPI's torch for aarch64 and what the tests need (1 GB), and is used
# again. Exit status 77: something that this needs is missing.
set -eu

wheel=$(realpath "$1")
mkdir -p "$2"
place=$(realpath "$2")
shift 2
tests=$(realpath "$(dirname "$0")/../tests")
python=${PYTHON:-python3}

missing() {
  echo "skipped: $1" >&2
  exit 77
}

for tool in qemu-aarch64 dpkg apt-get; do
  command -v $tool >/dev/null || missing "$tool is not installed (Debian: apt-get install qemu-user)"
done
if [ ! -e "$place/system.done" ]; then
  dpkg --print-foreign-architectures | grep -q arm64 ||
    missing "arm64 is not enabled: dpkg --add-architecture arm64 && apt-get update"
  mkdir -p "$place/packages" "$place/system"
  (
    cd "$place/packages"
    for name in python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 zlib1g \
      libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libuuid1 libsqlite3-0; do
      apt-get download -qq -o APT::Sandbox::User=root "$name:arm64"
    done
  ) || missing "Debian's packages for arm64 cannot be downloaded"
  for package in "$place"/packages/*.deb; do
    dpkg -x "$package" "$place/system"
  done
  touch "$place/system.done"
fi
if [ ! -e "$place/site.done" ]; then
  # pip takes markers for this machine's, so torch's own requirements are named here, without those for CUDA.
  "$python" -m pip install --quiet --target "$place/site" --upgrade --no-deps --only-binary :all: --python-version 3.11 \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 torch==2.10.0 filelock typing-extensions sympy mpmath networkx jinja2 markupsafe \
    fsspec numpy psutil xxhash packaging pybind11 ninja setuptools rich pygments markdown-it-py mdurl safetensors \
    pytest pluggy iniconfig hypothesis sortedcontainers attrs expecttest || missing "torch for aarch64 cannot be downloaded"
  touch "$place/site.done"
fi

# A Python that starts itself as sys.executable, too.
cat >"$place/python3.11" <<END
#!/bin/sh
exec qemu-aarch64 -L "$place/system" -0 "\$0" "$place/system/usr/bin/python3.11" "\$@"
END
chmod +x "$place/python3.11"
rm -rf "$place/ops" "$place/alone"
"$python" -m zipfile -e "$wheel" "$place/ops"
mkdir "$place/alone"
cp -r "$tests" "$place/alone/tests" # without the packages next to them
rm "$place/alone/tests/conftest.py"
cd "$place/alone"
printf '[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\npythonpath = .\nmarkers =\n  slow\n  first\n  cuda\n' \
  >pytest.ini
if [ $# = 0 ]; then
  set -- tests/integration/ops/optim/test_prepared_list.py tests/integration/ops/optim/test_host_op.py \
    tests/integration/ops/optim/test_native_optimizers.py \
    tests/integration/ops/optim/test_fused_update.py \
    tests/integration/ops/io/test_async_io.py tests/integration/ops/comm/test_shm_comm_arguments.py \
    tests/integration/ops/comm/test_shm_comm.py
fi
export PYTHONHOME="$place/system/usr" PYTHONPATH="$place/ops:$place/site" PYTHONDONTWRITEBYTECODE=1
export ACCEL_JIT=0 ACCEL_CACHE_DIR="$place/cache" OMP_NUM_THREADS=1
# The emulator opens no file for direct access.
without="not bypass_the_page_cache"
exec "$place/python3.11" -m pytest -q --hypothesis-profile=ci -m "not slow and not cuda" -k "$without" "$@"
