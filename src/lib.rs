//! The dlock module: makes a Redis or Valkey server a lock server.
//!
//! This crate is the only code that knows the server. It parses commands, opens keys, lets `dlock-core`
//! decide, and carries out the result: it stores, replicates, announces and answers. It decides nothing about
//! a lock, keeps no lock outside of the keyspace, and reads the wall clock only at its start.
//!
//! The types to know:
//!
//! - [`Module`]: the value that every function gets as an argument, with the [`State`](module::State).
//! - [`Target`](effects::Target): an open key, on which one operation of the core runs.
//! - [`Step`](dlock_core::Step): what an operation asks for, as data. `effects` carries it out.
//! - [`Answer`](waiters::Answer): the reply to a blocked client, on its way through the server.
//! - [`Ctx`]: the context of a call of the server into the module. A call of the server needs one.
//! - [`Upcalls`](ffi::Upcalls): the callbacks of the server other than commands.
//!
//! The server calls this file first: it registers commands, options, the key type and events. See
//! ARCHITECTURE.md for the layers and the life of one ACQUIRE.
// No crate uses this one: its documentation is built with the private items.
#![allow(rustdoc::private_intra_doc_links)]
#![deny(unsafe_code)]

mod background;
mod clock;
mod commands;
mod config;
mod effects;
mod fence_mark;
mod ffi;
mod followers;
mod grace;
mod info;
mod log;
mod module;
mod server_events;
mod stats;
mod upcalls;
mod waiters;

use commands::table;
use ffi::{Ctx, notices, setup, types, verdict};
use module::Module;

ffi::setup::on_load!(Module, load);

/// Registers everything with the server. Called once, before the server loads its data.
fn load(ctx: Ctx<'_>, arguments: &[&[u8]]) -> Result<(), String> {
    let must = |done: bool, what: &str| if done { Ok(()) } else { Err(format!("the server refuses {what}")) };
    if let Some(function) = setup::missing() {
        return Err(format!("it needs Redis 7.0 or newer, or Valkey; this server has no {function}"));
    }
    setup::log_panics();
    setup::set_options(ctx);
    clock::start();
    let module = upcalls::start(ctx);
    let defaults = config::defaults(arguments)?;
    must(
        setup::register_settings::<Module>(ctx, &config::SETTINGS, &defaults),
        "an option, or its value in redis.conf",
    )?;
    must(types::register::<Module>(ctx), "the key type")?;
    let own_category = ffi::commands::add_category(ctx, "dlock");
    let write_probe = (!verdict::has_dry_runs(ctx)).then_some(&table::WRITE_PROBE);
    for command in table::COMMANDS.iter().chain(write_probe) {
        must(ffi::commands::register(ctx, command, own_category), command.name)?;
    }
    grace::at_start(module);
    fence_mark::start(module, ctx);
    must(notices::subscribe::<Module>(ctx), "an event")?;
    must(notices::subscribe_to_evictions::<Module>(ctx), "a subscription to evictions")?;
    must(setup::register_info::<Module>(ctx), "the INFO section")?;
    info::configured(module, ctx);
    Ok(())
}
