//! LIST and LOG, for operators. LIST returns the locks of a database, a part in each call; LOG returns the
//! recent incidents.

use std::collections::HashMap;

use dlock_core::listing::{self, Place};
use dlock_core::lock::View;
use dlock_core::log::Entry;
use dlock_core::{ClientId, Fence, Mode, Name};
use dlock_protocol::command;
use dlock_protocol::reply::{Inspection, Left, Listed, Listing, Logged};

use super::read_commands::{ShowToken, shown_to, user_is_unknown};
use super::{Done, reply_with};
use crate::ffi::Ctx;
use crate::ffi::commands::Args;
use crate::module::{Key, Module};
use crate::{clock, effects};

pub fn list<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::List::parse(args.bytes)?;
    let (db, now, user) = (ctx.db(), clock::now(), ctx.user());
    let user_is_unknown = user_is_unknown(m, ctx);
    let part = m.with(|s| listing::part(&parsed, db, &s.waiting, &s.background));
    let mut locks = Vec::new();
    // The address of a connection is a system call, and many locks have the same connection.
    let mut addresses = HashMap::new();
    let mut address = |client| addresses.entry(client).or_insert_with(|| ctx.address(client)).clone();
    let keys = part.waited.iter().map(|key| (key, parsed.waited));
    for (key, even_with_slot) in keys.chain(part.scheduled.iter().map(|key| (key, true))) {
        let raw = ctx.string(key);
        // LIST shows of a key what INSPECT shows, so it requires the same right of the user.
        if !user.may_read(raw.name()) {
            continue;
        }
        let open = Key::open_for_read(ctx, raw.name()).ok();
        let lock = open.as_ref().and_then(Key::value);
        // LIST iterates over the keys with waiters, then over the locks with a slot in the schedule of
        // deadlines. A lock with waiters and a slot is listed only among the locks with a slot. LIST with
        // WAITED iterates only over the keys with waiters, so it also lists their locks with a slot.
        if even_with_slot || lock.is_none_or(|lock| lock.slot().is_none()) {
            let waiters = m.with(|s| s.waiting.len_of(&Name::new(db, key))) as u64;
            let show = shown_to(!user_is_unknown && user.may_write(raw.name()));
            let mut listed = listed(key, lock.map(|lock| lock.at(now)), waiters, show, &mut address);
            if let Some(listed) = listed.as_mut().filter(|listed| listed.holders == 0)
                && effects::held_by_string(m, ctx, raw.name())
            {
                listed.mode = Inspection::STRING.as_bytes().into();
            }
            locks.extend(listed);
        }
    }
    reply_with(ctx, Listing { cursor: part.next.map_or(0, Place::cursor), locks })
}

/// Returns the entry of a lock. `None` if there is nothing to show: no holder, no waiter and no delay.
fn listed<'k>(
    key: &'k [u8],
    lock: Option<View<'_>>,
    waiters: u64,
    show: ShowToken,
    address: &mut impl FnMut(u64) -> Option<String>,
) -> Option<Listed<'k>> {
    let mode = lock.and_then(View::mode).map_or(Inspection::FREE, Mode::word);
    let holders = lock.map_or(0, |lock| lock.holders() as u64);
    let delay = lock.map_or(0, View::delay_left);
    if holders == 0 && waiters == 0 && delay == 0 {
        return None;
    }
    let mut listed = Listed {
        key: key.into(),
        mode: mode.as_bytes().into(),
        holders,
        waiters,
        pttl: Left(lock.and_then(View::longest_left)),
        held: lock.and_then(View::longest_held).unwrap_or(0),
        delay,
        ..Listed::default()
    };
    if let Some(first) = lock.and_then(|lock| lock.holds().next()) {
        listed.token = show(first.token().as_bytes()).into_owned().into();
        listed.fence = first.fence().get();
        listed.label = first.label().to_vec().into();
        let address = first.client().and_then(|ClientId(id)| address(id));
        listed.addr = address.unwrap_or_default().into_bytes().into();
    }
    Some(listed)
}

pub fn log<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let (count, key) = match command::Log::parse(args.bytes)? {
        command::Log::Read { count, key } => (count, key),
        command::Log::Reset => {
            m.with(|s| s.log.keep_newest(0));
            ctx.reply_simple(c"OK");
            return Ok(());
        }
    };
    let max_entries = count.map_or(usize::MAX, |n| n.get() as usize);
    // Copied, because replies call the server, which is not allowed while the state is borrowed.
    let entries: Vec<Entry> = m.with(|s| {
        s.log.keep_newest(s.config.log_max_len);
        let wanted = |entry: &&Entry| key.is_none_or(|key| entry.incident.is_about(key));
        s.log.entries().filter(wanted).take(max_entries).cloned().collect()
    });
    reply_with(ctx, entries.iter().map(logged).collect::<Vec<_>>())
}

fn logged(entry: &Entry) -> Logged<'_> {
    let incident = &entry.incident;
    let is_about_a_wait = incident.kind.is_about_a_wait();
    Logged {
        id: entry.id,
        time: entry.at.millis(),
        what: incident.kind.word().as_bytes().into(),
        db: incident.db as u64,
        key: (&*incident.key).into(),
        token: (&*incident.token).into(),
        label: (&*incident.label).into(),
        client: incident.client.map_or(0, |client| client.0),
        address: (&*incident.address).into(),
        fence: incident.fence.map_or(0, Fence::get),
        held: (!is_about_a_wait).then_some(incident.lasted),
        waited: is_about_a_wait.then_some(incident.lasted),
    }
}
