//! A site: what a member of the client's lock service is. It has one vote.

use std::sync::Arc;

use dlock_quorum::Member;

use crate::topology::channel::{Channel, Home};
use crate::topology::cluster::Cluster;
use crate::topology::member_list::MemberList;
use crate::topology::node::{Node, Place, Settings};
use crate::topology::slot::slot_of;
use crate::transport::{ConnectError, MasterLocator, SiteAddress};

/// What a member is.
#[derive(Debug, Clone)]
pub(crate) enum Site {
    /// One server, or the master that the sentinels name.
    Server(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Site {
    pub(crate) fn new(
        member: Member,
        address: SiteAddress,
        member_list: &Arc<MemberList>,
        settings: &Arc<Settings>,
    ) -> Site {
        let server = |place| Site::Server(Node::new(member, place, member_list.clone(), settings.clone()));
        match address {
            SiteAddress::Server(address) => server(Place::Server(address)),
            SiteAddress::Sentinel(address) => {
                let name = address.name.clone();
                server(Place::Sentinel(name, Arc::new(MasterLocator::new(address))))
            }
            SiteAddress::Cluster(address) => Site::Cluster(Cluster::new(member, address, settings.clone())),
        }
    }

    /// Returns the address of the member, without user and password.
    pub(crate) fn name(&self) -> &Arc<str> {
        match self {
            Site::Server(node) => &node.name,
            Site::Cluster(cluster) => &cluster.name,
        }
    }

    pub(crate) fn member(&self) -> Member {
        match self {
            Site::Server(node) => node.member,
            Site::Cluster(cluster) => cluster.member,
        }
    }

    /// Returns where the requests for the resource go.
    pub(crate) fn home(&self, resource: &[u8]) -> Home {
        match self {
            Site::Server(node) => Home::Node(node.clone()),
            Site::Cluster(cluster) => Home::Slot(cluster.clone(), slot_of(resource)),
        }
    }

    /// Opens a channel for a hold or a question about the resource.
    pub(crate) fn channel(&self, resource: &[u8]) -> Channel {
        Channel::new(self.home(resource))
    }

    /// Returns the masters: of a cluster, those that are known.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Site::Server(node) => vec![node.clone()],
            Site::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// Opens the connections to the masters.
    pub(crate) async fn connect(&self) -> Result<(), ConnectError> {
        match self {
            Site::Server(node) => node.connection().await.map(drop),
            Site::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// Returns true if the master of a quorum seems to be down: see [`Node::is_missing`].
    pub(crate) fn is_missing(&self) -> bool {
        match self {
            Site::Server(node) => node.is_missing(),
            Site::Cluster(_) => false,
        }
    }

    /// Makes the waits for the resource leave the queue of this member. A cluster is never a member of a
    /// quorum, whose waits move between queues.
    pub(crate) fn leave_queue(&self, resource: &[u8]) {
        if let Site::Server(node) = self {
            node.waits.leave(resource);
        }
    }
}
