"""The programs that answer for others while an image is built.

A build has no network and in some sandboxes one user only. So apt and pip are answered for: what the base image has
is installed, anything else is refused by name. Where there is one user only, what would give files to another is
accepted and does nothing: everything belongs to that user anyway.
"""

from __future__ import annotations

APT = r"""#!/bin/bash
action= skip= names=()
for word; do
  if [ "$skip" ]; then skip=; continue; fi
  case $word in
    --option | --target-release | --default-release | --config-file) skip=1 ;;
    --*) ;;
    -*) # letters, of which the first that takes a value takes the rest, or the next word
      letters=${word#-}
      while [ "$letters" ]; do
        case $letters in [oatc]) skip=1 letters= ;; [oatc]*) letters= ;; *) letters=${letters#?} ;; esac
      done ;;
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
"""Stands for apt, apt-get and aptitude."""

PIP = r"""#!/usr/bin/env python3
import os, re, sys
from importlib import metadata

try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement

VALUED = {"-i", "--index-url", "--extra-index-url", "-c", "--constraint", "-f", "--find-links", "--trusted-host",
          "--timeout", "--default-timeout", "--retries", "--resume-retries", "--cache-dir", "--progress-bar",
          "--root-user-action", "--no-binary", "--only-binary", "--proxy", "--cert", "--client-cert", "--log",
          "--exists-action", "--upgrade-strategy", "-C", "--config-settings", "--global-option", "--src", "--report",
          "--use-feature", "--use-deprecated", "--keyring-provider"}
REQUIREMENTS = {"-r", "--requirement"}
ELSEWHERE = {"-e", "--editable", "-t", "--target", "--prefix", "--root", "--python", "--user-base", "--group",
             "--platform", "--python-version", "--implementation", "--abi"}
TAKING = VALUED | REQUIREMENTS | ELSEWHERE


def separate(words):
    # Every option and every value as a word of its own.
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            yield name
            if equals and name in TAKING:
                yield value
        elif word.startswith("-"):
            letters = word[1:]
            while letters:
                name, letters = f"-{letters[0]}", letters[1:]
                yield name
                if letters and name in TAKING:
                    yield letters
                    break
        else:
            yield word


def requirements(words):
    # The requirements among the words of an install, or None where there is anything else.
    found, words = [], separate(words)
    for word in words:
        if word in REQUIREMENTS:
            with open(next(words)) as lines:
                text = [line.split(" #")[0].strip() for line in lines]
            more = requirements([part for line in text if not line.startswith("#") for part in options(line)])
            if more is None:
                return None
            found += more
        elif word in VALUED:
            next(words, None)
        elif word in ELSEWHERE or re.search(r"^[./]|://", word):
            return None
        elif word and not word.startswith("-"):
            found.append(Requirement(word))
    return found


def options(line):
    # A line of a requirements file: options are words as on the command line, a requirement is one with its blanks.
    return line.split() if line.startswith("-") else [line]


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
"""Stands for pip."""

OWNER = r"""#!/bin/bash
# There is one user only: whom a file is given to, nobody can tell.
name=${0##*/}
long=changes,silent,quiet,verbose,dereference,no-dereference,from:,no-preserve-root,preserve-root,reference:,recursive
words=$(getopt -n "$name" -o cfvhRHLP -l "$long" -- "$@") || exit 1
eval set -- "$words"
like=
while [ "$1" != -- ]; do
  case $1 in --from) shift ;; --reference) like=$2; shift ;; esac
  shift
done
shift
[ "$like" ] || shift
for file; do
  [ -e "$file" ] || [ -L "$file" ] || { echo "$name: cannot access '$file': No such file or directory" >&2; exit 1; }
done
"""
"""Stands for chown and chgrp, where there is one user only."""

USERADD = r"""#!/bin/bash
# The accounts' files are written directly: the programs for it would give the home directory to another user.
program=${0##*/}
if [ "$program" = adduser ]; then
  short=Dqs:u:h:G:H
  long=home:,shell:,uid:,gid:,comment:,gecos:,ingroup:,conf:,firstuid:,lastuid:,firstgid:,lastgid:,no-create-home
  long+=,disabled-password,disabled-login,system,group,quiet,verbose,debug,force-badname,allow-bad-names,allow-badname
  long+=,allow-all-names,add-extra-groups,add_extra_groups,encrypt-home
else
  short=b:c:d:De:f:Fg:G:hk:K:lmMNop:P:rR:s:u:UZ:
  long=base-dir:,comment:,home-dir:,defaults,expiredate:,inactive:,gid:,groups:,help,skel:,key:,no-log-init
  long+=,create-home,no-create-home,no-user-group,non-unique,password:,prefix:,system,root:,shell:,uid:,user-group
  long+=,selinux-user:,badname,badnames,btrfs-subvolume-home,add-subids-for-system
fi
words=$(getopt -n "$program" -o "$short" -l "$long" -- "$@") || exit 2
eval set -- "$words"
base=/home home= shell=/bin/sh uid= group= groups= create= system= same= own=1 comment= password='!' skel=/etc/skel
[ "$program" = adduser ] && create=1 shell=/bin/bash
while [ "$1" != -- ]; do
  case $program$1 in
    adduser-h | *--home | *-d | *--home-dir) home=$2; shift ;;
    adduser-G | adduser--ingroup) group=$2; shift ;;
    adduser-H) create= ;;
    adduser--group) ;;
    *-b | *--base-dir) base=$2; shift ;;
    *-c | *--comment | *--gecos) comment=$2; shift ;;
    *-g | *--gid) group=$2; shift ;;
    *-G | *--groups) groups=$2; shift ;;
    *-k | *--skel) skel=$2; shift ;;
    *-p | *--password) password=$2; shift ;;
    *-s | *--shell) shell=$2; shift ;;
    *-u | *--uid) uid=$2; shift ;;
    useradd-D | *--defaults | useradd-h | *--help) exit 0 ;;
    *-m | *--create-home) create=1 ;;
    *-M | *--no-create-home) create= ;;
    *-N | *--no-user-group) own= ;;
    *-U | *--user-group) own=1 ;;
    *-o | *--non-unique) same=1 ;;
    *-r | *--system) system=1 ;;
    *-[efKPRZ] | *--expiredate | *--inactive | *--key | *--prefix | *--root | *--selinux-user) shift ;;
    *--conf | *--firstuid | *--lastuid | *--firstgid | *--lastgid) shift ;;
  esac
  shift
done
shift
refuse() { echo "$program: $2" >&2; exit "$1"; }
known() { grep -q "^$1:" "/etc/$2"; }
# NAME: also a member of these groups.
join() {
  local name
  for name in ${2//,/ }; do
    known "$name" group || name=$(sed -n "s/^\([^:]*\):[^:]*:$name:.*/\1/p" /etc/group)
    [ "$name" ] && known "$name" group || refuse 6 "group '$2' does not exist"
    sed -i "/^$name:/{/[:,]$1\(,\|\$\)/!{s/:\$/:$1/;t;s/\$/,$1/}}" /etc/group
  done
}
if [ "$program" = adduser ] && [ $# = 2 ]; then
  known "$1" passwd || refuse 1 "The user '$1' does not exist."
  join "$1" "$2"
  exit
fi
[ $# = 1 ] || refuse 2 "expected one name, got $#"
name=$1
[[ $name =~ ^[A-Za-z_][A-Za-z0-9_.-]*\$?$ ]] || refuse 3 "invalid user name '$name'"
known "$name" passwd && refuse 9 "user '$name' already exists"
if [ "$uid" ]; then
  [[ $uid =~ ^[0-9]+$ ]] || refuse 3 "invalid user ID '$uid'"
  [ "$same" ] || ! grep -qE "^[^:]*:[^:]*:$uid:" /etc/passwd || refuse 4 "UID $uid is not unique"
fi
taken() { grep -qE "^[^:]*:[^:]*:$1:" /etc/passwd /etc/group; }
free() {
  local id=1000 step=1
  [ -z "$system" ] || id=999 step=-1
  while taken $id; do id=$((id + step)); done
  echo $id
}
uid=${uid:-$(free)}
case $group in
  '')
    if [ -z "$own" ]; then group=100
    elif known "$name" group; then refuse 9 "group $name exists - if you want to add this user to that group, use -g."
    else
      group=$uid
      ! grep -qE "^[^:]*:[^:]*:$group:" /etc/group || group=$(free)
      echo "$name:x:$group:" >> /etc/group
    fi ;;
  *[!0-9]*) known "$group" group || refuse 6 "group '$group' does not exist"
    group=$(sed -n "s/^$group:[^:]*:\([0-9]*\):.*/\1/p" /etc/group) ;;
  *) grep -qE "^[^:]*:[^:]*:$group:" /etc/group || refuse 6 "group '$group' does not exist" ;;
esac
home=${home:-$base/$name}
[ -z "$groups" ] || join "$name" "$groups"
echo "$name:x:$uid:$group:$comment:$home:$shell" >> /etc/passwd
[ ! -w /etc/shadow ] || echo "$name:$password:19723:0:99999:7:::" >> /etc/shadow
if [ "$create" ] && [ ! -d "$home" ]; then
  mkdir -p "$home" && cp -r "$skel/." "$home" 2> /dev/null
fi
exit 0
"""
"""Stands for useradd and adduser, where there is one user only."""
