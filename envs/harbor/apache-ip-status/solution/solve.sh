#!/bin/bash
set -e
awk '{ split($0, quoted, "\""); split(quoted[3], fields, " "); print $1 "\t" fields[1] }' /home/user/logs/access.log \
    > /home/user/logs/ip_status.txt
