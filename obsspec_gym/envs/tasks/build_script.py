"""The bash functions that carry out an image's build steps."""

from __future__ import annotations

import re

from obsspec_gym.envs.tasks.build_programs import APT, OWNER, PIP, USERADD

CONTEXT = "context.tar"
"""Name of the archive, beside the build script, that holds what the steps copy."""

_FAILED = re.compile(r"^obsspec-build: line (\d+): (.*)$", re.MULTILINE | re.DOTALL)

_FUNCTIONS = r"""
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
umask 022
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir "$work/bin" "$work/context" && : > "$work/refused" && chmod 666 "$work/refused"
answer() { for name in "${@:2}"; do printf %s "$1" > "$work/bin/$name" && chmod 755 "$work/bin/$name"; done; }
answer "$APT" apt apt-get aptitude
answer "$PIP" pip pip3
# One user only, or several?
single=$(awk '{ users += $3 } END { if (users < 2) print "yes" }' /proc/self/uid_map)
if [ "$single" ]; then
  answer "$OWNER" chown chgrp
  answer "$USERADD" useradd adduser
fi
[ ! -e "$BUILD/context.tar" ] || tar -xf "$BUILD/context.tar" --no-same-owner -p -C "$work/context" || exit 1

# Public base images come without the account that ours has for agents.
sed -i '/^agent:/d' /etc/passwd /etc/group /etc/shadow /etc/gshadow && rm -rf /home/agent

fail() { printf 'obsspec-build: line %s: %s\n' "$1" "$2"; exit 1; }
account() { getent passwd "$1" || grep -E "^($1:|[^:]*:[^:]*:$1:)" /etc/passwd; }

# LINE USER DIRECTORY NAME=VALUE... -- COMMAND...
run() {
  local line=$1 user=$2 directory=$3 variables=() path= home= status as=()
  shift 3
  home=$(account "${user%%:*}" | cut -d: -f6)
  while [ "$1" != -- ]; do
    case $1 in PATH=*) path=${1#PATH=} ;; *) variables+=("$1") ;; esac
    shift
  done
  shift
  if [ "${user%%:*}" != root ] && [ "${user%%:*}" != 0 ] && [ -z "$single" ]; then
    local group=${user#*:}
    [ "$group" != "$user" ] || group=$(account "$user" | cut -d: -f4)
    as=(setpriv --reuid "${user%%:*}" --regid "${group:-0}" --clear-groups)
  fi
  (cd "$directory" && exec "${as[@]}" env -i "HOME=${home:-/}" "${variables[@]}" "PATH=$work/bin:$path" \
    "OBSSPEC_REFUSED=$work/refused" PIP_NO_INDEX=1 PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore TAR_OPTIONS=--no-same-owner "$@") > "$work/log" 2>&1 < /dev/null
  status=$?
  [ ! -s "$work/refused" ] ||
    fail "$line" "the base image does not have: $(sort -u "$work/refused" | sed ':a;N;$!ba;s/\n/; /g')"
  [ $status = 0 ] || fail "$line" "RUN failed with exit status $status: $(tail -c 600 "$work/log")"
}

# LINE OWNER MODE DESTINATION SOURCE
copy() {
  local from=$work/context/$5 to=$4
  if [ -d "$from" ]; then
    mkdir -p "$to" && cp -r --preserve=mode,timestamps "$from/." "$to" || fail "$1" "could not copy to $4"
    copied() { (cd "$from" && find . -mindepth 1 -print0) | (cd "$to" && PATH=$work/bin:$PATH xargs -0 -r "$@"); }
  else
    case $to in */) mkdir -p "$to" ;; *) mkdir -p "$(dirname "$to")" ;; esac
    [ ! -d "$to" ] || to=${to%/}/${5##*/}
    cp --preserve=mode,timestamps "$from" "$to" || fail "$1" "could not copy to $4"
    copied() { PATH=$work/bin:$PATH "$@" "$to"; }
  fi
  [ -z "$2" ] || copied chown -h "$2" || fail "$1" "could not give $4 to $2"
  [ -z "$3" ] || copied chmod "$3" || fail "$1" "could not set the mode of $4"
}

# LINE OWNER MODE DESTINATION SOURCE
unpack() {
  mkdir -p "$4" && tar -xf "$work/context/$5" --no-same-owner -C "$4" || fail "$1" "could not unpack to $4"
}

# LINE PATH
directory() { mkdir -p "$2" || fail "$1" "could not make $2"; }

finish() { echo 'obsspec-build: done'; }
"""


def _quoted(name: str, text: str) -> str:
    return f"read -r -d '' {name} << 'OBSSPEC_{name}'\n{text}OBSSPEC_{name}\n"


PRELUDE = (
    "".join(_quoted(name, text) for name, text in (("APT", APT), ("PIP", PIP), ("OWNER", OWNER), ("USERADD", USERADD)))
    + _FUNCTIONS
)
"""What comes before the steps. Needs bash, coreutils, awk, sed, grep and tar; ``$BUILD`` is where the files lie."""


def failure(output: str) -> str | None:
    """Why a build ended, in one sentence, from what it printed; ``None`` if it did not say."""
    found = _FAILED.search(output)
    return f"Dockerfile line {found[1]}: {' '.join(found[2].split())}" if found else None
