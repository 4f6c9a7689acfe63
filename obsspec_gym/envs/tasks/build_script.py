"""The bash functions that carry out an image's build steps, and the programs that answer there for others.

A build has no network and in some sandboxes one user only. So apt and pip are answered for: what the base image has
is installed, anything else is refused by name. Where there is one user only, what would give files to another is
accepted and does nothing: everything belongs to that user anyway.
"""

from __future__ import annotations

import re

CONTEXT = "context.tar"
"""Name of the archive, beside the build script, that holds what the steps copy."""

_FAILED = re.compile(r"^obsspec-build: line (\d+): (.*)$", re.MULTILINE | re.DOTALL)

_APT = r"""#!/bin/bash
action= skip= names=()
for word; do
  if [ "$skip" ]; then skip=; continue; fi
  case $word in
    -o | -t | -c | --option | --target-release | --config-file) skip=1 ;;
    -*) ;;
    *) if [ "$action" ]; then names+=("$word"); else action=$word; fi ;;
  esac
done
installed() {
  local name=${1%%[=/:]*} version=
  case $1 in *=*) version=${1#*=} ;; esac
  dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$name" 2> /dev/null | while read -r status found; do
    [ "$status" = installed ] && case $found in ${version:-*}) echo yes ;; esac
  done | grep -q yes && return
  # An image whose packages were only unpacked has no list of them, but what each brings for its documentation.
  [ -z "$version" ] && [ -d "/usr/share/doc/$name" ] && return
  [ -z "$version" ] && dpkg-query -W -f '${db:Status-Status}, ${Provides},\n' 2> /dev/null |
    grep '^installed' | grep -qE "[, ]$(printf %s "$name" | sed 's/[.+]/\\&/g')( \(|,)"
}
status=0
for name in "${names[@]}"; do
  case $action in
    install | reinstall | build-dep) installed "$name" && continue; what="apt package $name" ;;
    remove | purge | autoremove) installed "$name" || continue; what="removal of the apt package $name" ;;
    *) continue ;;
  esac
  echo "$what" >> "$OBSSPEC_REFUSED"
  echo "E: $what: not in this image" >&2
  status=100
done
exit $status
"""

_PIP = r"""#!/usr/bin/env python3
import os, re, sys
from importlib import metadata

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement

VALUED = {"-i", "--index-url", "--extra-index-url", "-c", "--constraint", "-f", "--find-links", "--trusted-host",
          "--timeout", "--retries", "--cache-dir", "--default-timeout", "--progress-bar", "--root-user-action"}


def requirements(words):
    # The requirements among the words of an install, or None where there is anything else.
    found, words = [], iter(words)
    for word in words:
        if word in ("-r", "--requirement"):
            with open(next(words)) as lines:
                text = [line.split(" #")[0].strip() for line in lines]
            more = requirements([line for line in text if line and not line.startswith("#")])
            if more is None:
                return None
            found += more
        elif word in VALUED:
            next(words, None)
        elif word in ("-e", "--editable", "-t", "--target", "--prefix", "--root") or re.search(r"^[./]|://", word):
            return None
        elif not word.startswith("-"):
            found.append(Requirement(word))
    return found


def missing(requirement):
    if requirement.marker and not requirement.marker.evaluate():
        return False
    try:
        return not requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return True


wanted = requirements(sys.argv[2:]) if sys.argv[1:2] == ["install"] else None
if wanted is None:
    os.execvp("python3", ["python3", "-m", "pip", *sys.argv[1:]])
names = [str(requirement) for requirement in wanted if missing(requirement)]
with open(os.environ["OBSSPEC_REFUSED"], "a") as refused:
    for name in names:
        print("Python package", name, file=refused)
        print("ERROR: No matching distribution found for", name, file=sys.stderr)
sys.exit(bool(names))
"""

_OWNER = r"""#!/bin/bash
# There is one user only: whom a file is given to, nobody can tell.
name=${0##*/}
for word; do shift; case $word in -*) ;; *) set -- "$@" "$word" ;; esac; done
shift
for file; do
  [ -e "$file" ] || [ -L "$file" ] || { echo "$name: cannot access '$file': No such file or directory" >&2; exit 1; }
done
"""

_USERADD = r"""#!/bin/bash
# The accounts' files are written directly: the programs for it would give the home directory to another user.
home= shell=/bin/sh uid= group= create= comment= name=
while [ $# -gt 0 ]; do
  case $1 in
    -d | --home | --home-dir) home=$2; shift ;;
    -s | --shell) shell=$2; shift ;;
    -u | --uid) uid=$2; shift ;;
    -g | --gid) group=$2; shift ;;
    -c | --comment | --gecos) comment=$2; shift ;;
    -G | --groups | -k | --skel | -K | -p | --password | -e | -f | --ingroup) shift ;;
    -m | --create-home) create=1 ;;
    -[a-zA-Z]*m*) create=1 ;;
    -*) ;;
    *) name=$1 ;;
  esac
  shift
done
[ "$name" ] || { echo "${0##*/}: a name is needed" >&2; exit 2; }
grep -q "^$name:" /etc/passwd && { echo "${0##*/}: user '$name' already exists" >&2; exit 9; }
[ "${0##*/}" = adduser ] && create=1
free() { local id=1000; while grep -qE "^[^:]*:[^:]*:$id:" /etc/passwd /etc/group; do id=$((id + 1)); done; echo $id; }
uid=${uid:-$(free)}
case $group in
  '') group=$uid; grep -q "^$name:" /etc/group || echo "$name:x:$group:" >> /etc/group ;;
  *[!0-9]*) group=$(sed -n "s/^$group:[^:]*:\([0-9]*\):.*/\1/p" /etc/group) ;;
esac
home=${home:-/home/$name}
echo "$name:x:$uid:${group:-$uid}:$comment:$home:$shell" >> /etc/passwd
if [ "$create" ] && [ ! -d "$home" ]; then
  mkdir -p "$home" && cp -r /etc/skel/. "$home" 2> /dev/null
fi
exit 0
"""

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
    "".join(
        _quoted(name, text) for name, text in (("APT", _APT), ("PIP", _PIP), ("OWNER", _OWNER), ("USERADD", _USERADD))
    )
    + _FUNCTIONS
)
"""What comes before the steps. Needs bash, coreutils, awk, sed, grep and tar; ``$BUILD`` is where the files lie."""


def failure(output: str) -> str | None:
    """Why a build ended, in one sentence, from what it printed; ``None`` if it did not say."""
    found = _FAILED.search(output)
    return f"Dockerfile line {found[1]}: {' '.join(found[2].split())}" if found else None
