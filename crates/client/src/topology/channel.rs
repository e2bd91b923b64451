//! The channel of one hold to one master: its connection, the requests without an answer, and the known state
//! of the hold there.
//!
//! A master may still carry out an unanswered request, even after later requests over another connection. So
//! the channel records the [`LateEffect`] of each unanswered request. While the channel uses the same
//! connection, an answer to that request or to a later one removes the record.
//!
//! All redirects are followed here ([`Channel::ask_server`]), before an answer becomes a vote.

use dlock_quorum::{Failure, Instant, Refusal, Vote};
use redis::{Cmd, Value};
use smallvec::SmallVec;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

use crate::clock::now;
use crate::error::NodeState;
use crate::request::Release;
use crate::sync::Mutex;
use crate::topology::cluster::Cluster;
use crate::topology::node::{FIRST_PAUSE, LONGEST_PAUSE, Node, fresh_backoff};
use crate::transport::{Asking, Command, ConnectError, Connection, OfMaster, Redirect, Reply};
use crate::wait::Backoff;

/// How many times a time limit begins anew because this process was stopped, or had too much to do.
pub(crate) const MAX_DELAYS: u32 = 8;

/// How many redirects of one request are followed.
const MAX_REDIRECTS: u32 = 5;

/// The pause before the second and each later redirect of one request is followed: two nodes may disagree for
/// a moment about who has the slot.
const REDIRECT_PAUSE: Duration = Duration::from_millis(25);

/// Where the requests of a channel go.
#[derive(Debug, Clone)]
pub(crate) enum Home {
    Node(Arc<Node>),
    /// The node of a cluster that has this slot.
    Slot(Arc<Cluster>, u16),
}

impl Home {
    /// Returns the node, of a cluster the one that has the slot as far as the client knows.
    pub(crate) fn node(&self) -> Arc<Node> {
        match self {
            Home::Node(node) => node.clone(),
            Home::Slot(cluster, slot) => cluster.node_for(*slot),
        }
    }

    /// Fetches the map of the cluster in the background: the slot may have moved.
    fn refresh_soon(&self) {
        if let Home::Slot(cluster, _) = self {
            cluster.refresh_soon();
        }
    }
}

/// The channel of one hold to one master. All requests of the hold use one connection while the connection
/// works, so that none overtakes another: a RELEASE that overtook an ACQUIRE would leave the hold behind.
#[derive(Debug)]
pub(crate) struct Channel {
    home: Home,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Connection>,
    /// The node of the connection. `None` before the first one.
    node: Option<Arc<Node>>,
    /// True if the connection is never replaced: an ephemeral hold ends with its connection.
    pinned: bool,
    /// True if the channel is pinned for a long answer, and not for a hold.
    only_asks: bool,
    /// The node that receives the slot, if it was asked last.
    target: Option<Arc<Node>>,
    /// Requests on `connection` without an answer.
    in_flight: SmallVec<[InFlight; 2]>,
    /// Number of requests sent over all connections.
    sent: u32,
    /// Late effects of the requests without an answer on earlier connections: the master may still carry
    /// them out. Each effect is listed once.
    orphans: Vec<LateEffect>,
    /// True if the token may hold the lock at the master.
    may_hold: bool,
    /// True if the token may have a position in the queue of the master. Only a RELEASE proves that it has
    /// none: a refused request leaves the position as it is.
    may_wait: bool,
    confirmed: Option<Confirmed>,
}

/// The last answer that proved a hold of the token.
#[derive(Debug)]
struct Confirmed {
    /// Run id of the server that answered.
    server: Arc<str>,
    when: Instant,
    /// True if an operator or another client has ended the hold there.
    taken_away: bool,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    number: u32,
    late_effect: Option<LateEffect>,
}

/// What a request does to the hold if the master carries it out late, after later requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LateEffect {
    /// An ACQUIRE after the RELEASE: makes a new hold, or a position in the queue.
    Hold,
    /// An ACQUIRE of a shared hold: like `Hold`, and makes an exclusive hold a shared one.
    SharedHold,
    /// An EXTEND or a CONFIRM: cuts a longer lease to this one.
    Lease(Duration),
}

impl LateEffect {
    fn is_acquire(&self) -> bool {
        matches!(self, LateEffect::Hold | LateEffect::SharedHold)
    }
}

impl State {
    fn note_orphan(&mut self, late_effect: LateEffect) {
        if !self.orphans.contains(&late_effect) {
            self.orphans.push(late_effect);
        }
    }

    fn server(&self) -> Option<Arc<str>> {
        self.connection.as_ref()?.run_id()
    }
}

impl Channel {
    pub(crate) fn new(home: Home) -> Channel {
        Channel { home, state: Mutex::default() }
    }

    /// Returns the node to which the next request goes, as far as the client knows.
    pub(crate) fn node(&self) -> Arc<Node> {
        self.home.node()
    }

    /// Returns the node that was asked last, or else the one to which the next request goes.
    pub(crate) fn asked(&self) -> Arc<Node> {
        let target = self.state.lock().target.clone();
        target.unwrap_or_else(|| self.node())
    }

    /// Opens a separate connection, for a question with an answer of unbounded length. If the answer is too
    /// long, the client closes the connection, so no hold may use this connection.
    pub(crate) async fn separate(&self) -> Result<(), NodeState> {
        // Opening the separate connection may take several times the limit of an answer. This PING over the
        // shared connection fails within one such limit if the master does not respond.
        match self.ask(&redis::cmd("PING"), None, self.node().limit).await {
            Reply::Answer(_) => {}
            Reply::Unsent(failure) => return Err(failure.into()),
            Reply::NoAnswer => return Err(self.no_answer_state()),
        }
        self.state.lock().only_asks = true;
        Ok(self.pin_separate().await?)
    }

    /// Sets the connection, and replaces it only if the slot of a cluster moves.
    pub(crate) fn pin(&self, node: &Arc<Node>, connection: Connection) {
        let mut state = self.state.lock();
        (state.connection, state.node, state.pinned) = (Some(connection), Some(node.clone()), true);
    }

    /// Opens a separate connection, and sets it as [`pin`](Self::pin) does.
    pub(crate) async fn pin_separate(&self) -> Result<(), ConnectError> {
        if let Home::Slot(cluster, _) = &self.home {
            cluster.ensure_map().await?;
        }
        let node = self.node();
        self.pin(&node, node.separate_connection().await?);
        Ok(())
    }

    /// Returns the connection that was set, and its node.
    pub(crate) fn pinned(&self) -> Option<(Arc<Node>, Connection)> {
        let state = self.state.lock();
        state.node.clone().zip(state.connection.clone()).filter(|_| state.pinned)
    }

    pub(crate) fn connection(&self) -> Option<Connection> {
        self.state.lock().connection.clone()
    }

    /// Sends a request and waits for the answer, until the server has answered nothing for `limit`.
    pub(crate) async fn ask(
        &self,
        command: &impl Command,
        late_effect: Option<LateEffect>,
        limit: Duration,
    ) -> Reply {
        self.ask_server(command, late_effect, limit).await.0
    }

    /// Like [`ask`](Self::ask), and also returns the run id of the server that was asked. `None` means that
    /// the request was not sent, or that the server hides its run id. The client refuses such a server as a
    /// member of a quorum.
    pub(crate) async fn ask_server(
        &self,
        command: &impl Command,
        late_effect: Option<LateEffect>,
        limit: Duration,
    ) -> (Reply, Option<Arc<str>>) {
        let mut end = now() + limit;
        let (mut redirects, mut replicas) = (0, 0);
        loop {
            let asked = self.node();
            let connecting = timeout(end.saturating_since(now()), self.working_connection()).await;
            let connection = match connecting {
                Ok(Ok(connection)) => connection,
                Ok(Err(_)) if redirects < MAX_REDIRECTS && self.has_moved_from(&asked, end).await => {
                    redirects += 1;
                    continue;
                }
                Ok(Err(connect_error)) => return (Reply::Unsent(connect_error.into()), None),
                Err(_) => {
                    self.home.refresh_soon();
                    return (Reply::Unsent(asked.no_connection_yet().into()), None);
                }
            };
            let reply = self.ask_in_time(&connection, command, late_effect, limit).await;
            if redirects == 0 {
                // The request may have waited for its turn.
                end = end.max(now() + limit);
            }
            let (reply, redirect) = match reply.redirect() {
                Some(Redirect::Ask(place)) => {
                    let reply = self.ask_target(&place, command, late_effect, end).await;
                    let redirect = reply.redirect();
                    (reply, redirect)
                }
                redirect => (reply, redirect),
            };
            let Some(redirect) = redirect else {
                if matches!(reply, Reply::NoAnswer) {
                    self.home.refresh_soon();
                }
                return (reply, self.voter(&connection));
            };
            if redirects >= MAX_REDIRECTS || now() >= end {
                let is_open = matches!(redirect, Redirect::Moved(_) | Redirect::Ask(_));
                let why =
                    || Failure::NotNow("the nodes of the cluster disagree about who has the slot".into());
                return (if is_open { Reply::Unsent(why()) } else { reply }, self.voter(&connection));
            }
            redirects += 1;
            match redirect {
                // The address may lead to another server now. That server gets the request only once: if it
                // is a replica, too, the caller asks again later.
                Redirect::Replica => {
                    self.leave(&connection);
                    replicas += 1;
                    if self.state.lock().pinned {
                        return (Reply::Unsent(ConnectError::replica(&connection).into()), None);
                    }
                    if replicas > 1 {
                        return (reply, self.voter(&connection));
                    }
                }
                Redirect::Moved(place) => {
                    if let Err(unsent) = self.follow(&connection, &place, end).await {
                        return (unsent, None);
                    }
                }
                // The slot may be back, or its move has ended.
                Redirect::Ask(_) => {}
                // The node serves no slot now, and may know later which one does.
                Redirect::Down { is_unserved } => {
                    self.home.refresh_soon();
                    let reply = match self.home {
                        Home::Slot(_, slot) if is_unserved => no_master(slot),
                        _ => reply,
                    };
                    return (reply, self.voter(&connection));
                }
            }
            if redirects > 1 && matches!(self.home, Home::Slot(..)) {
                sleep(REDIRECT_PAUSE).await;
            }
        }
    }

    /// Returns the run id of the server as that of the member. Of a cluster there is none: its vote is that
    /// of many servers.
    fn voter(&self, connection: &Connection) -> Option<Arc<str>> {
        match self.home {
            Home::Node(_) => connection.run_id(),
            Home::Slot(..) => None,
        }
    }

    /// Called when there is no connection to the node. Asks the cluster which node has the slot now, at most
    /// until `end`, and returns true if it is another one.
    async fn has_moved_from(&self, asked: &Arc<Node>, end: Instant) -> bool {
        let Home::Slot(cluster, _) = &self.home else { return false };
        let _ = timeout(end.saturating_since(now()), cluster.refresh()).await;
        !Arc::ptr_eq(asked, &self.node())
    }

    /// Follows a MOVED that came over the connection. A pinned connection is replaced, which ends an
    /// ephemeral hold.
    async fn follow(&self, connection: &Connection, place: &str, end: Instant) -> Result<(), Reply> {
        let Home::Slot(cluster, slot) = &self.home else { return Ok(()) };
        let Some(said_by) = self.state.lock().node.clone() else { return Ok(()) };
        let node = match cluster.node(place, &said_by) {
            None => match within(end, cluster.owner_by(&said_by, *slot)).await {
                Some(Ok(Some(node))) => node,
                // The node that had the slot is gone: it was reset, for example.
                Some(Ok(None)) => {
                    cluster.refresh_soon();
                    return Err(no_master(*slot));
                }
                None | Some(Err(_)) => return Ok(()),
            },
            Some(named) => named,
        };
        cluster.moved(*slot, &node);
        if self.state.lock().pinned {
            connection.close();
            let opened = timeout(end.saturating_since(now()), node.separate_connection()).await;
            let opened = opened.unwrap_or_else(|_| Err(node.no_connection_yet()));
            self.pin(&node, opened.map_err(|why| Reply::Unsent(why.into()))?);
        }
        Ok(())
    }

    /// Sends a request to the node that receives the slot: the key is there already, or nowhere. The
    /// connection to the present owner of the slot remains that of the channel. A hold of a connection of its
    /// own waits until the slot has moved; a question with a long answer goes over one more connection.
    async fn ask_target(
        &self,
        place: &str,
        command: &impl Command,
        late_effect: Option<LateEffect>,
        end: Instant,
    ) -> Reply {
        let unsent = |why: ConnectError| Reply::Unsent(why.into());
        let (said_by, is_pinned, only_asks) = {
            let state = self.state.lock();
            (state.node.clone(), state.pinned, state.only_asks)
        };
        let (Home::Slot(cluster, slot), Some(said_by)) = (&self.home, said_by) else {
            return unsent(ConnectError::down("an ASK of a server that is no node of a cluster"));
        };
        let node = match cluster.node(place, &said_by) {
            _ if is_pinned && !only_asks => None,
            None => within(end, cluster.target_by(&said_by, *slot)).await.flatten(),
            named => named,
        };
        let Some(node) = node else {
            return Reply::Unsent(Failure::NotNow("its slot is being moved".into()));
        };
        let opening =
            async { if is_pinned { node.separate_connection().await } else { node.connection().await } };
        let opened = timeout(end.saturating_since(now()), opening).await;
        let connection = match opened.unwrap_or_else(|_| Err(node.no_connection_yet())) {
            Ok(connection) => connection,
            Err(why) => return unsent(why),
        };
        // Until it is answered, the target may execute this request after later ones over other connections.
        let unanswered = Unanswered { channel: self, late_effect };
        {
            let mut state = self.state.lock();
            (state.sent, state.target) = (state.sent + 1, Some(node.clone()));
        }
        let asking = Asking(command);
        match timeout(end.saturating_since(now()), connection.ask(&asking)).await {
            Ok(Some(answer)) => {
                std::mem::forget(unanswered);
                asking.answer(answer).map_or(Reply::NoAnswer, Reply::Answer)
            }
            Ok(None) => Reply::NoAnswer,
            Err(_) => {
                connection.note_silence(node.limit);
                Reply::NoAnswer
            }
        }
    }

    /// Closes a connection to a server that is no master any more.
    fn leave(&self, connection: &Connection) {
        match &self.home {
            Home::Node(node) => node.leave(connection),
            // A node that is no master names the new one by MOVED.
            Home::Slot(cluster, _) => cluster.refresh_soon(),
        }
    }

    /// Sends a request, and waits for the answer until the server has answered nothing for `limit`. The
    /// answers come in the order of the requests, so each of them shows that the server works, and that this
    /// request gets its turn, however many requests are ahead of it. The limit begins when the request goes
    /// out.
    async fn ask_in_time(
        &self,
        connection: &Connection,
        command: &impl Command,
        late_effect: Option<LateEffect>,
        limit: Duration,
    ) -> Reply {
        let number = self.note_in_flight(late_effect);
        let Some(_turn) = connection.turn().await else { return Reply::NoAnswer };
        let mut asking = pin!(self.ask_over(connection, command, number));
        let (mut begun, mut delays) = (now(), 0);
        loop {
            let due = begun.max(connection.last_answer()) + limit;
            if let Ok(reply) = timeout(due.saturating_since(now()), &mut asking).await {
                return reply;
            }
            let is_late = now().saturating_since(due) > limit;
            let was_busy = self.node().background.was_busy(limit).await;
            if (is_late || was_busy) && delays < MAX_DELAYS {
                // The process was stopped, or its thread had much to do. The answer may have arrived.
                (begun, delays) = (now(), delays + 1);
            } else if now() >= begun.max(connection.last_answer()) + limit {
                connection.note_silence(limit);
                return Reply::NoAnswer;
            }
        }
    }

    /// Sends a question and returns the answer as read by `read`, or the reason why there is none.
    pub(crate) async fn query<T>(
        &self,
        question: &Cmd,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Result<T, NodeState> {
        self.read_answer(self.ask(question, None, self.node().limit).await, read)
    }

    /// Like [`query`](Self::query), for a question about locks: only the answer of a master counts.
    pub(crate) async fn query_locks<T>(
        &self,
        question: &Cmd,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Result<T, NodeState> {
        self.read_answer(self.ask(&OfMaster(question), None, self.node().limit).await, read)
    }

    fn read_answer<T>(&self, reply: Reply, read: impl FnOnce(Value) -> Option<T>) -> Result<T, NodeState> {
        let is_silent = |state: &NodeState| *state == NodeState::Slow;
        reply.read(read).map_err(|state| if is_silent(&state) { self.no_answer_state() } else { state })
    }

    /// Sends a RELEASE over the connection of the earlier requests, so that it arrives after them. If that
    /// connection hangs, sends it over another one. A RELEASE that is not confirmed is sent again in the
    /// background for the length of the lease. While an ACQUIRE without an answer may still arrive over an
    /// earlier connection, no answer confirms the RELEASE.
    pub(crate) async fn release(&self, release: Release, lease: Duration) -> Vote<()> {
        let (mut unanswered, valid_until) = (false, release.valid_until);
        let reply = self.release_until_answered(&release, &mut unanswered).await;
        let acquire_may_be_late = self.may_acquire_late();
        if acquire_may_be_late {
            // The server has probably received the ACQUIRE by now, and executes it before this second
            // RELEASE.
            self.ask(&release.command(now()), None, self.node().limit).await;
        }
        if acquire_may_be_late || !reply.confirms_release() {
            self.repeat_release(release, lease, acquire_may_be_late);
        }
        match reply.released() {
            Vote::Refused(Refusal::NotHeld) if unanswered && self.would_still_hold(valid_until) => {
                Vote::Granted(())
            }
            // The RELEASE without an answer may have ended the hold.
            Vote::Refused(Refusal::NotHeld) if unanswered => Vote::Unknown,
            vote => vote,
        }
    }

    /// Returns true if only a RELEASE can have ended a hold that is valid until then: the hold is valid now,
    /// and the server is the one that has confirmed it.
    fn would_still_hold(&self, valid_until: Option<Instant>) -> bool {
        let state = self.state.lock();
        let is_same =
            state.confirmed.as_ref().is_some_and(|hold| Some(&hold.server) == state.server().as_ref());
        is_same && valid_until.is_some_and(|end| now() < end)
    }

    /// Sends a RELEASE until the server has carried it out or refused it for good, at most for the time limit
    /// of a connection. Sets `unanswered` if one was sent without an answer.
    async fn release_until_answered(&self, release: &Release, unanswered: &mut bool) -> Reply {
        let mut reply = self.ask_behind_earlier_requests(&release.command(now())).await;
        // The following RELEASE may use any connection.
        let mut backoff = fresh_backoff();
        let repeated = timeout(self.node().connection_limit(), async {
            *unanswered |= matches!(reply, Reply::NoAnswer);
            while reply.is_to_be_repeated() {
                self.state.lock().pinned = false;
                reply = self.ask(&release.command(now()), None, self.node().limit).await;
                *unanswered |= matches!(reply, Reply::NoAnswer);
                if reply.is_to_be_repeated() {
                    sleep(backoff.next()).await;
                }
            }
        });
        let is_in_time = repeated.await.is_ok();
        if is_in_time || matches!(reply, Reply::Answer(_)) { reply } else { Reply::NoAnswer }
    }

    /// Sends a CANCEL over the connection of the request that it cancels, even if that request has no answer.
    pub(crate) async fn cancel(&self, command: &Cmd) {
        let reply = self.ask_behind_earlier_requests(command).await;
        if !matches!(reply, Reply::Answer(_)) || reply.redirect().is_some() {
            self.ask(command, None, self.node().limit).await;
        }
    }

    /// Sends a request on the connection of the earlier requests, if that is still open.
    async fn ask_behind_earlier_requests(&self, command: &Cmd) -> Reply {
        let Some(connection) = self.connection().filter(Connection::is_open) else {
            return Reply::Unsent(self.node().no_connection_yet().into());
        };
        let reply = self.ask_in_time(&connection, command, None, self.node().limit).await;
        if reply.redirect() == Some(Redirect::Replica) {
            self.leave(&connection);
        }
        reply
    }

    /// Repeats a RELEASE in the background for the length of the lease, or until an answer confirms the
    /// RELEASE. If an ACQUIRE may be late, no answer ends the repetition, and the pauses grow to a twentieth
    /// of the lease.
    fn repeat_release(&self, release: Release, lease: Duration, acquire_may_be_late: bool) {
        let (home, until) = (self.home.clone(), now() + lease);
        let longest = if acquire_may_be_late { LONGEST_PAUSE.max(lease / 20) } else { LONGEST_PAUSE };
        let mut backoff = Backoff::new(FIRST_PAUSE, longest);
        self.node().background.runtime.spawn(async move {
            while now() < until {
                // Ends early if another request finds that the master answers again.
                let node = home.node();
                let _ = timeout(backoff.next(), node.repeat_releases.notified()).await;
                let command = release.command(now());
                let reply = Channel::new(home.clone()).ask(&command, None, node.limit).await;
                if reply.confirms_release() && !acquire_may_be_late {
                    return;
                }
            }
        });
    }

    /// Returns true if an ACQUIRE without an answer may be carried out after the requests that were answered.
    fn may_acquire_late(&self) -> bool {
        let state = self.state.lock();
        let in_flight = state.in_flight.iter().filter_map(|sent| sent.late_effect.as_ref());
        state.orphans.iter().chain(in_flight).any(LateEffect::is_acquire)
    }

    /// Returns true if the token may hold the lock at the master or wait for it, also by a request without an
    /// answer.
    pub(crate) fn may_hold(&self) -> bool {
        let state = self.state.lock();
        let may_be_late = !state.in_flight.is_empty() || state.orphans.iter().any(LateEffect::is_acquire);
        state.may_hold || state.may_wait || may_be_late
    }

    /// Records what an answer proves about the hold.
    pub(crate) fn note<G>(&self, vote: &Vote<G>) {
        match vote {
            Vote::Granted(_) => {
                let mut state = self.state.lock();
                let confirmed = |server| Confirmed { server, when: now(), taken_away: false };
                (state.confirmed, state.may_hold) = (state.server().map(confirmed), true);
            }
            // The token may still have a position.
            Vote::Refused(Refusal::Taken) => self.state.lock().may_hold = false,
            // `may_hold` stays as it is. A request can fail although the hold exists. After `NotHeld`, the
            // token may wait in the queue, because the client may have tried to restore the hold by ACQUIRE.
            Vote::Refused(_) | Vote::Failed(_) | Vote::Unknown => {}
        }
    }

    /// Called when the master has answered that it does not have the hold. Returns true if the master never
    /// confirmed the hold, confirmed it at least `ttl` (the lease) ago, or is another server now. Otherwise
    /// an operator or another client has ended the hold, and the channel records this for later calls.
    pub(crate) fn has_forgotten(&self, ttl: Duration) -> bool {
        let mut state = self.state.lock();
        let server = state.server();
        let Some(confirmed) = &mut state.confirmed else { return true };
        let is_another_server = server.as_ref() != Some(&confirmed.server);
        confirmed.taken_away |= !is_another_server && now() < confirmed.when + ttl;
        is_another_server || !confirmed.taken_away
    }

    /// Records that the token may hold the lock at the master.
    pub(crate) fn assume_held(&self) {
        self.state.lock().may_hold = true;
    }

    /// Records that the token may wait in the queue of the master.
    pub(crate) fn assume_queued(&self) {
        self.state.lock().may_wait = true;
    }

    /// Records that the master has carried out a RELEASE of the token, and has neither a hold nor a position
    /// of it.
    pub(crate) fn note_released(&self) {
        let mut state = self.state.lock();
        (state.may_hold, state.may_wait) = (false, false);
    }

    /// Closes the connection of the earlier requests if the server behind it is no master any more: see
    /// [`Node::leave`]. A node of a cluster may only have lost the slot, and says so.
    pub(crate) fn leave_server(&self) {
        self.connection().iter().for_each(|connection| self.leave(connection));
    }

    /// Records that a request over a separate connection may still set a lease of `ttl`.
    pub(crate) fn note_orphaned_lease(&self, ttl: Duration) {
        self.state.lock().note_orphan(LateEffect::Lease(ttl));
    }

    /// Returns true if no orphaned request can still shorten a lease of `ttl` that the master has confirmed.
    pub(crate) fn lease_is_certain(&self, ttl: Duration) -> bool {
        let shortens = |orphan: &LateEffect| matches!(orphan, LateEffect::Lease(other) if *other < ttl);
        !self.state.lock().orphans.iter().any(shortens)
    }

    /// Returns true if an orphaned request may still make the hold a shared one.
    pub(crate) fn may_become_shared(&self) -> bool {
        self.state.lock().orphans.contains(&LateEffect::SharedHold)
    }

    /// Returns true if the master has answered something within `limit` over the connection of the hold.
    pub(crate) fn has_answered_within(&self, limit: Duration) -> bool {
        self.connection().is_some_and(|connection| {
            connection.is_open() && now().saturating_since(connection.last_answer()) < limit
        })
    }

    /// Returns the state of a master that did not answer.
    pub(crate) fn no_answer_state(&self) -> NodeState {
        match self.connection() {
            Some(connection) if let Some(why) = connection.fault() => NodeState::Failed(why.into()),
            Some(connection) if !connection.is_open() => {
                NodeState::Down("the connection broke before the answer".into())
            }
            Some(_) => NodeState::Slow,
            None => self.node().connect_error().unwrap_or(NodeState::Slow),
        }
    }

    /// Returns the state of a master if its answer was not needed.
    pub(crate) fn unneeded_state(&self) -> NodeState {
        let otherwise = if self.state.lock().sent > 0 { NodeState::Unheard } else { NodeState::Unasked };
        self.node().connect_error().unwrap_or(otherwise)
    }

    /// Returns the connection of the earlier requests while it works, else the shared one. The requests
    /// without an answer on the old connection become orphans.
    async fn working_connection(&self) -> Result<Connection, ConnectError> {
        if let Home::Slot(cluster, _) = &self.home {
            cluster.ensure_map().await?;
        }
        let node = self.node();
        {
            let state = self.state.lock();
            let is_good = |connection: &Connection| match &state.node {
                // The slot is at another node. The old one executes the requests before this one in their
                // order, and answers by a redirect, unless it is silent.
                Some(old) if !Arc::ptr_eq(old, &node) => connection.answers() && !state.in_flight.is_empty(),
                _ => connection.is_good(),
            };
            match &state.connection {
                Some(connection) if is_good(connection) || (state.pinned && connection.is_open()) => {
                    return Ok(connection.clone());
                }
                Some(_) if state.pinned => return Err(ConnectError::down("its connection closed")),
                _ => {}
            }
        }
        let new = node.connection().await?;
        let mut state = self.state.lock();
        if state.connection.as_ref().is_none_or(|old| !old.is_same(&new)) {
            let unanswered = std::mem::take(&mut state.in_flight);
            for late_effect in unanswered.iter().filter_map(|sent| sent.late_effect) {
                state.note_orphan(late_effect);
            }
            (state.connection, state.node) = (Some(new.clone()), Some(node));
        }
        Ok(new)
    }

    /// Records a request before it is sent, and returns its number.
    fn note_in_flight(&self, late_effect: Option<LateEffect>) -> u32 {
        let mut state = self.state.lock();
        (state.sent, state.target) = (state.sent + 1, None);
        let number = state.sent;
        state.in_flight.push(InFlight { number, late_effect });
        number
    }

    async fn ask_over(&self, connection: &Connection, command: &impl Command, number: u32) -> Reply {
        let Some(answer) = connection.ask(command).await else { return Reply::NoAnswer };
        // The master has carried out all earlier requests on the same connection.
        self.state.lock().in_flight.retain(|sent| sent.number > number);
        Reply::Answer(answer)
    }
}

/// Waits at most until `end`.
async fn within<T>(end: Instant, work: impl Future<Output = T>) -> Option<T> {
    timeout(end.saturating_since(now()), work).await.ok()
}

/// The reply for a slot that no node serves.
fn no_master(slot: u16) -> Reply {
    let why = format!("no known master has the slot {slot}: the cluster grants nothing in it");
    Reply::Unsent(Failure::NotNow(why.as_str().into()))
}

/// A request without an answer that was sent over another connection than that of the channel. Dropping this
/// records its late effect.
struct Unanswered<'a> {
    channel: &'a Channel,
    late_effect: Option<LateEffect>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(late_effect) = self.late_effect {
            self.channel.state.lock().note_orphan(late_effect);
        }
    }
}
