#!/bin/sh
# Say what is missing before an installation starts, and how to get it. Usage: check-tools.sh PYTHON
python=${1:-python3}
missing=0

say() {
    echo "ferrule: $1" >&2
    echo "         $2" >&2
    missing=1
}

if ! command -v "$python" >/dev/null 2>&1; then
    say "$python was not found; Ferrule needs Python 3.11 or newer" \
        "Debian/Ubuntu: sudo apt install python3 python3-venv   macOS: brew install python"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    say "$("$python" --version) is too old; Ferrule needs Python 3.11 or newer" \
        "install a newer one and name it: make run PYTHON=python3.12"
else
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        say "this Python has no venv module" "Debian/Ubuntu: sudo apt install python3-venv"
    header=$("$python" -c 'import os, sysconfig; print(os.path.join(sysconfig.get_paths()["include"], "Python.h"))')
    test -f "$header" ||
        say "Python's headers are missing ($header)" "Debian/Ubuntu: sudo apt install python3-dev"
fi

compiler=${CXX:-c++}
if ! command -v "$compiler" >/dev/null 2>&1; then
    say "no C++ compiler ($compiler); the native fabric is built on this machine" \
        "Debian/Ubuntu: sudo apt install g++   macOS: xcode-select --install"
elif ! echo '#include <bit>
int main() { return std::popcount(0u); }' | "$compiler" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; then
    say "$compiler does not compile C++20" "install g++ 11 or clang 14 or newer, and name it: CXX=g++-12 make run"
fi

exit $missing
