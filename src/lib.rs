//! The dlock module: makes a Redis or Valkey server a lock server.
//!
//! This crate is the only code that knows the server. It parses commands, opens keys, lets `dlock-core`
//! decide, and carries out the result: it stores, replicates, announces and answers. It decides nothing about
//! a lock, keeps no lock outside of the keyspace, and reads the wall clock only at its start.
//!
//! The types to know:
//!
//! - [`Module`]: contains the [`State`](module::State). The process has one `Module`, which most functions
//!   get as an argument.
//! - [`Target`](effects::Target): an open key, on which one operation of the core runs.
//! - [`Step`](dlock_core::Step): what an operation asks for, as data. `effects` carries it out.
//! - [`Answer`](waiters::Answer): the reply that unblocks a client. Later, the server calls the module to
//!   write the reply, if the client is still connected, and then to free the reply.
//! - [`Ctx`]: the context that the server passes to each call of the module. The module needs one to call the
//!   server.
//! - [`Upcalls`](ffi::Upcalls): the functions of the module that the server calls, except the commands.
//!
//! The server first calls `load` in this file, which registers commands, options, the key type and events.
//! See ARCHITECTURE.md for the layers and the life of one ACQUIRE.
// The documentation of this crate is built with the private items, for the developers of dlock.
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
        return Err(format!("dlock needs Redis 7.0 or newer, or Valkey; this server has no {function}"));
    }
    setup::log_panics();
    setup::set_api_options(ctx);
    clock::start();
    let module = upcalls::start(ctx);
    let defaults = config::defaults(arguments)?;
    must(
        setup::register_settings::<Module>(ctx, &config::SETTINGS, &defaults),
        "an option, or its value in redis.conf",
    )?;
    must(types::register::<Module>(ctx), "the key type")?;
    let own_category = ffi::commands::add_category(ctx, "dlock");
    // Before the module writes in the background, it checks by a dry run of ACQUIRE whether the server would
    // accept the write. On a server without dry runs, the module calls the write probe instead: a command
    // with the flags of ACQUIRE that writes nothing.
    let write_probe = (!verdict::has_dry_runs(ctx)).then_some(&table::WRITE_PROBE);
    for command in table::COMMANDS.iter().chain(write_probe) {
        must(ffi::commands::register(ctx, command, own_category), command.name)?;
    }
    grace::at_start(module);
    fence_mark::start(module, ctx);
    must(notices::subscribe::<Module>(ctx), "a subscription to an event")?;
    must(notices::subscribe_to_evictions::<Module>(ctx), "a subscription to evictions")?;
    must(setup::register_info::<Module>(ctx), "the INFO section")?;
    info::configured(module, ctx);
    Ok(())
}
