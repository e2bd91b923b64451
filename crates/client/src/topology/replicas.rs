//! The replicas of a member's masters, and the masters of a cluster without slots, for operators. None of
//! them grants locks, so no other request goes to one.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::reading;
use crate::request;
use crate::topology::channel::{Channel, Home};
use crate::topology::node::{Node, Settings};
use crate::topology::site::Site;

/// Returns the replicas that the masters, the other nodes or the sentinels know, in the order of their
/// addresses. Those that are down are among them only in a cluster, and where sentinels watch. In a cluster,
/// the masters without slots are among them, too: a new one gets slots later, and a former one that is down
/// becomes a replica when it starts.
pub(crate) async fn replicas_of(site: &Site, settings: &Arc<Settings>) -> Vec<Arc<Node>> {
    let masters = site.nodes();
    let mut places = BTreeSet::new();
    for master in &masters {
        let known = match (site, master.locator()) {
            (Site::Cluster(_), _) => in_nodes(&text(master, &["CLUSTER", "NODES"]).await),
            (_, Some(locator)) => locator.replicas(master.limit).await,
            _ => Vec::new(),
        };
        places.extend(known);
        // The nodes of a cluster know all replicas, each of them.
        if !places.is_empty() && matches!(site, Site::Cluster(_)) {
            break;
        }
        places.extend(in_info(&text(master, &["INFO", "replication"]).await));
    }
    let Some(master) = masters.first() else { return Vec::new() };
    let known = places.iter().filter_map(|place| master.replica(place, settings));
    // While no slot has a master, the seeds stand for the masters.
    known.filter(|node| !masters.iter().any(|master| master.name == node.name)).collect()
}

async fn text(master: &Arc<Node>, question: &[&str]) -> String {
    let channel = Channel::new(Home::Node(master.clone()));
    if channel.separate().await.is_err() {
        return String::new();
    }
    channel.query(&request::cmd(question), reading::text).await.unwrap_or_default()
}

/// Reads `slave0:ip=127.0.0.1,port=6380,state=online,offset=1,lag=0`.
fn in_info(info: &str) -> Vec<String> {
    let lines = info.lines().filter(|line| line.starts_with("slave") && line.contains(":ip="));
    let place = |line: &str| {
        let field =
            |name| line.split([':', ',']).find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        // An IPv6 address has colons, too, and is the rest up to the comma.
        let ip = line.split_once(":ip=")?.1.split(',').next()?;
        Some(format!("{ip}:{}", field("port")?))
    };
    lines.filter_map(place).collect()
}

/// Reads `07c37df 127.0.0.1:6380@16380,hostname slave e7d1eec 0 1426238317239 4 connected`.
fn in_nodes(nodes: &str) -> Vec<String> {
    let place = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (place, flags) = (words.next()?, words.next()?);
        let has = |wanted| flags.split(',').any(|flag| flag == wanted);
        // A node is not in the cluster yet while it only shakes hands.
        let has_joined = ["slave", "master"].into_iter().any(has) && !has("handshake");
        // After the address and the flags: master, ping, pong, epoch, state of the link, then the slots, and
        // in brackets those that move.
        let has_slots = words.skip(5).any(|slots| !slots.starts_with('['));
        // A node without a known address is `:0`.
        let place = place.split('@').next().filter(|place| has_joined && !has_slots && *place != ":0")?;
        Some(place.to_owned())
    };
    nodes.lines().filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_with_every_form_of_address() {
        let info = "role:master\r\nconnected_slaves:2\r\nslave0:ip=::1,port=6380,state=online,offset=1,lag=0\r\n\
                    slave1:ip=10.0.0.2,port=6381,state=wait_bgsave,offset=0,lag=0\r\nslave_x:1\r\n";
        assert_eq!(in_info(info), ["::1:6380", "10.0.0.2:6381"]);
        let nodes = "a 10.0.0.1:6379@16379 myself,master - 0 0 1 connected 0-16383\n\
                     b ::1:6380@16380,host slave a 0 1 1 connected\n\
                     c 10.0.0.3:6380@16380 slave,fail a 0 1 1 disconnected\n\
                     d :0@0 slave,noaddr a 0 1 1 disconnected\n\
                     e 10.0.0.5:6379@16379 master,fail - 0 1 1 disconnected\n\
                     f 10.0.0.6:6379@16379 master,fail - 0 1 1 disconnected 1-2\n\
                     g 10.0.0.7:6379@16379 master - 0 1 1 connected\n\
                     h 10.0.0.8:6379@16379 master - 0 1 1 connected [93-<-a]\n\
                     i 10.0.0.9:6379@16379 handshake - 0 1 0 connected\n";
        let found = in_nodes(nodes);
        assert_eq!(found, ["::1:6380", "10.0.0.3:6380", "10.0.0.5:6379", "10.0.0.7:6379", "10.0.0.8:6379"]);
    }
}
