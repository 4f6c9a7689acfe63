# Run once as root in the extracted tree, without a network: what the packages' own scripts would have done, as far as
# programs need it. Nothing here may depend on the time or on the machine.
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8

# Accounts.
cp /usr/share/base-passwd/passwd.master /etc/passwd
cp /usr/share/base-passwd/group.master /etc/group
sed -i 's|^root:[^:]*:|root:x:|; s|^\([^:]*\):\*:|\1:x:|' /etc/passwd
sed -i 's|^\([^:]*\):\*:|\1:x:|' /etc/group
echo 'agent:x:1000:1000:agent:/home/agent:/bin/bash' >>/etc/passwd
echo 'agent:x:1000:' >>/etc/group
sed 's|^\([^:]*\):.*|\1:*:19723:0:99999:7:::|' /etc/passwd >/etc/shadow
sed 's|^\([^:]*\):.*|\1:*::|' /etc/group >/etc/gshadow
chmod 640 /etc/shadow /etc/gshadow
mkdir -p /home/agent
cp /usr/share/base-files/dot.profile /root/.profile
cp /usr/share/base-files/dot.bashrc /root/.bashrc
printf '%s: files\n' passwd group shadow gshadow hosts >/etc/nsswitch.conf
cp /usr/share/base-files/profile /etc/profile
cp /etc/skel/.[!.]* /home/agent

# Directories that the system expects.
mkdir -p /media /mnt /opt /srv /run/lock /usr/local/bin /usr/local/sbin /usr/local/lib /usr/local/share /usr/local/src \
    /var/cache /var/lib/misc /var/local /var/log /var/mail /var/opt /var/spool /var/tmp
chmod 1777 /tmp /var/tmp /run/lock
ln -sfn /run /var/run
ln -sfn /run/lock /var/lock
ln -sfn ../proc/self/mounts /etc/mtab

# Alternatives: name, link, program.
alternative() {
    [ -e "$3" ] && update-alternatives --quiet --install "$2" "$1" "$3" 10 2>/dev/null
    return 0
}
alternative awk /usr/bin/awk /usr/bin/gawk
alternative which /usr/bin/which /usr/bin/which.debianutils
alternative cc /usr/bin/cc /usr/bin/gcc
alternative c89 /usr/bin/c89 /usr/bin/c89-gcc
alternative c99 /usr/bin/c99 /usr/bin/c99-gcc
alternative pager /usr/bin/pager /usr/bin/less
alternative editor /usr/bin/editor /bin/nano
alternative vi /usr/bin/vi /usr/bin/vim.tiny
alternative rmt /usr/sbin/rmt /usr/sbin/rmt-tar

# Programs under the names that people call them by.
ln -sf vim.tiny /usr/bin/vim

# Who is root may become anybody; nobody else can, for nothing here is setuid.
for name in auth account password session session-noninteractive; do
    kind=${name%-noninteractive}
    echo "$kind required pam_permit.so" >"/etc/pam.d/common-$name"
done
cat /usr/share/ca-certificates/mozilla/*.crt >/etc/ssl/certs/ca-certificates.crt
find / -xdev -type f -perm /6000 -exec chmod a-s {} +

# What nobody reads here.
rm -rf /usr/share/doc /usr/share/man /usr/share/info /usr/share/lintian /usr/share/bug /usr/share/doc-base
find /usr/share/locale -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
rm -rf /usr/bin/*-lto-dump-* /usr/bin/lto-dump* /var/cache/apt /var/lib/apt/lists /var/log/*
mkdir -p /var/cache/apt/archives/partial /var/lib/apt/lists/partial

ldconfig
python3 -m compileall -q -j 0 -x '/(test|tests|lib2to3)/' /usr/lib/python3 /usr/lib/python3.[0-9]* || :

# What tasks count on.
for program in awk bash cc gcc git make pip3 ps pytest python3 sqlite3 tar which xz; do
    command -v "$program" >/dev/null || { echo "there is no $program" >&2; exit 1; }
done
