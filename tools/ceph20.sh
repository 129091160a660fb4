#!/bin/bash
# A real one-node Ceph 20 "Tentacle" S3 gateway (mon + osd + radosgw) on loopback, from Debian testing's packages.
#   ceph20.sh install ROOT            unpack the packages into ROOT (root; ~45 s, ~0.5 GB; nothing on the host changes)
#   ceph20.sh start   ROOT PORT [memstore|bluestore]   fresh empty cluster, ready in 2-4 s; key testkey / testsecret
#   ceph20.sh restart ROOT            start again on the same data (bluestore only keeps it)
#   ceph20.sh kill    ROOT            kill -9 the three daemons (by their pid files)
#   ceph20.sh run     ROOT PORT COMMAND...   install if missing, start, run the command, always kill; the command finds the
#                     gateway in HOLDFAST_CEPH_ENDPOINT, HOLDFAST_CEPH_ACCESS_KEY and HOLDFAST_CEPH_SECRET_KEY
set -euo pipefail
cmd=$1; R=$(realpath -m "$2")
case $cmd in
run)
  [ "$(id -u)" = 0 ] || { echo "error: the Ceph gateway runs in a chroot and needs root; run this target as root" >&2; exit 1; }
  [ -x "$R/usr/bin/radosgw" ] || { echo "ceph: unpacking packages below $R"; "$0" install "$R"; }
  trap '"$0" kill "$R"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  "$0" start "$R" "$3"
  export HOLDFAST_CEPH_ENDPOINT=http://127.0.0.1:$3 HOLDFAST_CEPH_ACCESS_KEY=testkey HOLDFAST_CEPH_SECRET_KEY=testsecret
  "${@:4}" ;;
install)
  command -v mmdebstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends mmdebstrap >/dev/null
  mmdebstrap --variant=extract --include=radosgw,ceph-mon,ceph-osd,ceph-common,bash,coreutils,dash,sed,grep,python3-minimal \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    "${SUITE:-forky}" "$R" 2>&1 | tail -1
  LC_ALL=C chroot "$R" /usr/bin/radosgw --version ;;
kill)
  for f in mon osd rgw; do
    p=$(cat "$R/ceph/run/$f.pid" 2>/dev/null) || continue
    # The pid may have been reused: only a process whose root is ours is killed.
    [ "$(readlink "/proc/$p/root" 2>/dev/null)" = "$R" ] && kill -9 "$p" 2>/dev/null || true
    rm -f "$R/ceph/run/$f.pid"
    for i in $(seq 100); do [ -e "/proc/$p/exe" ] && readlink "/proc/$p/exe" >/dev/null || break; sleep .05; done
  done ;;
start|restart)
  if [ $cmd = start ]; then
  PORT=${3:-7480}; OS=${4:-memstore}; MP=${MONPORT:-6789}
  for p in $PORT $MP $((MP+1)); do   # else another server would be mistaken for ours
    if (exec 3<>/dev/tcp/127.0.0.1/$p) 2>/dev/null; then echo "error: port $p is in use; choose another (PORT, MONPORT)" >&2; exit 1; fi; done
  rm -rf "$R/ceph"; mkdir -p "$R"/ceph/{mon,osd,run,log}; echo $PORT > "$R/ceph/port"
  FSID=$(cat /proc/sys/kernel/random/uuid); ADDR="[v2:127.0.0.1:$((MP+1)),v1:127.0.0.1:$MP]"
  cat > "$R/ceph/ceph.conf" <<C
[global]
fsid = $FSID
mon_host = $ADDR
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc
auth_allow_insecure_global_id_reclaim = false
mon_data = /ceph/mon
mon_data_avail_warn = 1
mon_data_avail_crit = 1
mon_allow_pool_size_one = true
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
osd_data = /ceph/osd
osd_objectstore = $OS
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_class_dir = $(cd "$R" && printf '/%s' usr/lib/*/rados-classes)
osd_class_load_list = *
osd_class_default_list = *
osd_op_queue = wpq
osd_mclock_skip_benchmark = true
memstore_device_bytes = 4294967296
bluestore_block_size = 8589934592
run_dir = /ceph/run
admin_socket = /ceph/run/\$name.\$pid.asok
log_file = /ceph/log/\$name.log
log_to_file = true
debug_ms = 0
debug_osd = 0
debug_rgw = 0
debug_rgw_access = 0
[client.rgw.t]
rgw_frontends = beast endpoint=127.0.0.1:$PORT tcp_nodelay=1
rgw_thread_pool_size = 64
rgw_run_sync_thread = false
rgw_enable_quota_threads = false
rgw_override_bucket_index_max_shards = 1
C
  cat > "$R/ceph/mkfs.sh" <<C
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin; cd /ceph
monmaptool --create --clobber --fsid $FSID --addv a "$ADDR" monmap >/dev/null
ceph-mon -c ceph.conf --mkfs -i a --monmap monmap
C
  fi
  cat > "$R/ceph/up.sh" <<'C'
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin; cd /ceph
new=; [ -f mon/kv_backend ] || { new=1; . ./mkfs.sh; }
bg(){ n=$1; shift; "$@" </dev/null >log/$n.out 2>&1 & echo $! > run/$n.pid; }
bg mon ceph-mon -f -c ceph.conf -i a --public-addr 127.0.0.1
if [ $new ]; then u=$(cat /proc/sys/kernel/random/uuid)
  ceph -c ceph.conf osd new $u >/dev/null 2>&1; ceph-osd -c ceph.conf -i 0 --mkfs --osd-uuid $u >log/mkfs.out 2>&1; fi
bg osd ceph-osd -f -c ceph.conf -i 0
bg rgw radosgw -f -c ceph.conf -n client.rgw.t
for i in $(seq 300); do (exec 3<>/dev/tcp/127.0.0.1/$(cat port)) 2>/dev/null && break; sleep .1
  [ $i -lt 300 ] || { echo "error: the gateway did not come up; see ceph/log below its root" >&2; exit 1; }; done
if [ $new ]; then radosgw-admin -c ceph.conf -n client.rgw.t user create --uid=test --display-name=test --access-key=testkey --secret=testsecret >log/user.out 2>&1; fi
C
  unshare -m bash -c "mount --bind /dev '$R/dev' && mount -t proc proc '$R/proc' && exec chroot '$R' /bin/bash /ceph/up.sh"
  echo "http://127.0.0.1:$(cat "$R/ceph/port") pids $(cat "$R"/ceph/run/{mon,osd,rgw}.pid | paste -sd,)" ;;
esac
