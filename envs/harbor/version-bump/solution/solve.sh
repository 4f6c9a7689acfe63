#!/bin/bash
set -e
cd /home/user/libmetrics
sed -i 's/"version": "2.3.1"/"version": "2.4.0"/' package.json
entry="## [2.4.0] - $(date +%F)\n- Added histogram bucketing for latency metrics\n"
sed -i "0,/^## /s/^## /$entry\n&/" CHANGELOG.md
