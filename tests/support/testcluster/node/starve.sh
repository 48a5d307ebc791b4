#!/bin/sh
# starve.sh PID: take memory from the container of a process until the kernel has killed that process for want of it.
#
# The limit follows down what is in use: who asks for more then is killed, or another of the container, the largest
# first. On cgroup v2 it is all of the container, as the kubelet has marked it so; v1 refuses a limit below what is in use.
set -eu
pid=$1
group=$(sed -n -e 's|^[0-9]*:memory:|/sys/fs/cgroup/memory|p' -e 's|^0::|/sys/fs/cgroup|p' "/proc/$pid/cgroup" | head -n 1)
if [ -e "$group/memory.max" ]; then
  used=memory.current limit=memory.max
else
  used=memory.usage_in_bytes limit=memory.limit_in_bytes
fi
began=$(cut -d ' ' -f 22 "/proc/$pid/stat")
while [ "$(cut -d ' ' -f 22 "/proc/$pid/stat" 2>/dev/null)" = "$began" ]; do
  bytes=$(cat "$group/$used" 2>/dev/null) || break
  echo "$bytes" 2>/dev/null >"$group/$limit" || :
  sleep 0.05
done
