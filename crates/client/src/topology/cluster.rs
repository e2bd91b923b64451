//! A cluster: which node has which slot. It sends no request of a lock: a [`Channel`](super::Channel) does,
//! and follows the redirects.
//!
//! The map comes from CLUSTER SLOTS, which lists for each range the node that serves it first, with the port
//! that fits the connection. A map may be out of date: the nodes correct it by MOVED.

use futures_util::{StreamExt, stream};
use redis::Value;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_quorum::{FaultKind, Instant, Member, Quorum, majority};
use futures_util::future::join_all;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{sleep, timeout};

use crate::clock::now;
use crate::error::NodeState;
use crate::inspect::ClusterState;
use crate::request;
use crate::sync::Mutex;
use crate::topology::member_list::MemberList;
use crate::topology::node::{Node, Place, Settings};
use crate::topology::slot::SLOTS;
use crate::transport::{Address, ClusterAddress, ConnectError, Reply};

/// Least time between two requests for the map.
const REFRESH_PAUSE: Duration = Duration::from_millis(100);
/// Age at which the map is fetched again although no node has corrected it.
const MAX_AGE: Duration = Duration::from_secs(60);
/// How many nodes are asked for the map at the same time.
const ASKED_TOGETHER: usize = 3;

/// The nodes of a cluster.
pub(crate) struct Cluster {
    pub(crate) name: Arc<str>,
    pub(crate) member: Member,
    settings: Arc<Settings>,
    /// User, password and TLS of each node.
    login: Address,
    seeds: Vec<Arc<Node>>,
    map: Mutex<Map>,
    /// Locked while the map is fetched.
    fetching: AsyncMutex<Fetched>,
    /// True while a fetch in the background is under way.
    refreshes: AtomicBool,
}

struct Map {
    /// By address, the masters and the seeds.
    nodes: HashMap<Arc<str>, Arc<Node>>,
    masters: Vec<Arc<Node>>,
    /// By slot: the index of its master in `masters`. `None` means that no node serves the slot.
    owners: Vec<Option<u16>>,
    /// By address: the ids of the masters and of their replicas.
    ids: Ids,
    /// True once a map had all slots.
    was_whole: bool,
    /// The addresses of the nodes that the map names, and of the nodes that have shown it.
    members: HashSet<Arc<str>>,
    /// When the map was fetched; `None` while it has no slots.
    fetched: Option<Instant>,
}

/// The ids of nodes, by address. A node keeps its id when its address or its role changes.
type Ids = HashMap<Arc<str>, Arc<str>>;

/// The last request for the map.
struct Fetched {
    begun: Option<Instant>,
    outcome: Result<(), ConnectError>,
}

impl Cluster {
    pub(crate) fn new(member: Member, address: ClusterAddress, settings: Arc<Settings>) -> Arc<Cluster> {
        let ClusterAddress { name, seeds } = address;
        let login = seeds[0].clone();
        let seeds: Vec<Arc<Node>> = seeds.into_iter().map(|seed| node_at(seed, &settings)).collect();
        let nodes = seeds.iter().map(|seed| (seed.name.clone(), seed.clone())).collect();
        let map = Map {
            nodes,
            masters: Vec::new(),
            owners: vec![None; SLOTS.into()],
            ids: Ids::new(),
            was_whole: false,
            members: HashSet::new(),
            fetched: None,
        };
        Arc::new(Cluster {
            name,
            member,
            settings,
            login,
            seeds,
            map: Mutex::new(map),
            fetching: AsyncMutex::new(Fetched { begun: None, outcome: Ok(()) }),
            refreshes: AtomicBool::new(false),
        })
    }

    /// Returns the node to ask about the slot: its master as far as known, else any node, which then answers
    /// with a redirect.
    pub(crate) fn node_for(&self, slot: u16) -> Arc<Node> {
        let map = self.map.lock();
        let owner = map.owners[usize::from(slot)].map(|owner| &map.masters[usize::from(owner)]);
        owner.or(map.masters.first()).unwrap_or(&self.seeds[0]).clone()
    }

    /// Returns the masters, or the seeds while no map is known.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        let map = self.map.lock();
        if map.masters.is_empty() { self.seeds.clone() } else { map.masters.clone() }
    }

    /// Returns the node at `host:port`, which the node `said_by` has named.
    pub(crate) fn node(&self, place: &str, said_by: &Node) -> Option<Arc<Node>> {
        let address = said_by.address().unwrap_or(&self.login).at_node(place)?;
        let mut map = self.map.lock();
        Some(self.node_in(&mut map, address))
    }

    /// Returns the master of the slot as this node knows it. `None` means that it has none, or one without an
    /// address. For a MOVED that does not name its host: a node that prefers names says `?` for one without a
    /// name, and its map has the IP address.
    pub(crate) async fn owner_by(
        &self,
        said_by: &Arc<Node>,
        slot: u16,
    ) -> Result<Option<Arc<Node>>, NodeState> {
        let (_, ranges) = ask_for_slots(said_by.clone()).await;
        let owners = self.owners(said_by, ranges?);
        let owner = owners.by_slot[usize::from(slot)];
        let address = owner.map(|owner| owners.masters[usize::from(owner)].clone());
        Ok(address.map(|address| self.node_in(&mut self.map.lock(), address)))
    }

    /// Returns the node to which this one is moving the slot. For an ASK that does not name its host. The map
    /// does not have that node, which may have no slot yet.
    pub(crate) async fn target_by(&self, said_by: &Arc<Node>, slot: u16) -> Option<Arc<Node>> {
        let (_, nodes) = ask(said_by.clone(), &["CLUSTER", "NODES"], crate::reading::text).await;
        self.node(target_in(&nodes.ok()?, slot)?, said_by)
    }

    /// Records that the slot is at this node, as a MOVED says. The whole map is fetched in the background,
    /// because other slots may have moved, too.
    pub(crate) fn moved(self: &Arc<Self>, slot: u16, to: &Arc<Node>) {
        {
            let mut map = self.map.lock();
            let index = index_in(&mut map.masters, to.clone(), |known| Arc::ptr_eq(known, to));
            map.owners[usize::from(slot)] = index;
        }
        self.refresh_soon();
    }

    /// Fetches the map if none is known, and in the background if it is old.
    pub(crate) async fn ensure_map(self: &Arc<Self>) -> Result<(), ConnectError> {
        let fetched = self.map.lock().fetched;
        match fetched {
            None => self.refresh().await,
            Some(fetched) => {
                if now().saturating_since(fetched) > MAX_AGE {
                    self.refresh_soon();
                }
                Ok(())
            }
        }
    }

    /// Fetches the map in the background, unless this is under way.
    pub(crate) fn refresh_soon(self: &Arc<Self>) {
        if self.refreshes.swap(true, Ordering::Relaxed) {
            return;
        }
        let cluster = self.clone();
        self.settings.background.runtime.spawn(async move {
            let _ = cluster.refresh().await;
            cluster.refreshes.store(false, Ordering::Relaxed);
        });
    }

    /// Fetches the map. Callers at the same time share one request. The error is that of a node, if none
    /// answers.
    pub(crate) async fn refresh(&self) -> Result<(), ConnectError> {
        let called = now();
        let mut fetched = self.fetching.lock().await;
        if fetched.begun.is_some_and(|begun| begun >= called) {
            return fetched.outcome.clone();
        }
        if let Some(begun) = fetched.begun {
            sleep((begun + REFRESH_PAUSE).saturating_since(now())).await;
        }
        fetched.begun = Some(now());
        fetched.outcome = self.fetch().await;
        fetched.outcome.clone()
    }

    /// Opens the connections to all masters. If none is open, the error is that of a node that can never take
    /// part: a node without the module, for example, takes nothing from the slots of the others.
    pub(crate) async fn connect(self: &Arc<Self>) -> Result<(), ConnectError> {
        self.ensure_map().await?;
        let nodes = self.nodes();
        let opened = join_all(nodes.iter().map(|node| node.connection())).await;
        if opened.iter().any(Result::is_ok) {
            return Ok(());
        }
        let failed = nodes.iter().zip(opened).find_map(|(node, opened)| {
            let why = opened.err()?;
            matches!(NodeState::from(why.clone()), NodeState::Failed(_)).then(|| why.of_server(&node.name))
        });
        failed.map_or(Ok(()), Err)
    }

    /// Returns the state of the cluster by the answers of its nodes, from a map that was fetched just now if
    /// a node answers. The error says why no map is known.
    pub(crate) async fn state(&self) -> Result<ClusterState, NodeState> {
        let fetched = self.map.lock().fetched;
        if fetched.is_none_or(|fetched| now().saturating_since(fetched) > REFRESH_PAUSE)
            && let Err(why) = self.refresh().await
            && self.map.lock().masters.is_empty()
        {
            return Err(why.into());
        }
        let masters = self.map.lock().masters.clone();
        let seeds = self.seeds.iter().filter(|seed| !masters.iter().any(|node| Arc::ptr_eq(node, seed)));
        let answers = join_all(masters.iter().chain(seeds).cloned().map(ask_for_slots)).await;
        let views = answers.into_iter().filter_map(|(node, ranges)| {
            let view = self.owners(&node, ranges.ok()?);
            Some((node.name.clone(), view))
        });
        let views: HashMap<Arc<str>, Owners> = views.collect();
        let map = self.map.lock();
        let strangers = self.seeds.iter().map(|seed| &seed.name);
        let strangers = strangers.filter(|seed| views.get(*seed).is_some_and(|view| map.is_unrelated(view)));
        let slots = (0..).zip(&map.masters).map(|(at, master)| {
            let has = |slot| map.owners[usize::from(slot)] == Some(at) && map.is_served(slot, &views);
            (master.name.clone(), ranges(has))
        });
        Ok(ClusterState {
            missing_slots: ranges(|slot| !map.is_served(slot, &views)),
            slots: slots.collect(),
            strangers: strangers.cloned().collect(),
        })
    }

    /// Asks the nodes for the map, those first that answer. The first map with all slots counts, else the one
    /// with the most of them: a node that is not in the cluster, or was reset, knows few slots or none.
    ///
    /// Once a map had all slots, a map that shares no node with the known one is that of another cluster:
    /// both could grant the same lock. It counts only if no other map is left and the node belonged to the
    /// cluster, which was then made anew at the same addresses.
    async fn fetch(&self) -> Result<(), ConnectError> {
        let mut nodes = self.nodes();
        nodes.sort_by_key(|node| node.is_missing());
        let others = self.seeds.iter().filter(|seed| !nodes.iter().any(|node| Arc::ptr_eq(node, seed)));
        let others: Vec<Arc<Node>> = others.cloned().collect();
        let asked = stream::iter(nodes.into_iter().chain(others)).map(ask_for_slots);
        // The seeds may be of several clusters. So that all clients take the same map, the first seed that
        // answers decides.
        let mut asked = match self.map.lock().fetched {
            None => asked.buffered(ASKED_TOGETHER).boxed(),
            Some(_) => asked.buffer_unordered(ASKED_TOGETHER).boxed(),
        };
        let (mut best, mut answered, mut error) = (None::<Owners>, Vec::new(), None);
        let mut anew = None;
        while let Some((node, answer)) = asked.next().await {
            match answer.map(|ranges| self.owners(&node, ranges)) {
                Ok(owners) if self.map.lock().is_replaced_by(&owners) => {
                    if self.map.lock().members.contains(&node.name) {
                        anew = Some((node, owners));
                    } else {
                        let why = FaultKind::Other.with("is a node of another cluster");
                        error = Some((node, NodeState::Failed(why)));
                    }
                }
                Ok(owners) => {
                    answered.push(node);
                    if best.as_ref().is_none_or(|best| owners.served() > best.served()) {
                        best = Some(owners);
                    }
                    if best.as_ref().is_some_and(|best| best.served() == SLOTS.into()) {
                        break;
                    }
                }
                // A node that refuses for a reason explains more than one that is down.
                Err(state) if matches!(state, NodeState::Failed(_)) || error.is_none() => {
                    error = Some((node, state));
                }
                Err(_) => {}
            }
        }
        drop(asked);
        if let (None, Some((node, owners))) = (&best, anew) {
            (best, answered) = (Some(owners), vec![node]);
        }
        if let Some(best) = best {
            self.set_map(best, &answered);
            return Ok(());
        }
        let (node, state) = error.expect("a cluster has a seed");
        Err(match state {
            NodeState::Failed(why) => ConnectError::with_fault(why).of_server(&node.name),
            state => ConnectError::down(format!("no node of the cluster answers: {} is {state}", node.name)),
        })
    }

    /// Returns the owners of the slots as the node `said_by` knows them.
    fn owners(&self, said_by: &Node, ranges: Vec<Range>) -> Owners {
        let mut owners =
            Owners { masters: Vec::new(), by_slot: vec![None; SLOTS.into()], ids: HashMap::new() };
        let address_of = |place: &str| said_by.address().unwrap_or(&self.login).at_node(place);
        for Range { first, last, master, ids } in ranges {
            let named = ids.into_iter().filter_map(|(place, id)| Some((address_of(&place)?.name, id.into())));
            owners.ids.extend(named);
            let address = address_of(&master);
            let Some(address) = address.filter(|_| first <= last && last < SLOTS) else { continue };
            let name = address.name.clone();
            let index = index_in(&mut owners.masters, address, |known| known.name == name);
            owners.by_slot[usize::from(first)..=usize::from(last)].fill(index);
        }
        owners
    }

    fn set_map(&self, owners: Owners, answered: &[Arc<Node>]) {
        let mut map = self.map.lock();
        let is_in =
            |nodes: &[Arc<Node>], node: &Arc<Node>| nodes.iter().any(|other| Arc::ptr_eq(other, node));
        let has_answered = map.masters.iter().filter(|master| is_in(answered, master)).count();
        // The nodes that know better may be out of reach for the moment.
        if owners.served() < served(&map.owners) && has_answered < majority(map.masters.len()) {
            return;
        }
        let masters: Vec<Arc<Node>> =
            owners.masters.into_iter().map(|address| self.node_in(&mut map, address)).collect();
        let gone: Vec<Arc<Node>> =
            map.masters.iter().filter(|master| !is_in(&masters, master)).cloned().collect();
        map.nodes.retain(|_, node| is_in(&masters, node) || is_in(&self.seeds, node));
        map.fetched = (!masters.is_empty()).then(now);
        (map.masters, map.owners) = (masters, owners.by_slot);
        map.ids = owners.ids;
        let members = map.ids.keys().chain(answered.iter().map(|node| &node.name)).cloned().collect();
        map.members = members;
        map.was_whole |= served(&map.owners) == SLOTS.into();
        drop(map);
        if !gone.is_empty() {
            // A master without slots sends no more messages about the holds that it had.
            self.settings.watched.check_all();
            gone.iter().for_each(|node| node.waits.wake_all());
        }
    }

    fn node_in(&self, map: &mut Map, address: Address) -> Arc<Node> {
        let known = map.nodes.get(&address.name).cloned();
        known.unwrap_or_else(|| {
            let (name, node) = (address.name.clone(), node_at(address, &self.settings));
            map.nodes.insert(name, node.clone());
            node
        })
    }
}

impl Map {
    /// Returns true if the node knows a cluster that has none of the known nodes.
    fn is_unrelated(&self, view: &Owners) -> bool {
        let known: HashSet<&Arc<str>> = self.ids.values().collect();
        !known.is_empty() && !view.ids.is_empty() && !view.ids.values().any(|id| known.contains(id))
    }

    /// Returns true if the map was whole, and this one is that of another cluster.
    fn is_replaced_by(&self, view: &Owners) -> bool {
        self.was_whole && self.is_unrelated(view)
    }

    /// Returns true if the master of the slot confirms that it has the slot, or names another master that
    /// confirms it. Without the answer of such a master, the map counts. `views` are the answers, by the
    /// address of the node.
    fn is_served(&self, slot: u16, views: &HashMap<Arc<str>, Owners>) -> bool {
        let at = usize::from(slot);
        let Some(owner) = self.owners[at].map(|owner| &self.masters[usize::from(owner)]) else {
            return false;
        };
        let Some(view) = views.get(&owner.name) else { return true };
        let Some(named) = view.master(at) else { return false };
        let is_named = |view: &Owners, named: &Arc<str>, node: &Arc<Node>| {
            *named == node.name || view.ids.get(named).is_some_and(|id| self.ids.get(&node.name) == Some(id))
        };
        if is_named(view, named, owner) {
            return true;
        }
        let Some(other) = self.masters.iter().find(|master| is_named(view, named, master)) else {
            return true;
        };
        let Some(view) = views.get(&other.name) else { return true };
        view.master(at).is_some_and(|named| is_named(view, named, other))
    }
}

/// The owners of the slots, as one node knows them.
struct Owners {
    masters: Vec<Address>,
    /// As [`Map::owners`].
    by_slot: Vec<Option<u16>>,
    /// As [`Map::ids`].
    ids: Ids,
}

impl Owners {
    /// Returns the address of the master of the slot.
    fn master(&self, slot: usize) -> Option<&Arc<str>> {
        self.by_slot[slot].map(|owner| &self.masters[usize::from(owner)].name)
    }

    fn served(&self) -> usize {
        served(&self.by_slot)
    }
}

/// Returns how many slots have a master.
fn served(owners: &[Option<u16>]) -> usize {
    owners.iter().flatten().count()
}

/// Returns the slots for which `is_in` returns true.
fn ranges(is_in: impl Fn(u16) -> bool) -> Vec<RangeInclusive<u16>> {
    let mut ranges = Vec::<RangeInclusive<u16>>::new();
    for slot in (0..SLOTS).filter(|slot| is_in(*slot)) {
        match ranges.last_mut() {
            Some(range) if range.end() + 1 == slot => *range = *range.start()..=slot,
            _ => ranges.push(slot..=slot),
        }
    }
    ranges
}

/// Returns the index of the master, and adds it if none `is_same`.
fn index_in<M>(masters: &mut Vec<M>, master: M, is_same: impl Fn(&M) -> bool) -> Option<u16> {
    let known = masters.iter().position(is_same);
    let index = known.unwrap_or_else(|| {
        masters.push(master);
        masters.len() - 1
    });
    u16::try_from(index).ok()
}

/// Makes a node. Each has a member list of its own, because the vote is that of the cluster.
fn node_at(address: Address, settings: &Arc<Settings>) -> Arc<Node> {
    let one = Quorum::new(1).expect("a quorum of one");
    let list = MemberList::new(one, [address.name.clone()]);
    Node::new(Member(0), Place::ClusterNode(address), list, settings.clone())
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("name", &self.name).finish_non_exhaustive()
    }
}

async fn ask_for_slots(node: Arc<Node>) -> (Arc<Node>, Result<Vec<Range>, NodeState>) {
    ask(node, &["CLUSTER", "SLOTS"], read_slots).await
}

async fn ask<T>(
    node: Arc<Node>,
    question: &[&str],
    read: impl FnOnce(Value) -> Option<T>,
) -> (Arc<Node>, Result<T, NodeState>) {
    let question = request::cmd(question);
    let asking = async {
        let connection = node.connection().await?;
        connection.ask(&question).await.map_or(Reply::NoAnswer, Reply::Answer).read(read)
    };
    let answer = timeout(node.limit, asking).await.unwrap_or(Err(NodeState::Slow));
    (node, answer)
}

/// Slots that one master serves.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    /// As `host:port`. An empty host means the host that was asked.
    master: String,
    /// The master and its replicas: each as `host:port`, and its id.
    ids: Vec<(String, String)>,
}

/// Reads the answer to CLUSTER SLOTS. Skips what it cannot read.
fn read_slots(value: Value) -> Option<Vec<Range>> {
    let Value::Array(ranges) = value else { return None };
    Some(ranges.into_iter().filter_map(read_range).collect())
}

fn read_range(range: Value) -> Option<Range> {
    let Value::Array(range) = range else { return None };
    let [Value::Int(first), Value::Int(last), nodes @ ..] = range.as_slice() else { return None };
    let (master, _) = read_node(nodes.first()?)?;
    Some(Range {
        first: u16::try_from(*first).ok()?,
        last: u16::try_from(*last).ok()?,
        master,
        ids: nodes.iter().filter_map(read_node).filter(|(_, id)| !id.is_empty()).collect(),
    })
}

/// Reads a node: `host:port`, and its id, which is empty if there is none.
fn read_node(node: &Value) -> Option<(String, String)> {
    let Value::Array(node) = node else { return None };
    let [host, Value::Int(port), ..] = node.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) if *host != b"?" => String::from_utf8_lossy(host).into_owned(),
        // The node prefers its name, and has none. Its further fields have its IP address.
        Value::BulkString(_) => ip_of(node.get(3)?)?,
        _ => String::new(),
    };
    let id = node.get(2).cloned().and_then(crate::reading::text).unwrap_or_default();
    Some((format!("{host}:{port}"), id))
}

/// Reads the `host:port` of the node that receives the slot in the answer to CLUSTER NODES of its present
/// master. There, `[93->-ID]` stands for the slot, and the line of the other node begins with this id.
fn target_in(nodes: &str, slot: u16) -> Option<&str> {
    let (_, rest) = nodes.split_once(&format!("[{slot}->-"))?;
    let (id, _) = rest.split_once(']')?;
    let line = nodes.lines().find(|line| line.starts_with(id))?;
    line.split([' ', '@']).nth(1)
}

fn ip_of(fields: &Value) -> Option<String> {
    let texts = crate::reading::texts(fields.clone())?;
    texts.chunks_exact(2).find(|pair| pair[0] == "ip").map(|pair| pair[1].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn the_master_of_a_range_is_its_first_node() {
        let node = |host: Value, port, fields: &[&str]| {
            let fields = fields.iter().map(|text| bulk(text)).collect();
            Value::Array(vec![host, Value::Int(port), bulk("id"), Value::Array(fields)])
        };
        let range = |first, last, node| {
            Value::Array(vec![Value::Int(first), Value::Int(last), node, Value::Array(vec![bulk("replica")])])
        };
        let answer = Value::Array(vec![
            range(0, 5, node(bulk("10.0.0.1"), 7000, &[])),
            range(6, 6, node(bulk("::1"), 7001, &[])),
            range(7, 9, node(Value::Nil, 7002, &[])),
            range(10, 12, node(bulk(""), 7003, &[])),
            range(13, 14, node(bulk("?"), 7004, &["ip", "10.0.0.9"])),
            range(15, 16, node(bulk("?"), 7004, &[])),
            bulk("something else"),
        ]);
        let masters: Vec<String> =
            read_slots(answer).expect("an array").into_iter().map(|range| range.master).collect();
        assert_eq!(masters, ["10.0.0.1:7000", "::1:7001", ":7002", ":7003", "10.0.0.9:7004"]);
        assert_eq!(read_slots(Value::Nil), None);
    }

    #[test]
    fn the_target_of_a_slot_is_the_node_of_the_id() {
        let nodes = "a 10.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-99 [7->-c] [93->-b] [5-<-d]\n\
                     b ::1:7001@17001,host master - 0 1 2 connected\n\
                     c 10.0.0.3:7002@17002 master - 0 1 3 connected 100-16383\n";
        assert_eq!(target_in(nodes, 93), Some("::1:7001"));
        assert_eq!(target_in(nodes, 7), Some("10.0.0.3:7002"));
        assert_eq!(target_in(nodes, 5), None);
    }
}
