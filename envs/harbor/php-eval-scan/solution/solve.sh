#!/bin/bash
set -e
grep -rlF --include='*.php' 'eval($_' /home/user/webapp | sort > /home/user/suspicious.txt
