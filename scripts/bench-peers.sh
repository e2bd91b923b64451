#!/bin/sh
# Compares dlock with etcd and ZooKeeper. Arguments go to the bench: scripts/bench-peers.sh --quick
#
# No service is installed. The package of etcd would start one, so its program is only unpacked; of ZooKeeper, only the
# library is installed, which contains the server.
set -eu
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

peers=$top/build/peers
if [ ! -x "$peers/etcd" ]; then
    unpack_packages "$peers/fetch" etcd-server
    mv "$peers/fetch/usr/bin/etcd" "$peers/etcd"
    rm -rf "$peers/fetch"
fi
if [ ! -e /usr/share/java/zookeeper.jar ] || ! command -v java >/dev/null; then
    install_packages default-jre-headless libzookeeper-java
fi
# The program of Debian's package zookeeper, without its service.
cat >"$peers/zookeeper" <<'SCRIPT'
#!/bin/sh
exec java -Xmx512m -cp '/usr/share/java/*' org.apache.zookeeper.server.quorum.QuorumPeerMain "$1"
SCRIPT
chmod +x "$peers/zookeeper"

cargo build --release --package dlock-module
cargo build --release --package dlock-bench --features peers
exec target/release/dlock-bench peers --etcd "$peers/etcd" --zookeeper "$peers/zookeeper" --server "$(redis_server)" "$@"
